#include "planner/learn/shape_errors.h"

#include <utility>

#include "planner/learn/gaussian_process.h"

namespace millrace {
namespace {

constexpr double Square(double value) { return value * value; }

// Prior variances of log(true / listed). Rows were measured on this very
// machine, but one at a time, in a loop and with nothing else running. Steps
// planned from such tables took up to 16 % longer
// (docs/results/2026-11-21-training-h200.md), and single ops differed more and
// less than that. The variances are wide compared with the noise, so that a
// run's findings are believed.
// Shared by all computing, or by all communication.
constexpr double kAll = Square(0.1);
constexpr double kKind = Square(0.25);
constexpr double kRow = Square(0.25);
// Kept small. An error that ops always show in the same circumstances belongs
// to the ops, unless they lack it in other circumstances.
constexpr double kContention = Square(0.08);
constexpr double kOverlap = Square(0.08);
// Additional variance of ops that take almost nothing of a step.
constexpr double kMinor = Square(0.5);
// Variance of an observation, a mean over calls, ranks and steps.
constexpr double kNoise = Square(0.01);
constexpr double kCallNoise = Square(0.3);  // Variance of one call.

bool Contends(const OpContext& context) { return context.num_computing > 1; }

}  // namespace

ShapeErrors::ShapeErrors(std::vector<ShapeError> observed)
    : observed_(std::move(observed)) {
  const size_t n = observed_.size();
  if (n == 0) return;
  std::vector<double> values;
  for (const ShapeError& error : observed_) {
    kinds_.push_back(KindText(error.shape));
    values.push_back(error.log_ratio);
  }
  std::vector<double> covariance(n * n, 0);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      const ShapeError& a = observed_[i];
      const ShapeError& b = observed_[j];
      if (IsCommunication(a.shape) != IsCommunication(b.shape)) continue;
      double& shared = covariance[i * n + j];
      shared = kAll;
      if (kinds_[i] == kinds_[j]) shared += kKind;
      if (a.shape == b.shape) shared += kRow;
      if (Contends(a.context) &&
          a.context.num_computing == b.context.num_computing) {
        shared += kContention;
      }
      if (a.context.overlapped && b.context.overlapped) shared += kOverlap;
      if (i != j) continue;
      if (a.is_minor) shared += kMinor;
      shared += kCallNoise / static_cast<double>(a.num_calls);
    }
  }
  weights_ = SolveRobustly(covariance, values, kNoise).weights;
}

double ShapeErrors::OfRow(const OpShape& shape) const {
  const std::string kind = KindText(shape);
  double sum = 0;
  for (size_t i = 0; i < observed_.size(); ++i) {
    if (IsCommunication(observed_[i].shape) != IsCommunication(shape)) continue;
    double shared = kAll;
    if (kinds_[i] == kind) shared += kKind;
    if (observed_[i].shape == shape) {
      // The one observed circumstance of a row stands for the row.
      shared += kRow + (observed_[i].is_minor ? kMinor : 0);
    }
    sum += shared * weights_[i];
  }
  return sum;
}

double ShapeErrors::OfContention(int num_computing) const {
  double sum = 0;
  for (size_t i = 0; i < observed_.size(); ++i) {
    const OpContext& context = observed_[i].context;
    if (Contends(context) && context.num_computing == num_computing) {
      sum += kContention * weights_[i];
    }
  }
  return sum;
}

double ShapeErrors::OfOverlap(bool communication) const {
  double sum = 0;
  for (size_t i = 0; i < observed_.size(); ++i) {
    if (observed_[i].context.overlapped &&
        IsCommunication(observed_[i].shape) == communication) {
      sum += kOverlap * weights_[i];
    }
  }
  return sum;
}

}  // namespace millrace

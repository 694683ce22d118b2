#include "planner/evaluate/calibrate_predictions.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/evaluate/known_models.h"
#include "planner/learn/gaussian_process.h"

namespace millrace {
namespace {

// Standard deviations of the offsets of log(measured / predicted). Runs share
// an offset if they agree in the named field and in all fields above it.
constexpr double kFrameworkOffset = 0.01;
constexpr double kSoftwareOffset = 0.02;
constexpr double kModelOffset = 0.04;
constexpr double kPrecisionOffset = 0.03;
// Software, model and precision together.
constexpr double kWorkloadOffset = 0.06;
// The same and the layout without its data axis.
constexpr double kLayoutOffset = 0.03;
// Standard deviation of the launch time of one run. Traces of like layers
// differ by up to 30 % where they wait for the host (vTrain, Bang et al.,
// 2024).
constexpr char kHostLaunch[] = "host_launch_s";
constexpr double kHostScatter = 0.3;
double Squared(double x) { return x * x; }

// Returns the median. An even count has two values in the middle: it returns
// the one nearer to zero, or zero if their signs differ. `values` must not be
// empty.
double MedianTowardsZero(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double below = values[(values.size() - 1) / 2];
  const double above = values[values.size() / 2];
  if (below < 0 && above > 0) return 0;
  return std::fabs(below) < std::fabs(above) ? below : above;
}

}  // namespace

CalibrationPoint PointOf(const RunPrediction& prediction) {
  const Layout& layout = prediction.setup.layout;
  CalibrationPoint point;
  point.id = prediction.run.id;
  point.machine = prediction.setup.profile;
  point.framework = prediction.run.group;
  point.software = SoftwareOf(prediction.run);
  point.model = absl::StrCat(PlainModelName(prediction.run.model), " x ",
                             prediction.setup.model.sequence_length);
  point.precision = absl::AsciiStrToLower(prediction.run.precision);
  point.layout = absl::StrJoin(
      std::make_tuple(layout.pipeline, layout.interleave, layout.tensor,
                      layout.context, layout.expert, layout.micro_batch,
                      layout.zero, RecomputeKey(layout)),
      " ");
  for (const Sensitivity& sensitivity : prediction.sensitivities) {
    point.constant_deviations.push_back(
        sensitivity.value * DeviationOfConstant(sensitivity.constant));
    if (sensitivity.constant == kHostLaunch) {
      point.host_deviation = std::fabs(sensitivity.value) * kHostScatter;
    }
  }
  const std::optional<double> measured = MeasuredStepTime(prediction.run);
  if (measured) {
    point.log_ratio = std::log(*measured / prediction.step_time_s);
  }
  return point;
}

std::string CalibrationGroup(const CalibrationPoint& point) {
  return absl::StrJoin({point.framework, point.software, point.machine,
                        point.model, point.precision},
                       ", ");
}

Calibration::Calibration(std::vector<CalibrationPoint> points)
    : points_(std::move(points)) {
  // A group's offset is as wide as the error that its runs agree on (automatic
  // relevance determination, Tipping, 2001, by the median). One run that is far
  // off does not widen it if another contradicts.
  std::map<std::string, std::vector<double>> ratios;
  for (const CalibrationPoint& point : points_) {
    ratios[CalibrationGroup(point)].push_back(point.log_ratio);
  }
  for (auto& [group, of_group] : ratios) {
    group_variances_[group] =
        std::max(Squared(kWorkloadOffset),
                 Squared(MedianTowardsZero(std::move(of_group))));
  }
  Solve();
}

double Calibration::GroupVariance(const std::string& group) const {
  const auto found = group_variances_.find(group);
  return found == group_variances_.end() ? Squared(kWorkloadOffset)
                                         : found->second;
}

double Calibration::Covariance(const CalibrationPoint& a,
                               const CalibrationPoint& b) const {
  if (a.machine != b.machine) return 0;
  double covariance = Dot(a.constant_deviations, b.constant_deviations);
  if (a.framework != b.framework) return covariance;
  covariance += Squared(kFrameworkOffset);
  if (a.software == b.software) covariance += Squared(kSoftwareOffset);
  if (a.model == b.model) covariance += Squared(kModelOffset);
  if (a.precision == b.precision) covariance += Squared(kPrecisionOffset);
  const std::string group = CalibrationGroup(a);
  if (group == CalibrationGroup(b)) {
    covariance += GroupVariance(group);
    if (a.layout == b.layout) covariance += Squared(kLayoutOffset);
  }
  return covariance;
}

void Calibration::Solve() {
  const size_t n = points_.size();
  std::vector<double> covariance(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      covariance[i * n + j] = Covariance(points_[i], points_[j]);
    }
    covariance[i * n + i] += Squared(points_[i].host_deviation);
  }
  std::vector<double> ratios;
  for (const CalibrationPoint& point : points_) {
    ratios.push_back(point.log_ratio);
  }
  weights_ = SolveRobustly(covariance, ratios, Squared(kOwnError)).weights;
}

double Calibration::LogCorrection(const CalibrationPoint& point) const {
  double correction = 0;
  for (size_t i = 0; i < points_.size(); ++i) {
    correction += Covariance(point, points_[i]) * weights_[i];
  }
  return correction;
}

void Calibrate(const std::vector<std::string>& calibration_ids,
               std::vector<RunPrediction>* predictions) {
  const std::set<std::string> ids(calibration_ids.begin(),
                                  calibration_ids.end());
  std::vector<CalibrationPoint> points;
  std::set<std::string> groups;
  for (RunPrediction& prediction : *predictions) {
    if (!ids.contains(prediction.run.id)) continue;
    prediction.is_calibration = true;
    if (!prediction.step_time_error()) continue;
    points.push_back(PointOf(prediction));
    groups.insert(CalibrationGroup(points.back()));
  }
  const Calibration calibration(std::move(points));
  for (RunPrediction& prediction : *predictions) {
    if (!prediction.is_supported()) continue;
    const CalibrationPoint point = PointOf(prediction);
    prediction.is_calibrated = groups.contains(CalibrationGroup(point));
    prediction.step_time_s *= std::exp(calibration.LogCorrection(point));
  }
}

std::vector<std::string> ChooseCalibrationRuns(
    const std::vector<RunPrediction>& predictions, int count) {
  using Key = std::tuple<int64_t, double, std::string>;
  std::map<std::string, std::vector<Key>> groups;
  for (const RunPrediction& prediction : predictions) {
    if (!prediction.step_time_error()) continue;
    groups[CalibrationGroup(PointOf(prediction))].emplace_back(
        prediction.setup.layout.num_ranks(), prediction.step_time_s,
        prediction.run.id);
  }
  std::vector<std::string> chosen;
  for (auto& [name, runs] : groups) {
    std::sort(runs.begin(), runs.end());
    const size_t wanted =
        std::min(static_cast<size_t>(std::max(count, 0)), runs.size() - 1);
    // Chooses w runs: the first, the last, then evenly spaced ones between.
    for (size_t i = 0; i < wanted; ++i) {
      const size_t index =
          i == 0 ? 0 : (wanted == 1 ? 0 : i * (runs.size() - 1) / (wanted - 1));
      chosen.push_back(std::get<2>(runs[index]));
    }
  }
  return chosen;
}

}  // namespace millrace

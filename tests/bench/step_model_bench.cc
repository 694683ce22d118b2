// Times the closed form of a step: layouts a second and core, with the costs of
// layers cached, as the search meets them. First checks that what the cache
// answers is what a new model answers.
//
//   step_model_bench
//
// Prints processor seconds of one thread, the least of three rounds.

#include <algorithm>
#include <ctime>
#include <iostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/cost/closed_form.h"
#include "planner/profile/shipped_profiles.h"

namespace millrace {
namespace {

constexpr ModelSpec kDense = {.vocab_size = 128256,
                              .hidden = 16384,
                              .num_layers = 126,
                              .num_heads = 128,
                              .num_kv_heads = 8,
                              .head_dim = 128,
                              .ffn_hidden = 53248,
                              .sequence_length = 8192};
constexpr int32_t kNumDevices = 16384;
constexpr int32_t kGlobalBatch = 4096;

std::vector<Layout> AllLayouts() {
  std::vector<Layout> layouts;
  for (const int32_t tensor : {1, 2, 4, 8}) {
    for (const int32_t context : {1, 2, 4}) {
      for (const int32_t pipeline : {1, 2, 4, 8, 16}) {
        for (const int32_t interleave : {1, 2, 4}) {
          for (const int32_t micro_batch : {1, 2, 4}) {
            for (const int32_t zero : {0, 1, 2, 3}) {
              for (const Recompute recompute :
                   {Recompute::kNone, Recompute::kNorm, Recompute::kCheap,
                    Recompute::kCheap | Recompute::kGateUp, Recompute::kFull}) {
                Layout layout{.pipeline = pipeline,
                              .data = kNumDevices / tensor / context / pipeline,
                              .tensor = tensor,
                              .context = context,
                              .interleave = interleave,
                              .micro_batch = micro_batch,
                              .zero = zero,
                              .precision = Precision::kBfloat16,
                              .recompute = recompute};
                if (interleave > 1) layout.schedule = Schedule::kInterleaved;
                layout.num_microbatches =
                    kGlobalBatch / layout.data / micro_batch;
                if (ValidatePlannedLayout(kDense, layout, kGlobalBatch).ok()) {
                  layouts.push_back(layout);
                }
              }
            }
          }
        }
      }
    }
  }
  return layouts;
}

absl::Status Run() {
  ASSIGN_OR_RETURN(const HardwareProfile profile, LoadNamedProfile("h100-sxm"));
  const std::vector<Layout> layouts = AllLayouts();
  CHECK(layouts.size() > 1000) << layouts.size();
  ASSIGN_OR_RETURN(StepModel model, StepModel::Create(kDense, profile, {}));
  double sum = 0;
  for (const Layout& layout : layouts) {
    sum += model.Predict(layout).time.step_time_s();
  }
  for (size_t i = 0; i < layouts.size(); i += 97) {
    ASSIGN_OR_RETURN(StepModel fresh, StepModel::Create(kDense, profile, {}));
    CHECK(fresh.Predict(layouts[i]).time.step_time_s() ==
          model.Predict(layouts[i]).time.step_time_s())
        << LayoutToString(layouts[i]);
  }

  constexpr int kPasses = 50;
  double least = 1e9;
  for (int round = 0; round < 3; ++round) {
    double again = 0;
    const std::clock_t start = std::clock();
    for (int pass = 0; pass < kPasses; ++pass) {
      for (const Layout& layout : layouts) {
        again += model.Predict(layout).time.step_time_s();
      }
    }
    least = std::min(
        least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    CHECK(again > 0.999 * kPasses * sum && again < 1.001 * kPasses * sum);
  }
  const double count = static_cast<double>(layouts.size()) * kPasses;
  std::cout << absl::StrFormat(
      "%d layouts of 405B on %d devices: %.3f us each, %.0f a second\n",
      layouts.size(), kNumDevices, 1e6 * least / count, count / least);
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main() {
  const absl::Status status = millrace::Run();
  if (status.ok()) return 0;
  std::cerr << status.message() << "\n";
  return 1;
}

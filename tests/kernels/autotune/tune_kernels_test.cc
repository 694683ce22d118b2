#include "kernels/autotune/tune_kernels.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kernels/autotune/tune_gemm.h"
#include "kernels/tuning/tuning_families.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// All choices of a family.
std::vector<TuningValues> AllChoices(const TuningFamily& family) {
  std::vector<TuningValues> choices = {{}};
  for (size_t knob = 0; knob < family.knobs.size(); ++knob) {
    std::vector<TuningValues> longer;
    for (const TuningValues& choice : choices) {
      for (const int value : family.knobs[knob].values) {
        longer.push_back(choice);
        longer.back()[knob] = value;
      }
    }
    choices = std::move(longer);
  }
  return choices;
}

using Bytes = std::vector<uint8_t>;

int64_t NumBytes(const TuningCase::Output& output) {
  return output.size * (output.is_fp32 ? 4 : 2);
}

std::vector<Bytes> Read(const TuningCase& c) {
  std::vector<Bytes> all;
  for (const TuningCase::Output& output : c.outputs) {
    all.emplace_back(NumBytes(output));
    EXPECT_EQ(cudaMemcpy(all.back().data(), output.data, all.back().size(),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
  }
  return all;
}

void Write(const TuningCase& c, const std::vector<Bytes>& all) {
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(cudaMemcpy(c.outputs[i].data, all[i].data(), all[i].size(),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
}

double At(const Bytes& bytes, int64_t i, bool is_fp32) {
  float value;
  if (is_fp32) {
    std::memcpy(&value, bytes.data() + 4 * i, 4);
  } else {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    value = FromBf16(bits);
  }
  return value;
}

// Norm over norm; NaN if anything was left unwritten.
double Difference(const TuningCase::Output& output, const Bytes& actual,
                  const Bytes& expected) {
  double error = 0.0;
  double norm = 0.0;
  for (int64_t i = 0; i < output.size; ++i) {
    const double a = At(actual, i, output.is_fp32);
    const double e = At(expected, i, output.is_fp32);
    error += (a - e) * (a - e);
    norm += e * e;
  }
  return std::sqrt(error / norm);
}

// The kernels that a launch puts on the device, each with its grid and block.
using Kernels = std::vector<std::tuple<void*, unsigned, unsigned>>;

Kernels Captured(const TuningCase& c, cudaStream_t stream) {
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            cudaSuccess);
  EXPECT_TRUE(c.launch(0, stream).ok());
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  size_t num_nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &num_nodes), cudaSuccess);
  std::vector<cudaGraphNode_t> nodes(num_nodes);
  EXPECT_EQ(cudaGraphGetNodes(graph, nodes.data(), &num_nodes), cudaSuccess);
  Kernels kernels;
  for (const cudaGraphNode_t node : nodes) {
    cudaKernelNodeParams params;
    if (cudaGraphKernelNodeGetParams(node, &params) != cudaSuccess) continue;
    kernels.emplace_back(params.func, params.gridDim.x, params.blockDim.x);
  }
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return kernels;
}

class TunedChoicesTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess) << "needs a GPU";
  }
  void TearDown() override { cudaStreamDestroy(stream_); }
  cudaStream_t stream_ = nullptr;
};

// Goal: every choice that a family offers computes what its start computes, and
// a choice changes what runs. Method: odd shapes, outputs poisoned (but what is
// also an input), norm-wise against the start, whose values other tests hold to
// the references. Results are rounded to bf16 from sums in another order: 2^-9
// where a rounding falls the other way, which is rare; 1e-3 allows for all.
TEST_P(TunedChoicesTest, ComputeTheSame) {
  const auto kernel = static_cast<TunedKernel>(GetParam());
  const TuningFamily& family = FamilyOf(kernel);
  bool varies = false;
  int num_cases = 0;
  for (const TuningCaseMaker& maker : SmallTuningCases()) {
    if (maker.kernel != kernel) continue;
    SCOPED_TRACE(maker.name);
    ++num_cases;
    const absl::StatusOr<TuningCase> c = maker.make();
    ASSERT_TRUE(c.ok()) << c.status();
    std::vector<Bytes> initial = Read(*c);
    for (Bytes& bytes : initial) {
      const bool is_input = std::any_of(bytes.begin(), bytes.end(),
                                        [](uint8_t x) { return x != 0; });
      if (!is_input) std::fill(bytes.begin(), bytes.end(), 0xFF);
    }
    auto run = [&] {
      Write(*c, initial);
      EXPECT_TRUE(c->launch(0, stream_).ok());
      EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      return Read(*c);
    };
    const std::vector<Bytes> expected = run();
    std::set<Kernels> seen = {Captured(*c, stream_)};
    for (const TuningValues& choice : AllChoices(family)) {
      if (!c->applies(choice)) continue;
      const ScopedTuningChoice scope(family, choice);
      SCOPED_TRACE(absl::StrJoin(choice, " "));
      const std::vector<Bytes> actual = run();
      EXPECT_TRUE(scope.asked().has_value());
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_LT(Difference(c->outputs[i], actual[i], expected[i]), 1e-3)
            << c->outputs[i].name;
      }
      seen.insert(Captured(*c, stream_));
    }
    varies |= seen.size() > 1;
  }
  EXPECT_GT(num_cases, 0);
  EXPECT_TRUE(varies) << "every choice launches the same";
}

INSTANTIATE_TEST_SUITE_P(
    Families, TunedChoicesTest,
    testing::Range(0, static_cast<int>(KernelTuningFamilies().size())),
    [](const auto& info) { return KernelTuningFamilies()[info.param].name; });

// Goal: the tuner measures, keeps the start or betters it, and its table
// survives text and decides what runs. Method: small cases of two families.
TEST(TuneKernelsTest, MakesATableThatLaunchersFollow) {
  std::vector<TuningCaseMaker> cases;
  std::map<TunedKernel, int> count;
  for (const TuningCaseMaker& maker : SmallTuningCases()) {
    if (maker.kernel != TunedKernel::kNormForward &&
        maker.kernel != TunedKernel::kSwigluForward) {
      continue;
    }
    if (count[maker.kernel]++ < 3) cases.push_back(maker);
  }
  std::vector<std::string> lines;
  const auto table = TuneKernels(
      cases,
      {.burst_seconds = 1e-4,
       .num_bursts = 3,
       .log = [&](absl::string_view line) { lines.emplace_back(line); }},
      "test", "2026-11-21");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_GE(lines.size(), cases.size());
  EXPECT_FALSE(table->chip.empty());
  ASSERT_GE(table->entries.size(), 2u);
  for (const TuningEntry& entry : table->entries) {
    EXPECT_GT(entry.seconds, 0.0);
    EXPECT_LE(entry.seconds, entry.start_seconds);
  }
  const std::string text = FormatTuningTable(*table, KernelTuningFamilies());
  const auto parsed = ParseTuningTable(text, KernelTuningFamilies());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(FormatTuningTable(*parsed, KernelTuningFamilies()), text);

  // A choice that was not the start's must show in the launch.
  const TuningFamily& family = FamilyOf(TunedKernel::kSwigluForward);
  for (const TuningCaseMaker& maker : cases) {
    if (maker.kernel != TunedKernel::kSwigluForward) continue;
    const absl::StatusOr<TuningCase> c = maker.make();
    ASSERT_TRUE(c.ok()) << c.status();
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    for (const int threads : family.knobs[0].values) {
      TuningTable other = *table;
      for (TuningEntry& entry : other.entries) {
        if (entry.family == family.name) entry.choice = {threads};
      }
      ASSERT_TRUE(
          InstallKernelTuning(FormatTuningTable(other, KernelTuningFamilies()),
                              other.chip)
              .ok());
      EXPECT_EQ(std::get<2>(Captured(*c, stream).at(0)), threads);
    }
    InstallTuning({});
    cudaStreamDestroy(stream);
  }
  EXPECT_FALSE(InstallKernelTuning(text, "another chip").ok());
}

// Goal: the fastest algorithm of a product is found, written and found again.
TEST(TuneGemmsTest, MakesATableThatPlansFollow) {
  const std::vector<GemmBf16Shape> shapes = GemmShapesOfLayer(256, 128, 192);
  ASSERT_EQ(shapes.size(), 3u);
  int num_lines = 0;
  const auto tuned = TuneGemms(shapes, /*max_candidates=*/3,
                               [&](absl::string_view) { ++num_lines; });
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  EXPECT_EQ(num_lines, 3);
  const auto table = GemmAlgorithmTable::Parse(tuned->Format());
  ASSERT_TRUE(table.ok()) << table.status();
  for (const GemmBf16Shape& shape : shapes) {
    std::string ignored;
    const auto algorithm = table->Find(*CurrentChipWord(), shape, &ignored);
    ASSERT_TRUE(algorithm.has_value()) << ignored;
    const auto plan = GemmBf16Plan::Create(shape, {.algorithm = *algorithm});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->algorithm(), *algorithm);
  }
}

}  // namespace
}  // namespace millrace

#include "worker/cuda/ops/kernel_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/gemm/gemm_bf16.h"
#include "worker/cuda/ops/kernel_cache.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr char kDevice[] = "NVIDIA H200";
constexpr char kAlgorithm[] = "wgmma/1/128x256/r4";

// One choice of each kind.
KernelTuning Tuning(const std::string& device) {
  return {.device = device,
          .kernels = {{.family = "swiglu_forward",
                       .shape_class = "cached=1",
                       .choice = "threads=1024",
                       .seconds = 1e-6,
                       .start_seconds = 2e-6}},
          .products = {{.shape = "m16384n6144k4096-tb",
                        .algorithm = kAlgorithm,
                        .seconds = 1e-3}}};
}

int64_t SwigluThreads() {
  return TunedChoice(TunedKernel::kSwigluForward, {1}, {256})[0];
}

std::string ProductOf(const CudaChoices& choices) {
  const GemmBf16Shape shape = {
      .m = 16384, .n = 6144, .k = 4096, .trans_b = true};
  const auto entries = choices.products.EntriesOf("NVIDIA_H200");
  const auto found = entries.find(GemmBf16ShapeWord(shape));
  return found == entries.end() ? "" : found->second.algorithm.text;
}

// Goal: a profile's choices count on the device that they were measured on,
// over the shipped ones, which stand for the rest; on others they change
// nothing. Method: what launchers would be told, with and without.
TEST(CudaTuningTest, ChoosesByTheProfileOfThisDeviceAlone) {
  const auto shipped = ChoicesFor({}, kDevice);
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  const auto tuned = ChoicesFor(Tuning(kDevice), kDevice);
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  const auto foreign = ChoicesFor(Tuning("NVIDIA L4"), kDevice);
  ASSERT_TRUE(foreign.ok()) << foreign.status();

  InstallTuning(shipped->kernels);
  const int64_t shipped_threads = SwigluThreads();
  ASSERT_NE(shipped_threads, 1024);
  InstallTuning(tuned->kernels);
  EXPECT_EQ(SwigluThreads(), 1024);
  EXPECT_EQ(tuned->kernels.entries.size(), shipped->kernels.entries.size() + 1);
  InstallTuning(foreign->kernels);
  EXPECT_EQ(SwigluThreads(), shipped_threads);

  EXPECT_EQ(ProductOf(*tuned), kAlgorithm);
  EXPECT_NE(ProductOf(*shipped), "");
  EXPECT_EQ(ProductOf(*foreign), ProductOf(*shipped));
  EXPECT_EQ(tuned->products.EntriesOf("NVIDIA_H200").size(),
            shipped->products.EntriesOf("NVIDIA_H200").size());

  const auto unknown = ChoicesFor({}, "a GPU nothing is shipped for");
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_TRUE(unknown->kernels.entries.empty());
  InstallTuning({});
}

// Goal: an entry that no kernel understands is named, with what to do.
TEST(CudaTuningTest, NamesEntriesThatItCannotRead) {
  KernelTuning tuning = Tuning(kDevice);
  tuning.kernels[0].choice = "threads=7";
  EXPECT_THAT(std::string(ChoicesFor(tuning, kDevice).status().message()),
              testing::AllOf(HasSubstr("tuning.kernels[0]: threads=7"),
                             HasSubstr("millrace profile --tune")));
  tuning = Tuning(kDevice);
  tuning.products[0].shape = "two words";
  EXPECT_THAT(std::string(ChoicesFor(tuning, kDevice).status().message()),
              HasSubstr("tuning.products[0]"));
  // The tuning of another device is not read.
  EXPECT_TRUE(ChoicesFor(tuning, "NVIDIA L4").ok());
}

}  // namespace
}  // namespace millrace

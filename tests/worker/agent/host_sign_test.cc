#include "worker/agent/host_sign.h"

#include <gtest/gtest.h>

#include "tests/worker/backend/fake_gpus.h"

namespace millrace {
namespace {

TEST(HostSignTest, ReadsWhatTheKernelWrites) {
  EXPECT_DOUBLE_EQ(
      ParsePressure("some avg10=12.50 avg60=1.00 avg300=0.10 total=1\n"
                    "full avg10=3.00 avg60=0.00 avg300=0.00 total=0\n"),
      0.125);
  EXPECT_LT(ParsePressure(""), 0);
  EXPECT_LT(ParsePressure("some avg10=x"), 0);
  EXPECT_DOUBLE_EQ(ParseMegahertz("processor : 0\ncpu MHz\t\t: 2000.0\n"
                                  "processor : 1\ncpu MHz\t\t: 3000.0\n"),
                   2500);
  EXPECT_LT(ParseMegahertz("processor : 0\n"), 0);
  const StolenTime time =
      ParseStolenTime("cpu  10 1 20 60 4 0 1 4 99 0\ncpu0 1 1 1 1\n");
  EXPECT_EQ(time.stolen, 4);
  EXPECT_EQ(time.all, 100);
  EXPECT_EQ(ParseStolenTime("").all, 0);
}

// Goal: on any host a reading ends and its shares are shares, if known.
TEST(HostSignTest, ReadsThisHost) {
  HostSignReader reader;
  reader.Read();
  const HostSign sign = reader.Read();
  EXPECT_LE(sign.steal_share, 1);
  EXPECT_LE(sign.processor_pressure, 1);
  EXPECT_LE(sign.memory_pressure, 1);
  EXPECT_LT(sign.gpu.present, 0) << "no GPU was asked for";
  EXPECT_EQ(reader.gpu_seconds(), 0);
}

// Goal: the sign holds the GPU's values, and they arrive in the message as they
// are, unknown ones too.
TEST(HostSignTest, ReadsTheRanksGpu) {
  FakeGpus gpus;
  gpus.Set(
      "0000:1b:00.0 clock_mhz 345\n0000:1c:00.0 clock_mhz 1980\n"
      "0000:1c:00.0 uncorrected_errors 3\n");
  HostSignReader reader("0000:1c:00.0", FakeGpus::Library());
  HostSign sign;
  while (sign.gpu.present < 0) sign = reader.Read();
  EXPECT_EQ(sign.gpu.clock_mhz, 1980);
  EXPECT_GT(reader.gpu_seconds(), 0);
  protocol::HostSign message;
  ToMessage(sign, &message);
  ASSERT_TRUE(message.has_gpu());
  EXPECT_EQ(message.gpu().present(), 1);
  EXPECT_EQ(message.gpu().clock_mhz(), 1980);
  EXPECT_EQ(message.gpu().uncorrected_errors(), 3);
  EXPECT_EQ(message.gpu().corrected_errors(), -1);
  EXPECT_EQ(message.gpu().pcie_width(), -1);
  message.Clear();
  ToMessage({}, &message);
  EXPECT_FALSE(message.has_gpu());
}

}  // namespace
}  // namespace millrace

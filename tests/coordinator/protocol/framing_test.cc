#include "coordinator/protocol/framing.h"

#include <gtest/gtest.h>

#include <random>

namespace millrace {
namespace {

// Goal: payloads come out as they went in, however the stream is cut. Method:
// many payloads, odd sizes and an empty one, fed in random pieces.
TEST(FramingTest, SurvivesAnyCutting) {
  std::mt19937 random(1);
  std::vector<std::string> payloads;
  std::string stream;
  for (int i = 0; i < 200; ++i) {
    std::string payload(random() % 300, '\0');
    for (char& byte : payload) byte = static_cast<char>(random());
    payloads.push_back(payload);
    stream += EncodeFrame(payload);
  }
  FrameDecoder decoder;
  std::vector<std::string> decoded;
  for (size_t begin = 0; begin < stream.size();) {
    const size_t size =
        std::min<size_t>(1 + random() % 40, stream.size() - begin);
    decoder.Append(absl::string_view(stream).substr(begin, size));
    begin += size;
    while (true) {
      auto next = decoder.Next();
      ASSERT_TRUE(next.ok()) << next.status();
      if (!next->has_value()) break;
      decoded.push_back(**next);
    }
  }
  EXPECT_EQ(decoded, payloads);
}

// Goal: garbage does not make the decoder wait for gigabytes. Method: a length
// just beyond the limit.
TEST(FramingTest, RefusesAnAbsurdLength) {
  FrameDecoder decoder;
  decoder.Append(absl::string_view("\xff\xff\xff\xff", 4));
  EXPECT_EQ(decoder.Next().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace millrace

#include "coordinator/metrics/event_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"

namespace millrace {
namespace {

// A second reading of the format, from its description alone: bit by bit, and
// without the messages' generated code.
uint32_t BitwiseMaskedCrc(absl::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78 : crc >> 1;
    }
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
}

template <typename T>
T ReadRaw(absl::string_view bytes, size_t at) {
  T value;
  EXPECT_LE(at + sizeof(T), bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::vector<std::string> ReadFrames(absl::string_view file) {
  std::vector<std::string> frames;
  size_t at = 0;
  while (at < file.size()) {
    const auto length = ReadRaw<uint64_t>(file, at);
    EXPECT_EQ(ReadRaw<uint32_t>(file, at + 8),
              BitwiseMaskedCrc(file.substr(at, 8)));
    frames.emplace_back(file.substr(at + 12, length));
    EXPECT_EQ(ReadRaw<uint32_t>(file, at + 12 + length),
              BitwiseMaskedCrc(frames.back()));
    at += 12 + length + 4;
  }
  return frames;
}

// The fields of a message by number; each as its bytes, or as its varint.
struct WireField {
  uint64_t number = 0;
  std::string bytes;
};
std::multimap<int, WireField> ReadWire(absl::string_view bytes) {
  std::multimap<int, WireField> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; at < bytes.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes[at++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (at < bytes.size()) {
    const uint64_t key = varint();
    WireField field;
    const uint64_t type = key & 7;
    if (type == 0) {
      field.number = varint();
    } else {
      const uint64_t size = type == 1 ? 8 : type == 5 ? 4 : varint();
      field.bytes = std::string(bytes.substr(at, size));
      at += size;
    }
    fields.emplace(static_cast<int>(key >> 3), field);
  }
  return fields;
}

std::map<std::string, float> ReadScalars(const std::string& event) {
  std::map<std::string, float> scalars;
  const auto fields = ReadWire(event);
  const auto summary = fields.find(5);
  if (summary == fields.end()) return scalars;
  for (const auto& [number, value] : ReadWire(summary->second.bytes)) {
    EXPECT_EQ(number, 1);
    const auto parts = ReadWire(value.bytes);
    scalars[parts.find(1)->second.bytes] =
        ReadRaw<float>(parts.find(2)->second.bytes, 0);
  }
  return scalars;
}

int64_t StepOf(const std::string& event) {
  const auto fields = ReadWire(event);
  const auto step = fields.find(2);
  return step == fields.end() ? 0 : static_cast<int64_t>(step->second.number);
}

// Whether the event is a session's start, which takes back later steps.
bool IsSessionStart(const std::string& event) {
  const auto fields = ReadWire(event);
  const auto log = fields.find(7);
  return log != fields.end() &&
         ReadWire(log->second.bytes).find(1)->second.number == 1;
}

class EventFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        testing::TempDir() + "/millrace-events-" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string OnlyFile() const {
    std::string path;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      EXPECT_TRUE(path.empty());
      path = entry.path().string();
    }
    EXPECT_NE(path.find("/events.out.tfevents."), std::string::npos) << path;
    return path;
  }
  std::vector<std::string> Frames() const {
    return ReadFrames(ReadFile(OnlyFile()).value_or(""));
  }

  static StepRecord Record(int64_t step) {
    return {.generation = 1,
            .step = step,
            .loss = 2.0 / static_cast<double>(step),
            .gradient_norm = 0,
            .learning_rate = 1e-3,
            .tokens = 100,
            .step_time_s = 0.5,
            .predicted_step_time_s = 0.4};
  }

  std::string folder_;
};

// Goal: the checksum of frames is the standard one. Method: the check value of
// CRC-32C, masked by hand.
TEST_F(EventFileTest, MasksTheStandardChecksum) {
  const uint32_t crc = 0xE3069283;
  const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
  const std::string frame = EventFrame("123456789");
  ASSERT_EQ(frame.size(), 8u + 4u + 9u + 4u);
  EXPECT_EQ(ReadRaw<uint64_t>(frame, 0), 9u);
  EXPECT_EQ(ReadRaw<uint32_t>(frame, 21), masked);
}

// Goal: a reader that knows the format alone finds every value, zero and what
// is no number too. Method: three steps, the second with a validation.
TEST_F(EventFileTest, HoldsWhatAStepMeasured) {
  auto file = EventFile::Open(folder_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Add(Record(1), 1000.5).ok());
  StepRecord second = Record(2);
  second.validation_loss = 3.5;
  second.evaluation["held_out"] = 0;
  ASSERT_TRUE(file->Add(second, 1001.5).ok());
  StepRecord third = Record(3);
  third.loss = std::numeric_limits<double>::quiet_NaN();
  ASSERT_TRUE(file->Add(third, 1002.5).ok());

  const std::vector<std::string> frames = Frames();
  ASSERT_EQ(frames.size(), 5u);
  EXPECT_EQ(ReadWire(frames[0]).find(3)->second.bytes, "brain.Event:2");
  EXPECT_TRUE(IsSessionStart(frames[1]));
  EXPECT_EQ(StepOf(frames[2]), 1);
  EXPECT_EQ(ReadRaw<double>(ReadWire(frames[2]).find(1)->second.bytes, 0),
            1000.5);
  const std::map<std::string, float> expected = {
      {"train/loss", 2.0F},           {"train/gradient_norm", 0.0F},
      {"train/learning_rate", 1e-3F}, {"speed/tokens_per_second", 200.0F},
      {"speed/step_seconds", 0.5F},   {"speed/predicted_step_seconds", 0.4F}};
  EXPECT_EQ(ReadScalars(frames[2]), expected);
  EXPECT_EQ(ReadScalars(frames[3])["validation/loss"], 3.5F);
  EXPECT_EQ(ReadScalars(frames[3])["evaluation/held_out/perplexity"], 1.0F);
  EXPECT_TRUE(std::isnan(ReadScalars(frames[4])["train/loss"]));
}

// Goal: steps that run again after a recovery take the place of the first
// attempt's. Method: after step 5 comes step 4; the reader is told to forget
// step 4 and later first.
TEST_F(EventFileTest, TakesBackRepeatedSteps) {
  auto file = EventFile::Open(folder_);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const int64_t step : {4, 5, 4, 5}) {
    ASSERT_TRUE(file->Add(Record(step), 1000).ok());
  }
  std::vector<std::pair<int64_t, bool>> events;  // Step, whether a start.
  const std::vector<std::string> frames = Frames();
  for (size_t i = 1; i < frames.size(); ++i) {
    events.emplace_back(StepOf(frames[i]), IsSessionStart(frames[i]));
  }
  const std::vector<std::pair<int64_t, bool>> expected = {
      {4, true}, {4, false}, {5, false}, {4, true}, {4, false}, {5, false}};
  EXPECT_EQ(events, expected);
}

}  // namespace
}  // namespace millrace

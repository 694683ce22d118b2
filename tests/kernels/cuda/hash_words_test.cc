#include "kernels/cuda/hash_words.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

uint64_t HashOnHost(const std::vector<uint32_t>& words, uint64_t first_place) {
  uint64_t sum = 0;
  for (size_t w = 0; w < words.size(); w += 2) {
    const uint64_t high = w + 1 < words.size() ? words[w + 1] : 0;
    sum += HashWord(first_place + w / 2, words[w] | high << 32);
  }
  return sum;
}

uint64_t HashOnDevice(const DeviceBuffer<uint32_t>& words, int64_t count,
                      uint64_t first_place, uint64_t before) {
  DeviceBuffer<uint64_t> sum = ToDevice(std::vector<uint64_t>{before});
  const absl::Status status = LaunchHashWords({.data = words.data(),
                                               .num_bytes = count * 4,
                                               .first_place = first_place,
                                               .sum = sum.data()},
                                              nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return ToHost(sum)[0];
}

// Goal: the device's hash is that of the host's loop over the words, for any
// number of them, and adds to what is there. Method: random words behind whose
// end lie others that would change it.
TEST(HashWordsTest, IsTheSumOfItsWords) {
  std::mt19937 random(std::random_device{}());
  for (const int64_t count :
       {0, 1, 2, 3, 4, 5, 7, 4095, 4096, 4097, 16387, 33'554'433}) {
    SCOPED_TRACE(absl::StrCat(count, " words"));
    std::vector<uint32_t> words(static_cast<size_t>(count) + 3);
    for (uint32_t& word : words) word = random();
    const DeviceBuffer<uint32_t> device = ToDevice(words);
    words.resize(static_cast<size_t>(count));
    const uint64_t place = random();
    const uint64_t before = uint64_t{random()} << 32 | random();
    EXPECT_EQ(HashOnDevice(device, count, place, before),
              before + HashOnHost(words, place));
  }
}

// Goal: one bit that flips changes the hash, and so do two words that change
// places. Method: bits and words at random places.
TEST(HashWordsTest, SeesEveryChange) {
  std::mt19937 random(std::random_device{}());
  std::vector<uint32_t> words(100'003);
  for (uint32_t& word : words) word = random();
  const auto count = static_cast<int64_t>(words.size());
  const uint64_t hash = HashOnDevice(ToDevice(words), count, 0, 0);
  EXPECT_EQ(HashOnDevice(ToDevice(words), count, 0, 0), hash);
  EXPECT_NE(HashOnDevice(ToDevice(words), count, 1, 0), hash);
  for (int i = 0; i < 100; ++i) {
    std::vector<uint32_t> changed = words;
    changed[random() % words.size()] ^= uint32_t{1} << random() % 32;
    EXPECT_NE(HashOnDevice(ToDevice(changed), count, 0, 0), hash);
    changed = words;
    const size_t one = random() % words.size();
    const size_t other = random() % words.size();
    if (words[one] == words[other]) continue;
    std::swap(changed[one], changed[other]);
    EXPECT_NE(HashOnDevice(ToDevice(changed), count, 0, 0), hash);
  }
}

// Goal: memory that a 16-byte load cannot read is refused.
TEST(HashWordsTest, RefusesOddMemory) {
  const DeviceBuffer<uint32_t> words = ToDevice(std::vector<uint32_t>(8));
  DeviceBuffer<uint64_t> sum = ToDevice(std::vector<uint64_t>{0});
  EXPECT_FALSE(LaunchHashWords({.data = words.data() + 1,
                                .num_bytes = 16,
                                .first_place = 0,
                                .sum = sum.data()},
                               nullptr)
                   .ok());
  EXPECT_FALSE(LaunchHashWords({.data = words.data(),
                                .num_bytes = 6,
                                .first_place = 0,
                                .sum = sum.data()},
                               nullptr)
                   .ok());
}

}  // namespace
}  // namespace millrace

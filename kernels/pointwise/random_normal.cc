#include "kernels/pointwise/random_normal.h"

#include <cmath>
#include <numbers>

namespace millrace {
namespace {

// Four normals from four words. The radius never takes the logarithm of zero.
std::array<double, 4> Normals(const std::array<uint32_t, 4>& words) {
  constexpr double kUnit = 1.0 / 4294967296.0;  // 2^-32.
  std::array<double, 4> normals;
  for (int pair = 0; pair < 2; ++pair) {
    const double radius =
        std::sqrt(-2.0 * std::log((words[2 * pair] + 0.5) * kUnit));
    const double angle = 2.0 * std::numbers::pi * words[2 * pair + 1] * kUnit;
    normals[2 * pair] = radius * std::cos(angle);
    normals[2 * pair + 1] = radius * std::sin(angle);
  }
  return normals;
}

uint32_t LowWord(uint64_t x) { return static_cast<uint32_t>(x); }
uint32_t HighWord(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;  // The golden ratio.
  constexpr uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1.
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {HighWord(product1) ^ counter[1] ^ key[0], LowWord(product1),
               HighWord(product0) ^ counter[3] ^ key[1], LowWord(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

void FillNormal(const FillNormalArgs& args) {
  const std::array<uint32_t, 2> key = {LowWord(args.seed), HighWord(args.seed)};
  int64_t filled = 0;
  while (filled < args.count) {
    const uint64_t index = args.first_index + static_cast<uint64_t>(filled);
    const uint64_t block = index / 4;
    const std::array<double, 4> normals =
        Normals(Philox4x32({LowWord(block), HighWord(block),
                            LowWord(args.stream), HighWord(args.stream)},
                           key));
    for (uint64_t i = index % 4; i < 4 && filled < args.count; ++i) {
      args.out[filled++] = static_cast<float>(args.std * normals[i]);
    }
  }
}

}  // namespace millrace

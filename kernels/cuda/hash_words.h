// A hash of device memory that two devices compute alike, by which replicas are
// compared.

#ifndef MILLRACE_KERNELS_CUDA_HASH_WORDS_H_
#define MILLRACE_KERNELS_CUDA_HASH_WORDS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

#if defined(__CUDACC__)
#define MILLRACE_HOST_DEVICE __host__ __device__
#else
#define MILLRACE_HOST_DEVICE
#endif

namespace millrace {

// The hash of one word at a place: a bijection of `word` for every place, and
// the other way round. The finalizer of SplitMix64 (Steele, Lea and Flood,
// 2014) of the two.
MILLRACE_HOST_DEVICE constexpr uint64_t HashWord(uint64_t place,
                                                 uint64_t word) {
  uint64_t x = word ^ place * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct HashWordsArgs {
  const void* data;   // On the device, at a multiple of 16 bytes.
  int64_t num_bytes;  // A multiple of 4.
  // Words of 8 bytes that were hashed before these: the place of the first.
  uint64_t first_place;
  uint64_t* sum;  // On the device.
};

// Adds to *sum, modulo 2^64, HashWord() of each word of 8 bytes; where 4 bytes
// are left, zeros complete the last. One changed word always changes the sum.
// Enqueues on `stream`; limited by memory bandwidth.
absl::Status LaunchHashWords(const HashWordsArgs& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_HASH_WORDS_H_

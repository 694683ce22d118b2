#include "worker/train/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/units.h"

namespace millrace {
namespace {

constexpr int64_t kHugePageBytes = 2 * kMiB;

}  // namespace

absl::StatusOr<MemoryBlock> MemoryBlock::AllocateUntouched(int64_t num_bytes) {
  CHECK(num_bytes >= 0);
  // Large blocks start on a huge page: a step walks all of them, and misses the
  // address cache far less with 2 MiB pages.
  const int64_t alignment =
      num_bytes >= kHugePageBytes ? kHugePageBytes : kArenaAlignment;
  const int64_t reserved = std::max(alignment, RoundUp(num_bytes, alignment));
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment, reserved));
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for an arena of ", FormatBytes(num_bytes)));
  }
  if (alignment == kHugePageBytes) madvise(data, reserved, MADV_HUGEPAGE);
  return MemoryBlock(data, num_bytes);
}

absl::StatusOr<MemoryBlock> MemoryBlock::Allocate(int64_t num_bytes) {
  absl::StatusOr<MemoryBlock> block = AllocateUntouched(num_bytes);
  // Touches every page now, so that no step pays for it.
  if (block.ok()) std::memset(block->data(), 0, static_cast<size_t>(num_bytes));
  return block;
}

void MemoryBlock::Free::operator()(std::byte* data) const { std::free(data); }

std::byte* Arenas::At(const Buffer& buffer) const {
  const MemoryBlock& block =
      buffer.arena == Arena::kPersistent ? persistent : step;
  CHECK(buffer.offset_bytes >= 0) << buffer.name;
  CHECK(buffer.offset_bytes + buffer.bytes <= block.bytes()) << buffer.name;
  return block.data() + buffer.offset_bytes;
}

}  // namespace millrace

#include "worker/train/moment_copies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "worker/train/initialize.h"

namespace millrace {
namespace {

static_assert(kMomentBlock == kMomentBlockSize);

// What one thread converts at a time: whole blocks.
constexpr int64_t kMomentsAtOnce = int64_t{1} << 22;
static_assert(kMomentsAtOnce % kMomentBlockSize == 0);

// The byte where number `begin` of stored moments lies; of a block, its first.
int64_t StoredOffsetOf(MomentStorage storage, int64_t begin) {
  switch (storage) {
    case MomentStorage::kFloat32:
      return begin * static_cast<int64_t>(sizeof(float));
    case MomentStorage::kBf16:
      return begin * static_cast<int64_t>(sizeof(uint16_t));
    case MomentStorage::kBlocks8:
      return begin / kMomentBlockSize *
             static_cast<int64_t>(sizeof(MomentBlock));
  }
  return 0;
}

// Calls convert(moment, begin, end) for all parts of both moments.
template <typename Convert>
absl::Status ForEachPart(int64_t num_elements, const Convert& convert) {
  const int64_t num_parts =
      (num_elements + kMomentsAtOnce - 1) / kMomentsAtOnce;
  return ParallelFor(2 * num_parts, NumCopyThreads(), [&](int64_t i) {
    const int64_t begin = i / 2 * kMomentsAtOnce;
    convert(i % 2 == 0 ? Moment::kFirst : Moment::kSecond, begin,
            std::min(num_elements, begin + kMomentsAtOnce));
    return absl::OkStatus();
  });
}

}  // namespace

MomentStorage StorageOf(MomentFormat format) {
  switch (format) {
    case MomentFormat::kFloat32:
      return MomentStorage::kFloat32;
    case MomentFormat::kBfloat16:
      return MomentStorage::kBf16;
    case MomentFormat::kBlocks8:
      return MomentStorage::kBlocks8;
  }
  CHECK(false) << "unknown format of moments " << static_cast<int>(format);
  return MomentStorage::kFloat32;
}

uint64_t RoundingSeed(uint64_t seed, const std::string& name) {
  return ParameterStream(absl::StrCat(name, " of seed ", seed));
}

MomentCopies::MomentCopies(const Program& program)
    : storage_(StorageOf(program.layout.moments)),
      num_elements_(program.parameters.num_optimizer_elements) {}

absl::Status MomentCopies::Allocate() {
  CHECK(are_needed());
  if (copies_.size() == 2) return absl::OkStatus();
  while (copies_.size() < 2) {
    ASSIGN_OR_RETURN(MemoryBlock block,
                     MemoryBlock::AllocateUntouched(
                         num_elements_ * static_cast<int64_t>(sizeof(float))));
    copies_.push_back(std::move(block));
  }
  return ForEachPart(
      num_elements_, [&](Moment moment, int64_t begin, int64_t end) {
        std::fill(FloatsOf(moment) + begin, FloatsOf(moment) + end, 0.0f);
      });
}

absl::Status MomentCopies::Read(const std::byte* exp_avg,
                                const std::byte* exp_avg_sq) {
  RETURN_IF_ERROR(Allocate());
  return ForEachPart(num_elements_, [&](Moment moment, int64_t begin,
                                        int64_t end) {
    const std::byte* stored = moment == Moment::kFirst ? exp_avg : exp_avg_sq;
    DecodeMoments(storage_, moment, stored, begin, end,
                  FloatsOf(moment) + begin);
  });
}

absl::Status MomentCopies::Write(std::byte* exp_avg,
                                 std::byte* exp_avg_sq) const {
  return ForEachPart(
      num_elements_, [&](Moment moment, int64_t begin, int64_t end) {
        std::byte* stored = moment == Moment::kFirst ? exp_avg : exp_avg_sq;
        EncodeMoments(storage_, moment, FloatsOf(moment) + begin, end - begin,
                      stored + StoredOffsetOf(storage_, begin));
      });
}

float* MomentCopies::FloatsOf(Moment moment) const {
  return reinterpret_cast<float*>(
      copies_.at(static_cast<size_t>(moment)).data());
}

}  // namespace millrace

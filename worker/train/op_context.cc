#include "worker/train/op_context.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "worker/train/rope_frequencies.h"

namespace millrace {

absl::StatusOr<GemmPlan*> KernelCache::Gemm(const GemmAttributes& attributes) {
  const GemmKey key(attributes.m, attributes.n, attributes.k,
                    attributes.trans_a, attributes.trans_b,
                    attributes.accumulate);
  auto found = gemms_.find(key);
  if (found == gemms_.end()) {
    ASSIGN_OR_RETURN(GemmPlan plan,
                     GemmPlan::Create({.m = attributes.m,
                                       .n = attributes.n,
                                       .k = attributes.k,
                                       .trans_a = attributes.trans_a,
                                       .trans_b = attributes.trans_b,
                                       .accumulate = attributes.accumulate},
                                      num_threads_));
    scratch_bytes_ = std::max(scratch_bytes_, plan.workspace_bytes());
    found = gemms_.emplace(key, std::move(plan)).first;
  }
  return &found->second;
}

absl::StatusOr<CrossEntropyPlan*> KernelCache::CrossEntropy(
    const VocabAttributes& attributes, int64_t vocab_begin) {
  const CrossEntropyKey key(
      attributes.num_tokens, attributes.hidden, attributes.vocab_rows,
      vocab_begin, attributes.chunk_tokens, attributes.token_scale,
      attributes.loss_share, attributes.accumulate, attributes.softcap);
  auto found = cross_entropies_.find(key);
  if (found == cross_entropies_.end()) {
    ASSIGN_OR_RETURN(
        CrossEntropyPlan plan,
        CrossEntropyPlan::Create({.num_tokens = attributes.num_tokens,
                                  .hidden = attributes.hidden,
                                  .vocab_rows = attributes.vocab_rows,
                                  .vocab_begin = vocab_begin,
                                  .chunk_tokens = attributes.chunk_tokens,
                                  .token_scale = attributes.token_scale,
                                  .loss_share = attributes.loss_share,
                                  .accumulate = attributes.accumulate,
                                  .softcap = attributes.softcap},
                                 num_threads_));
    scratch_bytes_ = std::max(scratch_bytes_, plan.workspace_bytes());
    found = cross_entropies_.emplace(key, std::move(plan)).first;
  }
  return &found->second;
}

absl::StatusOr<const float*> KernelCache::RopeTable(
    const AttentionAttributes& attributes) {
  const RopeKey key = RopeKeyOf(attributes);
  auto found = rope_tables_.find(key);
  if (found == rope_tables_.end()) {
    ASSIGN_OR_RETURN(MemoryBlock table,
                     MemoryBlock::Allocate(RopeBytesOf(attributes)));
    RETURN_IF_ERROR(FillRopeTableOf(attributes, rope_factors_,
                                    reinterpret_cast<float*>(table.data())));
    found = rope_tables_.emplace(key, std::move(table)).first;
  }
  return reinterpret_cast<const float*>(found->second.data());
}

void KernelCache::ReserveScratch(int64_t bytes) {
  scratch_bytes_ = std::max(scratch_bytes_, bytes);
}

absl::Status KernelCache::AllocateScratch() {
  ASSIGN_OR_RETURN(MemoryBlock scratch, MemoryBlock::Allocate(scratch_bytes_));
  scratch_ = std::make_unique<MemoryBlock>(std::move(scratch));
  return absl::OkStatus();
}

int64_t KernelCache::bytes() const {
  int64_t bytes = scratch_ ? scratch_->bytes() : 0;
  for (const auto& [key, table] : rope_tables_) bytes += table.bytes();
  return bytes;
}

}  // namespace millrace

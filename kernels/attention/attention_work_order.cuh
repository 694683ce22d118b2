// The order in which the blocks of a grid take their work.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_WORK_ORDER_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_WORK_ORDER_CUH_

#include <cstdint>

namespace millrace {

// The order of work: sections of heads whose operands fit the L2 cache
// together; in a section the longest blocks first, so that the last to start
// are short.
struct WorkOrder {
  int num_blocks;  // A head.
  int heads_per_section;
  bool last_first;
};

// `num_bytes` of operands a head.
inline WorkOrder OrderWork(int64_t num_heads, int num_blocks, bool last_first,
                           int64_t num_bytes) {
  constexpr int64_t kCacheBytes = int64_t{32} << 20;
  int heads = 1;
  while (2 * heads * num_bytes <= kCacheBytes && num_heads % (2 * heads) == 0) {
    heads *= 2;
  }
  return {num_blocks, heads, last_first};
}

struct WorkItem {
  int block, head;
};

__device__ __forceinline__ WorkItem WorkAt(const WorkOrder& order, int idx) {
  const int items_per_section = order.heads_per_section * order.num_blocks;
  const int section = idx / items_per_section;
  const int in_section = idx - section * items_per_section;
  const int position = in_section / order.heads_per_section;
  return {order.last_first ? order.num_blocks - 1 - position : position,
          section * order.heads_per_section + in_section -
              position * order.heads_per_section};
}

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_WORK_ORDER_CUH_

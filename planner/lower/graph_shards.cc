#include "planner/lower/graph_shards.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {
namespace {

// The bucket of which `tensor` is a part, -1 if of none.
int32_t BucketOf(const Graph& graph, const std::vector<TensorId>& whole_buckets,
                 TensorId tensor) {
  const TensorId parent = graph.tensors[tensor].parent;
  if (parent < 0) return -1;
  const auto found =
      std::find(whole_buckets.begin(), whole_buckets.end(), parent);
  return found == whole_buckets.end()
             ? -1
             : static_cast<int32_t>(found - whole_buckets.begin());
}

// Positions in a pass of the first and the last op that reads a bucket.
struct Uses {
  int32_t bucket;
  size_t first;
  size_t last;
};

// By first use.
std::vector<Uses> FindUses(const Graph& graph,
                           const std::vector<TensorId>& whole_buckets,
                           const std::vector<GraphOp>& pass) {
  std::vector<Uses> all;
  for (size_t i = 0; i < pass.size(); ++i) {
    for (const TensorId input : pass[i].inputs) {
      const int32_t bucket = BucketOf(graph, whole_buckets, input);
      if (bucket < 0) continue;
      const auto found =
          std::find_if(all.begin(), all.end(),
                       [&](const Uses& uses) { return uses.bucket == bucket; });
      if (found == all.end()) {
        all.push_back({.bucket = bucket, .first = i, .last = i});
      } else {
        found->last = i;
      }
    }
  }
  return all;
}

GraphOp Gather(const GraphBuilder& builder, int32_t bucket, TensorId whole) {
  const Bucket& gathered = builder.graph().parameters.buckets[bucket];
  return {
      .kind = OpKind::kAllGather,
      .phase = Phase::kParameterGather,
      .name = absl::StrCat("gather_parameters/", gathered.name),
      .attributes =
          CollectiveAttributes{.group = ShardGroup(builder.layout()),
                               .num_elements = gathered.num_elements,
                               .dtype = builder.graph().tensors[whole].dtype},
      .inputs = {builder.bucket_tensors()[bucket].parameters},
      .outputs = {whole},
      .gathers_bucket = bucket};
}

// Puts each op before the position it is given for.
void Insert(std::multimap<size_t, GraphOp> ops, std::vector<GraphOp>* pass) {
  std::vector<GraphOp> merged;
  merged.reserve(pass->size() + ops.size());
  auto next = ops.begin();
  for (size_t i = 0; i < pass->size(); ++i) {
    for (; next != ops.end() && next->first == i; ++next) {
      merged.push_back(std::move(next->second));
    }
    merged.push_back(std::move((*pass)[i]));
  }
  *pass = std::move(merged);
}

}  // namespace

void InsertParameterGathers(GraphBuilder& builder,
                            const std::vector<TensorId>& whole_buckets,
                            std::vector<GraphOp>* pass) {
  if (!builder.layout().shards_parameters()) return;
  const Graph& graph = builder.graph();
  std::vector<Uses> uses = FindUses(graph, whole_buckets, *pass);
  const auto others =
      std::stable_partition(uses.begin(), uses.end(), [&](const Uses& use) {
        return graph.parameters.buckets[use.bucket].is_read_all_along;
      });
  // The next pass's first two take the places of this pass's last two.
  int32_t num_ahead = 2;
  for (auto use = uses.end(); use != others && num_ahead > 0; --num_ahead) {
    (*pass)[(--use)->last].num_gathers_ahead = num_ahead;
  }
  std::multimap<size_t, GraphOp> gathers;
  for (auto use = uses.begin(); use != uses.end(); ++use) {
    // Bucket i takes the place of bucket i - 2.
    const size_t position = use < others + 2 ? 0 : std::prev(use, 2)->last + 1;
    CHECK(position <= use->first) << graph.parameters.buckets[use->bucket].name;
    gathers.emplace(position,
                    Gather(builder, use->bucket, whole_buckets[use->bucket]));
  }
  Insert(std::move(gathers), pass);
}

void InsertGradientZeroing(GraphBuilder& builder, std::vector<GraphOp>* pass) {
  if (!builder.layout().shards_gradients()) return;
  const Graph& graph = builder.graph();
  const std::vector<TensorId>& whole_buckets = graph.sharded.gradients;
  std::vector<bool> seen(whole_buckets.size());
  std::multimap<size_t, GraphOp> zeroes;
  for (size_t i = 0; i < pass->size(); ++i) {
    for (const TensorId output : (*pass)[i].outputs) {
      const int32_t idx = BucketOf(graph, whole_buckets, output);
      if (idx < 0 || seen[idx]) continue;
      seen[idx] = true;
      const Bucket& bucket = graph.parameters.buckets[idx];
      if (!HasPadding(graph.parameters, bucket)) continue;
      zeroes.emplace(
          i, GraphOp{.kind = OpKind::kZero,
                     .phase = Phase::kWeightGradient,
                     .name = absl::StrCat("zero_gradients/", bucket.name),
                     .attributes =
                         ElementwiseAttributes{.rows = 1,
                                               .cols = bucket.num_elements},
                     .outputs = {whole_buckets[idx]}});
    }
  }
  Insert(std::move(zeroes), pass);
}

}  // namespace millrace

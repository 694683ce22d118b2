#include "planner/learn/profile_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "planner/cost/op_cost.h"
#include "planner/job/layout_space.h"
#include "planner/lower/graph.h"
#include "planner/profile/op_shape.h"
#include "planner/program/copy_engines.h"
#include "planner/program/op_table.h"
#include "planner/program/op_work.h"

namespace millrace {
namespace {

template <typename Row>
std::vector<Row> SpreadEvenly(const std::vector<Row>& sorted, size_t count) {
  if (sorted.size() <= count) return sorted;
  std::vector<Row> chosen;
  for (size_t i = 0; i < count; ++i) {
    chosen.push_back(sorted[i * (sorted.size() - 1) / (count - 1)]);
  }
  return chosen;
}

// A shape as the cost model sees it. Close points run at similar rates.
struct Shape {
  const ProfileOp* op;
  double flops;
  std::vector<double> point;
};

std::vector<double> PointOf(const ProfileOp& op) {
  const auto log = [](int64_t size) {
    return std::log(static_cast<double>(size));
  };
  if (const auto* a = std::get_if<GemmAttributes>(&op.attributes)) {
    // Another transpose is another kernel, so it is further away than any size.
    return {log(a->m), log(a->n), log(a->k), a->trans_a ? 100.0 : 0.0,
            a->trans_b ? 100.0 : 0.0};
  }
  if (const auto* a = std::get_if<AttentionAttributes>(&op.attributes)) {
    return {log(a->num_sequences * a->num_heads), log(a->sequence_length),
            log(a->head_dim),
            std::log(WindowShare(a->window, a->sequence_length))};
  }
  const auto& a = std::get<VocabAttributes>(op.attributes);
  return {log(a.num_tokens), log(a.hidden), log(a.vocab_rows)};
}

double SquaredDistance(const Shape& a, const Shape& b) {
  double sum = 0;
  for (size_t i = 0; i < a.point.size(); ++i) {
    sum += (a.point[i] - b.point[i]) * (a.point[i] - b.point[i]);
  }
  return sum;
}

// Chooses shapes so that none is far from a chosen one. It starts with the
// smallest, which always fits, and then repeatedly takes the shape that is
// furthest from all chosen ones (Gonzalez 1985) and still fits the budget.
std::vector<const ProfileOp*> Cover(std::span<const Shape> shapes,
                                    double flops_budget, size_t max_shapes) {
  std::vector<double> distance(shapes.size(),
                               std::numeric_limits<double>::infinity());
  std::vector<const ProfileOp*> chosen;
  size_t next =
      static_cast<size_t>(std::min_element(shapes.begin(), shapes.end(),
                                           [](const Shape& a, const Shape& b) {
                                             return a.flops < b.flops;
                                           }) -
                          shapes.begin());
  // All large ops run at one rate, which extrapolates well. So no single op may
  // use up the budget of many small ones.
  const double flops_limit = flops_budget / 8;
  while (next < shapes.size() && chosen.size() < max_shapes) {
    chosen.push_back(shapes[next].op);
    flops_budget -= shapes[next].flops;
    const Shape& newest = shapes[next];
    next = shapes.size();
    for (size_t i = 0; i < shapes.size(); ++i) {
      distance[i] = std::min(distance[i], SquaredDistance(shapes[i], newest));
      if (distance[i] == 0 ||
          shapes[i].flops > std::min(flops_budget, flops_limit)) {
        continue;
      }
      if (next == shapes.size() || distance[i] > distance[next]) next = i;
    }
  }
  return chosen;
}

// Collects every distinct instruction of all layouts by its table.
class Collector {
 public:
  explicit Collector(int32_t ranks_per_host)
      : ranks_per_host_(ranks_per_host) {}

  void Add(const Layout& layout, const GraphOp& op) {
    const OpWork work = WorkOf(layout, op.kind, op.attributes);
    if (Describe(op.kind).profile == ProfileTable::kCommunication) {
      AddCommunication(layout, op, static_cast<int64_t>(work.bytes));
      return;
    }
    ProfileOp measured = AsMeasured(op.kind, op.attributes, layout.micro_batch);
    const std::string shape = AttributesToString(measured.attributes);
    // kSquaredNorm and kAdamW work on a slice under ZeRO 1, so the bytes
    // identify the row.
    if (auto* optimizer =
            std::get_if<OptimizerAttributes>(&measured.attributes)) {
      const OpWork of_one =
          WorkOf(layout, op.kind, OptimizerAttributes{.num_elements = 1});
      optimizer->num_elements = static_cast<int64_t>(work.bytes / of_one.bytes);
      optimizer->data_sharded = optimizer->in_float8 = false;
    }
    if (auto* weights =
            std::get_if<WeightBucketAttributes>(&measured.attributes)) {
      const OpWork of_one =
          WorkOf(layout, op.kind, WeightBucketAttributes{.num_elements = 1});
      *weights = {.num_elements =
                      static_cast<int64_t>(work.bytes / of_one.bytes)};
    }
    if (Describe(op.kind).profile == ProfileTable::kBandwidth) {
      if (work.bytes > 0) {
        bandwidth_[op.kind].emplace(static_cast<int64_t>(work.bytes),
                                    std::move(measured));
      }
    } else {
      const double flops = WorkOf(layout, op.kind, measured.attributes).flops;
      arithmetic_.emplace(std::make_tuple(op.kind, flops, shape),
                          std::move(measured));
    }
  }

  ProfileRequest Finish(const ProfileBudget& budget) const {
    ProfileRequest request;
    AddArithmetic(budget, &request);
    for (const auto& [kind, by_bytes] : bandwidth_) {
      std::vector<ProfileOp> sorted;
      for (const auto& [bytes, op] : by_bytes) sorted.push_back(op);
      for (ProfileOp& op : SpreadEvenly(sorted, budget.sizes_per_kind)) {
        request.ops.push_back(std::move(op));
      }
    }
    AddCommunication(communication_, budget.sizes_per_kind, false, &request);
    if (budget.copy_engines) {
      AddCommunication(copies_, budget.sizes_per_kind, true, &request);
    }
    return request;
  }

 private:
  struct GroupKey {
    OpKind kind;
    int32_t group_size;
    int64_t hosts = 1;
    int64_t pairs = 1;
    auto operator<=>(const GroupKey&) const = default;
  };
  struct Sizes {
    int32_t stride = 1;  // The smallest with which a group is on the hosts.
    std::set<int64_t> bytes;
  };
  using SizesByGroup = std::map<GroupKey, Sizes>;

  void AddCommunication(const Layout& layout, const GraphOp& op,
                        int64_t bytes) {
    if (IsTransfer(op.kind)) {
      // A pipeline may have transfers within hosts and between them.
      for (int32_t stage = 0; stage + 1 < layout.pipeline; ++stage) {
        const int64_t hosts = HostsOfTransfer(layout, stage, ranks_per_host_);
        // GPUs can measure numbers that divide a host's.
        const int64_t pairs =
            hosts > 1 ? std::gcd(PairsBetweenHosts(layout, ranks_per_host_),
                                 int64_t{ranks_per_host_})
                      : 1;
        AddGroup(layout, op, {OpKind::kSend, 2, hosts, pairs}, pairs, bytes);
      }
      return;
    }
    const Group group = std::get<CollectiveAttributes>(op.attributes).group;
    AddGroup(layout, op,
             {op.kind, GroupSize(layout, group),
              HostsOf(layout, group, ranks_per_host_)},
             GroupStride(layout, group), bytes);
  }

  // `stride` is that of a group on several hosts.
  void AddGroup(const Layout& layout, const GraphOp& op, const GroupKey& key,
                int64_t stride, int64_t bytes) {
    const auto insert = [&](SizesByGroup& into) {
      const auto [sizes, is_new] = into.try_emplace(key);
      if (key.hosts > 1) {
        sizes->second.stride = static_cast<int32_t>(
            is_new ? stride : std::min<int64_t>(sizes->second.stride, stride));
      }
      sizes->second.bytes.insert(bytes);
    };
    insert(communication_);
    Layout by_copy_engines = layout;
    by_copy_engines.copy_engines = CopyEngineUseOf(layout);
    if (key.hosts == 1 &&
        CopyEnginesCarry(by_copy_engines, op.kind, op.attributes)) {
      insert(copies_);
    }
  }

  void AddCommunication(const SizesByGroup& sizes_by_group, size_t count,
                        bool by_copy_engines, ProfileRequest* request) const {
    for (const auto& [key, sizes] : sizes_by_group) {
      const std::vector<int64_t> sorted(sizes.bytes.begin(), sizes.bytes.end());
      const int32_t from_host_of =
          key.kind == OpKind::kSend && key.hosts > 1 ? ranks_per_host_ : 0;
      for (const int64_t bytes : SpreadEvenly(sorted, count)) {
        request->communication.push_back({.kind = key.kind,
                                          .group_size = key.group_size,
                                          .stride = sizes.stride,
                                          .from_host_of = from_host_of,
                                          .bytes = bytes,
                                          .by_copy_engines = by_copy_engines});
      }
    }
  }

  void AddArithmetic(const ProfileBudget& budget,
                     ProfileRequest* request) const {
    std::map<OpKind, std::vector<Shape>> by_kind;
    double total_flops = 0;
    for (const auto& [key, op] : arithmetic_) {
      by_kind[op.kind].push_back(
          {.op = &op, .flops = std::get<1>(key), .point = PointOf(op)});
      total_flops += std::get<1>(key);
    }
    for (const auto& [kind, shapes] : by_kind) {
      double flops = 0;
      for (const Shape& shape : shapes) flops += shape.flops;
      const double share = std::max(flops / total_flops, 0.1);
      for (const ProfileOp* op :
           Cover(shapes, budget.flops * share, budget.shapes_per_kind)) {
        request->ops.push_back(*op);
      }
    }
  }

  std::map<std::tuple<OpKind, double, std::string>, ProfileOp> arithmetic_;
  std::map<OpKind, std::map<int64_t, ProfileOp>> bandwidth_;
  int32_t ranks_per_host_;
  SizesByGroup communication_;
  SizesByGroup copies_;
};

void CollectLayout(const ModelSpec& model, const Layout& layout,
                   Collector* collector) {
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    for (const Graph& graph : {BuildTrainingGraph(model, layout, stage),
                               BuildValidationGraph(model, layout, stage)}) {
      for (const auto* ops : {&graph.prologue, &graph.forward, &graph.backward,
                              &graph.epilogue}) {
        for (const GraphOp& op : *ops) collector->Add(layout, op);
      }
      for (const std::vector<GraphOp>& ops : graph.reduce_by_bucket) {
        for (const GraphOp& op : ops) collector->Add(layout, op);
      }
    }
  }
}

}  // namespace

std::vector<Rank> MembersOf(const ProfileCommunication& what, Rank rank,
                            int32_t num_ranks) {
  const int32_t block = what.group_size * what.stride;
  const int32_t hosts_apart = 2 * what.from_host_of;
  const int32_t period = std::max(block, hosts_apart);
  // Where the block begins in its period.
  const int32_t begin = hosts_apart > 0 ? what.from_host_of - what.stride : 0;
  const int32_t in_block = ToInt(rank) % period - begin;
  const int32_t first = ToInt(rank) - in_block + in_block % what.stride;
  const int32_t last = first + (what.group_size - 1) * what.stride;
  if (in_block < 0 || in_block >= block || last >= num_ranks) return {};
  std::vector<Rank> members;
  for (int32_t member = first; member <= last; member += what.stride) {
    members.push_back(Rank{member});
  }
  return members;
}

int32_t NumBusyRanks(const ProfileCommunication& what, int32_t num_ranks) {
  int32_t num_busy = 0;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    if (!MembersOf(what, Rank{rank}, num_ranks).empty()) ++num_busy;
  }
  return num_busy;
}

absl::Status CheckGroups(const ProfileCommunication& what, int32_t num_ranks) {
  const int32_t block = what.group_size * what.stride;
  const bool fits =
      what.kind == OpKind::kSend
          ? what.group_size == 2 &&
                (what.from_host_of == 0 || what.stride <= what.from_host_of) &&
                NumBusyRanks(what, num_ranks) > 0
          : what.from_host_of == 0 && num_ranks % block == 0;
  if (what.group_size >= 2 && what.stride >= 1 && fits) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "groups of ", what.group_size,
      what.stride == 1 ? "" : absl::StrCat(" with stride ", what.stride),
      " among ", num_ranks,
      " ranks: the size must be above one, and it times the stride divide "
      "them"));
}

absl::StatusOr<ProfileRequest> BuildProfileRequest(
    const ModelSpec& model, const TrainingSpec& training, int32_t num_ranks,
    int32_t ranks_per_host, const ProfileBudget& budget, Backend backend) {
  const LayoutSpace space{.model = model,
                          .global_batch = training.global_batch,
                          .num_devices = num_ranks,
                          .precision = PrecisionOf(training.precision, backend),
                          .gradient_reduction = training.reduction(),
                          .objective = training.minimizes(),
                          .gemm_format = GemmFormatOf(training.precision)};
  std::vector<Layout> layouts = EnumerateLayouts(space);
  if (layouts.empty()) return ExplainNoLayout(space);
  const size_t num_layouts = layouts.size();
  for (size_t i = 0; i < num_layouts; ++i) {
    if (layouts[i].gemm_format == GemmFormat::kAsStored) break;
    layouts.push_back(layouts[i]);
    layouts.back().gemm_format = GemmFormat::kAsStored;
  }
  Collector collector(ranks_per_host);
  ModelSpec stored = model;
  stored.attention_format = AttentionFormat::kAsStored;
  for (const Layout& layout : layouts) {
    CollectLayout(model, layout, &collector);
    if (model != stored) CollectLayout(stored, layout, &collector);
    if (!space.gradient_reduction.has_value() ||
        *space.gradient_reduction == GradientReduction::kBfloat16Across) {
      // Groups of the data axis may send each other bf16.
      Layout rounded = layout;
      rounded.gradient_reduction = GradientReduction::kBfloat16;
      CollectLayout(model, rounded, &collector);
    }
    if (layout.zero != 1) continue;
    // The search tries these layouts where memory is short.
    Layout sharded = layout;
    sharded.zero = 2;
    CollectLayout(model, sharded, &collector);
  }
  ProfileRequest request = collector.Finish(budget);
  request.mixes = MixesOf(model, layouts);
  return request;
}

const ProfileOp* LargestWithin(const ProfileRequest& request, OpKind kind,
                               double max_flops) {
  const auto is_better = [&](const ProfileOp& op, const ProfileOp& than) {
    if (LoadOf(op) > max_flops) return LoadOf(op) < LoadOf(than);
    return LoadOf(op) > LoadOf(than) || LoadOf(than) > max_flops;
  };
  const ProfileOp* chosen = nullptr;
  for (const ProfileOp& op : request.ops) {
    if (op.kind != kind) continue;
    if (chosen == nullptr || is_better(op, *chosen)) chosen = &op;
  }
  return chosen;
}

std::string ProfileShapeKey(const ModelSpec& model,
                            const TrainingSpec& training) {
  return absl::StrCat(
      "h", model.hidden, "-f", model.ffn_hidden, "-n", model.num_heads, "-k",
      model.num_kv_heads, "-d", model.head_dim, "-v", model.vocab_size, "-s",
      model.sequence_length, "-b", training.global_batch,
      training.precision == "fp32" ? "" : absl::StrCat("-", training.precision),
      model.attention_format == AttentionFormat::kFloat8 ? "-attention_fp8"
                                                         : "");
}

void RecordOpTime(const ProfileOp& op, double seconds,
                  HardwareProfile* profile) {
  CHECK(Describe(op.kind).profile != ProfileTable::kCommunication);
  // Only the bytes of kCrossEntropyLoss depend on more of the layout than its
  // precision and the attributes. They differ by a few percent of a small op.
  const Layout layout{.precision = profile->precision};
  AddRow(ShapeOf(layout, op.kind, op.attributes, profile->ranks_per_host),
         seconds, profile);
}

void RecordCommunicationTime(const ProfileCommunication& communication,
                             double seconds, HardwareProfile* profile) {
  const int64_t hosts =
      communication.from_host_of > 0
          ? 2
          : HostsOf(communication.group_size, communication.stride,
                    profile->ranks_per_host);
  const CommunicationTime time = {
      .kind = communication.kind,
      .group_size = communication.group_size,
      .hosts = hosts,
      .pairs = communication.from_host_of > 0 ? communication.stride : 1,
      .bytes = communication.bytes,
      .seconds = seconds};
  if (communication.by_copy_engines) {
    profile->copy_engines.push_back({time});
  } else {
    profile->communication.push_back(time);
  }
}

}  // namespace millrace

// Weights in e4m3, made of those that the optimizer updates: the numbers and
// scales that a GPU gets.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "base/status_macros.h"
#include "kernels/pointwise/cast.h"
#include "worker/cpu/ops.h"
#include "worker/train/weight_matrices.h"

namespace millrace {
namespace {

BoundOp BindWeightAmax(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<WeightBucketAttributes>(in.attributes);
  const BucketSlice slice =
      SliceOfWeights(context.layout, context.coordinates, attributes);
  const float* const x = context.Input<float>(in, 0) +
                         BeginIn(context.program->buffers[in.inputs[0]], slice);
  return [x, begin = slice.begin, parts = MatricesIn(attributes, slice),
          amaxes = context.Output<float>(in, 0),
          num_threads = context.kernels->num_threads()]() -> absl::Status {
    std::fill_n(amaxes, kNumberStride, 0.0f);
    for (size_t i = 0; i < parts.size(); ++i) {
      RETURN_IF_ERROR(Amax({.amax = amaxes + i,
                            .x = x + (parts[i].begin - begin),
                            .num_elements = parts[i].num_elements},
                           num_threads));
    }
    return absl::OkStatus();
  };
}

// The largest magnitude that any rank found, NaN above all.
float LargestOf(const float* all_amaxes, const GatheredAmaxes& where) {
  uint32_t largest = 0;
  for (int64_t rank = 0; rank < where.num_ranks; ++rank) {
    largest = std::max(
        largest,
        std::bit_cast<uint32_t>(all_amaxes[where.first + rank * where.stride]));
  }
  return std::bit_cast<float>(largest);
}

BoundOp BindQuantizeWeights(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<WeightBucketAttributes>(in.attributes);
  const BucketSlice slice =
      SliceOfWeights(context.layout, context.coordinates, attributes);
  const auto begin_in = [&](BufferId id) {
    return BeginIn(context.program->buffers[id], slice);
  };
  const float* const x =
      context.Input<float>(in, 0) + begin_in(in.inputs[0]) - slice.begin;
  uint8_t* const y =
      context.Output<uint8_t>(in, 1) + begin_in(in.outputs[1]) - slice.begin;
  std::array<GatheredAmaxes, kFloat8Matrices> places;
  for (size_t i = 0; i < places.size(); ++i) {
    places[i] = AmaxesOf(context.layout, attributes, i);
  }
  return [x, y, places, parts = MatricesIn(attributes, slice),
          all_amaxes = context.Input<float>(in, 1),
          units = context.Output<float>(in, 0),
          num_threads = context.kernels->num_threads()]() -> absl::Status {
    constexpr Float8Format kFormat = Float8Format::kE4m3;
    std::fill_n(units, kFloat8Matrices * kNumberStride, 0.0f);
    for (size_t i = 0; i < parts.size(); ++i) {
      const float amax = LargestOf(all_amaxes, places[i]);
      units[static_cast<int64_t>(i) * kNumberStride] =
          Float8Unit(amax, kFormat);
      const auto [begin, num_elements] = parts[i];
      if (num_elements == 0) continue;
      RETURN_IF_ERROR(QuantizeFloat8({.y = y + begin,
                                      .y_transposed = nullptr,
                                      .amax = nullptr,
                                      .x = x + begin,
                                      .rows = 1,
                                      .columns = num_elements,
                                      .scale = Float8Scale(amax, kFormat),
                                      .format = kFormat},
                                     num_threads));
    }
    return absl::OkStatus();
  };
}

BoundOp BindTransposeFloat8(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const TransposeFloat8Args args = {.y = context.Output<uint8_t>(in, 0),
                                    .x = context.Input<uint8_t>(in, 0),
                                    .rows = attributes.rows,
                                    .columns = attributes.cols};
  return [args, num_threads = context.kernels->num_threads()] {
    return TransposeFloat8(args, num_threads);
  };
}

}  // namespace

void RegisterWeightOps(CpuBinders& binders) {
  binders.Bind(OpKind::kWeightAmax, BindWeightAmax);
  binders.Bind(OpKind::kQuantizeWeights, BindQuantizeWeights);
  binders.Bind(OpKind::kTransposeFloat8, BindTransposeFloat8);
}

}  // namespace millrace

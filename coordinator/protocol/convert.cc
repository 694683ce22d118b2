#include "coordinator/protocol/convert.h"

namespace millrace {
namespace {

static_assert(static_cast<int>(Schedule::kOneForwardOneBackward) ==
              protocol::LAYOUT_SCHEDULE_ONE_FORWARD_ONE_BACKWARD);
static_assert(static_cast<int>(Schedule::kZeroBubble) ==
              protocol::LAYOUT_SCHEDULE_ZERO_BUBBLE);
static_assert(static_cast<int>(Schedule::kInterleaved) ==
              protocol::LAYOUT_SCHEDULE_INTERLEAVED);
static_assert(static_cast<int>(Schedule::kListScheduled) ==
              protocol::LAYOUT_SCHEDULE_LIST_SCHEDULED);

static_assert(static_cast<int>(Precision::kFloat32) ==
              protocol::LAYOUT_PRECISION_FLOAT32);
static_assert(static_cast<int>(Precision::kBfloat16) ==
              protocol::LAYOUT_PRECISION_BFLOAT16);

protocol::LayoutPrecision ToMessage(Precision precision) {
  return static_cast<protocol::LayoutPrecision>(precision);
}

Precision FromMessage(protocol::LayoutPrecision precision) {
  return precision == protocol::LAYOUT_PRECISION_BFLOAT16 ? Precision::kBfloat16
                                                          : Precision::kFloat32;
}

// An unknown value is fp32: the hashes of Programs then differ.
GradientReduction FromMessage(protocol::LayoutGradientReduction reduction) {
  switch (reduction) {
    case protocol::LAYOUT_GRADIENT_REDUCTION_BFLOAT16:
      return GradientReduction::kBfloat16;
    case protocol::LAYOUT_GRADIENT_REDUCTION_BFLOAT16_ACROSS:
      return GradientReduction::kBfloat16Across;
    default:
      return GradientReduction::kFloat32;
  }
}

}  // namespace

protocol::LayoutMessage ToMessage(const Layout& layout) {
  protocol::LayoutMessage message;
  for (const LayoutSize& row : LayoutSizes()) {
    message.add_sizes(layout.*row.size);
  }
  message.set_num_microbatches(layout.num_microbatches);
  message.set_extra_microbatches(layout.extra_microbatches);
  message.set_zero(layout.zero);
  message.set_precision(ToMessage(layout.precision));
  message.set_gradient_reduction(static_cast<protocol::LayoutGradientReduction>(
      layout.gradient_reduction));
  message.set_moments(static_cast<uint32_t>(layout.moments));
  message.set_objective(
      static_cast<protocol::LayoutObjective>(layout.objective));
  message.set_document_length(layout.document_length);
  message.set_gemm_format(static_cast<uint32_t>(layout.gemm_format));
  message.set_recompute(static_cast<uint32_t>(layout.recompute));
  for (const Recompute recompute : layout.recompute_by_stage) {
    message.add_recompute_by_stage(static_cast<uint32_t>(recompute));
  }
  message.set_schedule(static_cast<protocol::LayoutSchedule>(layout.schedule));
  for (const ListedStage& stage : layout.listed_stages) {
    protocol::ListedStageMessage& listed = *message.add_listed_stages();
    listed.set_forward_us(stage.forward_us);
    listed.set_input_gradient_us(stage.input_gradient_us);
    listed.set_weight_gradient_us(stage.weight_gradient_us);
    listed.set_activation_bytes(stage.activation_bytes);
    listed.set_weight_gradient_bytes(stage.weight_gradient_bytes);
    listed.set_memory_bytes(stage.memory_bytes);
  }
  message.set_listed_transfer_us(layout.listed_transfer_us);
  protocol::CopyEngineUseMessage& use = *message.mutable_copy_engines();
  use.set_transfers(layout.copy_engines.transfers);
  use.set_tensor_gathers(layout.copy_engines.tensor_gathers);
  use.set_tensor_reductions(layout.copy_engines.tensor_reductions);
  use.set_data_gathers(layout.copy_engines.data_gathers);
  return message;
}

Layout FromMessage(const protocol::LayoutMessage& message) {
  Layout layout = {
      .num_microbatches = message.num_microbatches(),
      .extra_microbatches = message.extra_microbatches(),
      .zero = message.zero(),
      .precision = FromMessage(message.precision()),
      .gradient_reduction = FromMessage(message.gradient_reduction()),
      .moments = static_cast<MomentFormat>(message.moments()),
      .objective = static_cast<Objective>(message.objective()),
      .document_length = message.document_length(),
      .gemm_format = static_cast<GemmFormat>(message.gemm_format()),
      .recompute = static_cast<Recompute>(message.recompute()),
      .schedule = static_cast<Schedule>(message.schedule()),
      .listed_transfer_us = message.listed_transfer_us(),
      .copy_engines = {
          .transfers = message.copy_engines().transfers(),
          .tensor_gathers = message.copy_engines().tensor_gathers(),
          .tensor_reductions = message.copy_engines().tensor_reductions(),
          .data_gathers = message.copy_engines().data_gathers()}};
  // ValidateLayout() refuses the zero of a size that is missing.
  int index = 0;
  for (const LayoutSize& row : LayoutSizes()) {
    layout.*row.size = index < message.sizes_size() ? message.sizes(index) : 0;
    ++index;
  }
  for (const uint32_t recompute : message.recompute_by_stage()) {
    layout.recompute_by_stage.push_back(static_cast<Recompute>(recompute));
  }
  for (const protocol::ListedStageMessage& stage : message.listed_stages()) {
    layout.listed_stages.push_back(
        {.forward_us = stage.forward_us(),
         .input_gradient_us = stage.input_gradient_us(),
         .weight_gradient_us = stage.weight_gradient_us(),
         .activation_bytes = stage.activation_bytes(),
         .weight_gradient_bytes = stage.weight_gradient_bytes(),
         .memory_bytes = stage.memory_bytes()});
  }
  return layout;
}

protocol::KernelTuningMessage ToMessage(const KernelTuning& tuning) {
  protocol::KernelTuningMessage message;
  message.set_device(tuning.device);
  message.set_machine(tuning.machine);
  message.set_version(tuning.version);
  message.set_date(tuning.date);
  message.set_command(tuning.command);
  for (const KernelChoice& kernel : tuning.kernels) {
    protocol::KernelChoiceMessage& choice = *message.add_kernels();
    choice.set_family(kernel.family);
    choice.set_shape_class(kernel.shape_class);
    choice.set_choice(kernel.choice);
    choice.set_seconds(kernel.seconds);
    choice.set_start_seconds(kernel.start_seconds);
  }
  for (const ProductChoice& product : tuning.products) {
    protocol::ProductChoiceMessage& choice = *message.add_products();
    choice.set_shape(product.shape);
    choice.set_algorithm(product.algorithm);
    choice.set_seconds(product.seconds);
  }
  return message;
}

KernelTuning FromMessage(const protocol::KernelTuningMessage& message) {
  KernelTuning tuning = {.device = message.device(),
                         .machine = message.machine(),
                         .version = message.version(),
                         .date = message.date(),
                         .command = message.command()};
  for (const protocol::KernelChoiceMessage& kernel : message.kernels()) {
    tuning.kernels.push_back({.family = kernel.family(),
                              .shape_class = kernel.shape_class(),
                              .choice = kernel.choice(),
                              .seconds = kernel.seconds(),
                              .start_seconds = kernel.start_seconds()});
  }
  for (const protocol::ProductChoiceMessage& product : message.products()) {
    tuning.products.push_back({.shape = product.shape(),
                               .algorithm = product.algorithm(),
                               .seconds = product.seconds()});
  }
  return tuning;
}

protocol::Breakdown ToMessage(const TimeBreakdown& breakdown) {
  protocol::Breakdown message;
  message.set_compute_s(breakdown.compute_s);
  message.set_exposed_tensor_comm_s(breakdown.exposed_tensor_comm_s);
  message.set_exposed_data_comm_s(breakdown.exposed_data_comm_s);
  message.set_bubble_s(breakdown.bubble_s);
  message.set_data_s(breakdown.data_s);
  message.set_other_s(breakdown.other_s);
  return message;
}

TimeBreakdown FromMessage(const protocol::Breakdown& message) {
  return {.compute_s = message.compute_s(),
          .exposed_tensor_comm_s = message.exposed_tensor_comm_s(),
          .exposed_data_comm_s = message.exposed_data_comm_s(),
          .bubble_s = message.bubble_s(),
          .data_s = message.data_s(),
          .other_s = message.other_s()};
}

void AddTimeline(const RankTimeline& timeline, protocol::StepDone* message) {
  for (const TimelineEvent& event : timeline.events) {
    protocol::TimelineEvent* added = message->add_timeline();
    added->set_instruction(event.instruction);
    added->set_start_s(event.start_s);
    added->set_end_s(event.end_s);
  }
}

RankTimeline TimelineOf(const protocol::StepDone& message, Rank rank) {
  RankTimeline timeline = {
      .rank = rank,
      .stage = message.stage(),
      .begin_s = message.began_s(),
      .clock_uncertainty_s = message.clock_uncertainty_s()};
  timeline.events.reserve(message.timeline_size());
  for (const protocol::TimelineEvent& event : message.timeline()) {
    timeline.events.push_back({.instruction = event.instruction(),
                               .start_s = event.start_s(),
                               .end_s = event.end_s()});
  }
  return timeline;
}

}  // namespace millrace

// The one list of the keys of each record of a profile file, which reading and
// writing (profile_file.cc) share. A visitor is called with (key, member) for
// each, in the order of the file: as visit(key, member) for a key that must be
// there, else as the member function that names the rule for it.
//   FromZero  an integer that may be 0
//   Later     a number that older files do not have
//   IfAbove   an integer that is left out where it is not above the first one
//   IfSet     a boolean that is left out where it is false
//   Settings  text of words NAME=INTEGER
//   Optional  a section or table that a file may leave out

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_FIELDS_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_FIELDS_H_

#include "planner/profile/profile.h"

namespace millrace {

template <typename Visitor>
void VisitFields(Visitor& visit, ProfileProvenance& provenance) {
  visit("machine", provenance.machine);
  visit("description", provenance.description);
  visit("version", provenance.version);
  visit("date", provenance.date);
  visit("num_ranks", provenance.num_ranks);
  visit("threads_per_device", provenance.threads_per_device);
}

template <typename Visitor>
void VisitFields(Visitor& visit, GemmTime& time) {
  visit("m", time.m);
  visit("n", time.n);
  visit("k", time.k);
  visit("trans_a", time.trans_a);
  visit("trans_b", time.trans_b);
  visit.IfSet("float8", time.is_float8);
  visit.IfSet("float8_blocks", time.is_float8_blocks);
  visit("seconds", time.seconds);
}

template <typename Visitor>
void VisitFields(Visitor& visit, AttentionTime& time) {
  visit("backward", time.backward);
  visit("num_sequences", time.num_sequences);
  visit("sequence_length", time.sequence_length);
  visit("num_heads", time.num_heads);
  visit("num_kv_heads", time.num_kv_heads);
  visit("head_dim", time.head_dim);
  visit.IfAbove(0, "window", time.window);
  visit.IfSet("float8", time.is_float8);
  visit("seconds", time.seconds);
}

template <typename Visitor>
void VisitFields(Visitor& visit, CrossEntropyTime& time) {
  visit("kind", time.kind);
  visit("num_tokens", time.num_tokens);
  visit("hidden", time.hidden);
  visit("vocab_rows", time.vocab_rows);
  visit("seconds", time.seconds);
}

template <typename Visitor>
void VisitFields(Visitor& visit, BandwidthTime& time) {
  visit("kind", time.kind);
  visit("bytes", time.bytes);
  visit("seconds", time.seconds);
}

template <typename Visitor>
void VisitFields(Visitor& visit, CommunicationTime& time) {
  visit("kind", time.kind);
  visit("group_size", time.group_size);
  visit.IfAbove(1, "hosts", time.hosts);
  visit.IfAbove(1, "pairs", time.pairs);
  visit("bytes", time.bytes);
  visit("seconds", time.seconds);
}

template <typename Visitor>
void VisitFields(Visitor& visit, OverlapFactors& factors) {
  visit("compute", factors.compute);
  visit("communication", factors.communication);
  visit("waits", factors.waits);
}

template <typename Visitor>
void VisitFields(Visitor& visit, MemoryOverhead& overhead) {
  // One rank has no communicators.
  visit.FromZero("process", overhead.process);
  visit.FromZero("first_communicator", overhead.first_communicator);
  visit.FromZero("communicator", overhead.communicator);
}

template <typename Visitor>
void VisitFields(Visitor& visit, HostLink& link) {
  visit("to_host_bytes_per_s", link.to_host_bytes_per_s);
  visit("source", link.source);
}

template <typename Visitor>
void VisitFields(Visitor& visit, DeviceSpec& device) {
  visit("name", device.name);
  visit("multiprocessors", device.multiprocessors);
  visit("bf16_flops_per_s", device.bf16_flops_per_s);
  visit("fp8_flops_per_s", device.fp8_flops_per_s);
  visit("fp4_flops_per_s", device.fp4_flops_per_s);
  visit("memory_bytes_per_s", device.memory_bytes_per_s);
  visit("source", device.source);
}

template <typename Visitor>
void VisitFields(Visitor& visit, NetworkLevel& level) {
  visit("name", level.name);
  visit.FromZero("devices", level.devices);
  visit("bytes_per_s", level.bytes_per_s);
  visit("latency_s", level.latency_s);
  visit("source", level.source);
}

template <typename Visitor>
void VisitFields(Visitor& visit, ModelConstant& constant) {
  visit("name", constant.name);
  visit("value", constant.value);
  visit("source", constant.source);
}

template <typename Visitor>
void VisitFields(Visitor& visit, StepError& error) {
  visit("low", error.low);
  visit("high", error.high);
  visit("num_runs", error.num_runs);
  visit("source", error.source);
}

template <typename Visitor>
void VisitFields(Visitor& visit, KernelChoice& choice) {
  visit("family", choice.family);
  visit.Settings("class", choice.shape_class);
  visit.Settings("choice", choice.choice);
  visit("seconds", choice.seconds);
  visit("start_seconds", choice.start_seconds);
}

template <typename Visitor>
void VisitFields(Visitor& visit, ProductChoice& choice) {
  visit("shape", choice.shape);
  visit("algorithm", choice.algorithm);
  visit("seconds", choice.seconds);
}

template <typename Visitor>
void VisitFields(Visitor& visit, KernelTuning& tuning) {
  visit("device", tuning.device);
  visit("machine", tuning.machine);
  visit("version", tuning.version);
  visit("date", tuning.date);
  visit("command", tuning.command);
  visit.Optional("kernels", tuning.kernels);
  visit.Optional("products", tuning.products);
}

template <typename Visitor>
void VisitFields(Visitor& visit, StepWaits& waits) {
  visit("between_steps_s", waits.between_steps_s);
  visit("arrival_spread", waits.arrival_spread);
  visit.Later("between_lanes_s", waits.between_lanes_s);
}

template <typename Visitor>
void VisitFields(Visitor& visit, LearntRun& run) {
  visit("run", run.run);
  visit("date", run.date);
  visit("layout", run.layout);
  visit("num_steps", run.num_steps);
  visit.FromZero("num_slow_ranks", run.num_slow_ranks);
  visit("measured_s", run.measured_s);
  visit("predicted_s", run.predicted_s);
  visit("recalibrated_s", run.predicted_after_s);
}

template <typename Visitor>
void VisitFields(Visitor& visit, LearntChange& value) {
  visit("value", value.value);
  visit("run", value.run);
  visit("date", value.date);
  visit.FromZero("num_samples", value.num_samples);
  visit("ratio", value.ratio);
  visit("previous", value.previous);
}

template <typename Visitor>
void VisitFields(Visitor& visit, HardwareProfile& profile) {
  visit("name", profile.name);
  visit("provenance", profile.provenance);
  visit("precision", profile.precision);
  visit("ranks_per_host", profile.ranks_per_host);
  visit("device_memory_bytes", profile.device_memory_bytes);
  visit.Optional("memory_overhead", profile.memory_overhead);
  visit.Optional("host_link", profile.host_link);
  visit("launch_overhead_s", profile.launch_overhead_s);
  visit("compute_contention", profile.compute_contention);
  visit.Optional("overlap", profile.overlap);
  visit.Optional("copy_engine_overlap", profile.copy_engine_overlap);
  visit.Optional("waits", profile.waits);
  visit.Optional("device", profile.device);
  visit.Optional("network", profile.network);
  visit.Optional("constants", profile.constants);
  visit.Optional("step_error", profile.step_error);
  visit("gemms", profile.gemms);
  visit("attention", profile.attention);
  visit("cross_entropy", profile.cross_entropy);
  visit("bandwidth", profile.bandwidth);
  visit("communication", profile.communication);
  visit.Optional("copy_engines", profile.copy_engines);
  visit.Optional("tuning", profile.tuning);
  visit.Optional("calibration_runs", profile.learnt_runs);
  visit.Optional("calibrated_values", profile.learnt_changes);
}

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_FIELDS_H_

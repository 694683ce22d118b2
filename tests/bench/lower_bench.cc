// Times what the planner does to one candidate layout of an 80-layer model:
// lowering all stages, hashing and simulating them. The Programs are checked
// first.
//
//   lower_bench
//
// Prints processor seconds of one thread, the least of three rounds.

#include <algorithm>
#include <ctime>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/lower/lower.h"
#include "planner/simulate/simulate_instructions.h"

namespace millrace {
namespace {

constexpr ModelSpec kModel = {.vocab_size = 128256,
                              .hidden = 8192,
                              .num_layers = 80,
                              .num_heads = 64,
                              .num_kv_heads = 8,
                              .head_dim = 128,
                              .ffn_hidden = 28672,
                              .sequence_length = 4096};

double LeastSeconds(const std::function<void()>& call) {
  double least = 1e9;
  for (int round = 0; round < 3; ++round) {
    const std::clock_t start = std::clock();
    call();
    least = std::min(
        least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

std::vector<Program> LowerAll(const Layout& layout) {
  std::vector<Program> programs;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    programs.push_back(*BuildTrainingProgram(kModel, layout, stage));
  }
  return programs;
}

absl::Status TimeLayout(const Layout& layout) {
  RETURN_IF_ERROR(ValidateLayout(kModel, layout, layout.global_batch()));
  const std::vector<Program> programs = LowerAll(layout);
  std::vector<StageSimulation> stages;
  size_t num_instructions = 0;
  for (const Program& program : programs) {
    RETURN_IF_ERROR(CheckProgram(program));
    num_instructions += program.instructions.size();
    stages.push_back(
        {.program = &program,
         .seconds = std::vector<double>(program.instructions.size(), 1e-3)});
  }
  const double lower_s = LeastSeconds([&] { LowerAll(layout); });
  const double check_s = LeastSeconds([&] {
    for (const Program& program : programs) CHECK(CheckProgram(program).ok());
  });
  const double hash_s = LeastSeconds([&] {
    for (const Program& program : programs) ProgramHash(program);
  });
  const double simulate_s =
      LeastSeconds([&] { CHECK(Simulate(stages, {}).ok()); });
  std::cout << absl::StreamFormat(
      "%s: %d instructions; seconds: lower %.3f, check %.3f, hash %.3f, "
      "simulate %.3f\n",
      LayoutToString(layout), num_instructions, lower_s, check_s, hash_s,
      simulate_s);
  return absl::OkStatus();
}

absl::Status Run() {
  for (const Layout& layout :
       {Layout{.pipeline = 8, .num_microbatches = 64}, Layout{.pipeline = 8,
                                                       .data = 2,
                                                       .tensor = 8,
                                                       .num_microbatches = 64,
                                                       .zero = 1}}) {
    RETURN_IF_ERROR(TimeLayout(layout));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main() {
  const absl::Status status = millrace::Run();
  if (!status.ok()) std::cerr << "lower_bench: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

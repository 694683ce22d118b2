// How much of a core the coordinator of many agents takes: the real one, in a
// process of its own, with simulated agents of one worker each that join, send
// their heartbeats every 200 ms, and end a step each second.
//
//   coordinator_bench PROFILE [AGENTS] [SECONDS]
//
// PROFILE is a hardware profile in fp32; the plan that is made with it is never
// run. tests/bench/many_agents.py --keep-profile writes one.

#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "coordinator/coordinator.h"
#include "coordinator/protocol/build_id.h"
#include "coordinator/protocol/client.h"
#include "coordinator/protocol/millrace.pb.h"
#include "worker/agent/listener.h"

namespace millrace {
namespace {

constexpr absl::Duration kHeartbeat = absl::Milliseconds(200);
constexpr absl::Duration kStep = absl::Seconds(1);
constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

std::string JobText(const std::string& profile, int32_t num_agents) {
  return absl::StrCat(R"(
name: many
model: {family: llama, vocab_size: 288, hidden: 32, layers: 2, heads: 4,
        kv_heads: 2, ffn_hidden: 64, sequence_length: 32}
data: {synthetic: true}
training: {steps: 1000000, optimizer: {learning_rate: 1e-3},
           global_batch: )",
                      num_agents, R"(}
resources: {devices_per_agent: 1, threads_per_device: 1}
checkpoint: {at_end: false, interval_steps: 0, resume: none}
profile_output: none
profile: )",
                      profile, "\nlayout: {data: ", num_agents, "}\n");
}

// An agent, or a worker. Asks for nothing that the real ones do not.
struct Process {
  int32_t idx = 0;          // The agent's, or the worker's rank.
  int32_t incarnation = 0;  // 0: an agent.
  std::string run_directory;
  int64_t generation = 0;
  int64_t num_steps = 0;
  bool trains = false;
  bool ended = false;
  std::unique_ptr<Client> client;  // Last: its thread reads the others.
};

protocol::Hello HelloOf(const Process& process) {
  protocol::Hello hello;
  if (process.incarnation > 0) {
    hello.mutable_worker()->set_worker(process.idx);
    hello.mutable_worker()->set_incarnation(process.incarnation);
    hello.mutable_worker()->set_run_directory(process.run_directory);
    return hello;
  }
  protocol::AgentHello* agent = hello.mutable_agent();
  agent->set_agent_idx(process.idx);
  agent->set_host(absl::StrCat("node", process.idx));
  agent->set_build_id(BuildId());
  if (process.run_directory.empty()) return hello;
  agent->set_has_job(true);
  agent->set_run_directory(process.run_directory);
  agent->set_num_devices(1);
  agent->set_threads_per_device(1);
  agent->set_devices_on_host(1);
  agent->set_machine("simulated");
  agent->set_memory_bytes(int64_t{8} << 30);
  agent->set_data_ready(true);
  return hello;
}

// All agents, and the workers that they are told to start. Each has a client of
// its own, as real ones do; one thread hears what all of them are told.
class Processes {
 public:
  explicit Processes(std::string address) : address_(std::move(address)) {}
  ~Processes() { close(epoll_); }

  void StartAgents(int32_t num_agents) {
    for (int32_t i = 0; i < num_agents; ++i) Add({.idx = i});
  }

  // Ends the job.
  void Stop() {
    protocol::ToCoordinator message;
    message.mutable_stop_request()->set_now(true);
    processes_[0]->client->SendReliably(std::move(message));
  }

  // Lets time pass; returns whether `done` came true within `limit`.
  bool RunUntil(const std::function<bool()>& done, absl::Duration limit) {
    const absl::Time deadline = MonotonicNow() + limit;
    while (!done() && MonotonicNow() < deadline) {
      epoll_event events[64];
      const int count = epoll_wait(epoll_, events, std::size(events), 50);
      for (int i = 0; i < count; ++i) {
        Hear(*processes_[events[i].data.u64]);
      }
      if (MonotonicNow() > next_step_) EndStep();
    }
    return done();
  }

  int32_t num_training() const { return num_training_; }
  int32_t num_agents_ended() const { return num_agents_ended_; }
  int64_t num_steps() const { return num_steps_; }  // All ranks count.

 private:
  void Add(Process process) {
    processes_.push_back(std::make_unique<Process>(std::move(process)));
    Process& added = *processes_.back();
    auto client =
        Client::Create({.address = address_,
                        .secret = kSecret,
                        .heartbeat_interval = kHeartbeat,
                        .make_hello = [&added] { return HelloOf(added); }});
    CHECK(client.ok());
    added.client = *std::move(client);
    epoll_event event = {.events = EPOLLIN};
    event.data.u64 = processes_.size() - 1;
    CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, added.client->event_fd(), &event) ==
          0);
  }

  void Hear(Process& process) {
    while (!process.ended) {
      const auto message = process.client->Receive(absl::ZeroDuration());
      // It hears no more of a coordinator that has ended.
      process.ended = !message.ok();
      if (!message.ok() || !message->has_value()) return;
      Obey(**message, process);
    }
  }

  void Obey(const protocol::FromCoordinator& message, Process& process) {
    protocol::ToCoordinator answer;
    answer.set_generation(message.generation());
    switch (message.body_case()) {
      case protocol::FromCoordinator::kWelcome:
        process.run_directory = message.welcome().run_directory();
        *answer.mutable_hello() = HelloOf(process);
        process.client->Send(std::move(answer));
        break;
      case protocol::FromCoordinator::kStartWorker:
        Add({.idx = message.start_worker().worker(),
             .incarnation = message.start_worker().incarnation(),
             .run_directory = process.run_directory});
        break;
      case protocol::FromCoordinator::kAbortGeneration:
        answer.mutable_worker_ready();
        process.client->SendReliably(std::move(answer));
        break;
      case protocol::FromCoordinator::kStartGeneration:
        CHECK(message.start_generation().purpose() ==
              protocol::GENERATION_PURPOSE_TRAIN);
        process.generation = message.generation();
        process.trains = true;
        ++num_training_;
        answer.mutable_generation_running();
        process.client->SendReliably(std::move(answer));
        break;
      case protocol::FromCoordinator::kShutdown:
        process.ended = true;
        process.trains = false;
        if (process.incarnation == 0) ++num_agents_ended_;
        break;
      default:
        break;
    }
  }

  void EndStep() {
    next_step_ = MonotonicNow() + kStep;
    for (const std::unique_ptr<Process>& process : processes_) {
      if (!process->trains) continue;
      protocol::ToCoordinator message;
      message.set_generation(process->generation);
      protocol::StepDone* done = message.mutable_step_done();
      done->set_step(++process->num_steps);
      done->set_loss(1);
      done->set_finite(true);
      done->set_step_time_s(1);
      done->mutable_breakdown()->set_compute_s(0.5);
      done->mutable_breakdown()->set_exposed_data_comm_s(0.5);
      process->client->SendReliably(std::move(message));
      ++num_steps_;
    }
  }

  const std::string address_;
  const int epoll_ = epoll_create1(EPOLL_CLOEXEC);
  std::vector<std::unique_ptr<Process>> processes_;
  absl::Time next_step_ = MonotonicNow() + kStep;
  int32_t num_training_ = 0;
  int32_t num_agents_ended_ = 0;
  int64_t num_steps_ = 0;
};

// User and system time together, as the kernel counts it.
double ProcessorSeconds(pid_t process) {
  const absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat("/proc/", process, "/stat"));
  CHECK(text.ok());
  // The name before it may hold anything.
  const std::vector<std::string> fields =
      absl::StrSplit(text->substr(text->rfind(')') + 2), ' ');
  int64_t user = 0, system = 0;
  CHECK(absl::SimpleAtoi(fields[11], &user));
  CHECK(absl::SimpleAtoi(fields[12], &system));
  return static_cast<double>(user + system) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

int Run(const std::string& profile, int32_t num_agents, int32_t seconds) {
  std::string folder = absl::StrCat(
      std::filesystem::temp_directory_path().string(), "/coordinator-XXXXXX");
  CHECK(mkdtemp(folder.data()) != nullptr);
  CHECK(MakeDirectories(folder + "/logs").ok());
  CHECK(WriteFileAtomically(folder + "/job.yaml", JobText(profile, num_agents))
            .ok());
  absl::StatusOr<Listener> listener = Listener::Create();
  CHECK(listener.ok());
  const pid_t coordinator = fork();
  CHECK(coordinator >= 0);
  if (coordinator == 0) {
    const absl::StatusOr<int> code =
        RunCoordinator({.run_directory = folder,
                        .job_file = folder + "/job.yaml",
                        .listen_fd = dup(listener->fd()),
                        .num_agents = num_agents,
                        .secret = kSecret});
    if (!code.ok()) std::cerr << code.status() << std::endl;
    _exit(code.value_or(1));
  }
  const absl::Time began = MonotonicNow();
  Processes processes(listener->address());
  processes.StartAgents(num_agents);
  const bool all_train = processes.RunUntil(
      [&] { return processes.num_training() == num_agents; }, absl::Minutes(2));
  if (all_train) {
    absl::PrintF("%d agents and their workers train %s after their start\n",
                 num_agents, absl::FormatDuration(MonotonicNow() - began));
    // The first step has come, and joining is over.
    const auto never = [] { return false; };
    processes.RunUntil(never, absl::Seconds(3));
    const double used_before = ProcessorSeconds(coordinator);
    const int64_t steps_before = processes.num_steps();
    const absl::Time window_began = MonotonicNow();
    processes.RunUntil(never, absl::Seconds(seconds));
    const double passed = absl::ToDoubleSeconds(MonotonicNow() - window_began);
    absl::PrintF(
        "coordinator: %.1f %% of a core over %.1f s, with %d heartbeats each "
        "200 ms and %.0f ends of steps a second (bar: 100 %%)\n",
        100 * (ProcessorSeconds(coordinator) - used_before) / passed, passed,
        2 * num_agents,
        static_cast<double>(processes.num_steps() - steps_before) / passed);
  } else {
    absl::PrintF("only %d of %d workers train after 2 min\n",
                 processes.num_training(), num_agents);
  }
  processes.Stop();
  const bool all_ended = processes.RunUntil(
      [&] { return processes.num_agents_ended() == num_agents; },
      absl::Seconds(30));
  if (!all_ended) {
    absl::PrintF("only %d of %d agents were told the end\n",
                 processes.num_agents_ended(), num_agents);
    kill(coordinator, SIGKILL);
  }
  waitpid(coordinator, nullptr, 0);
  std::filesystem::remove_all(folder);
  return all_train && all_ended ? 0 : 1;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  int32_t num_agents = 1000, seconds = 10;
  if (argc < 2 || (argc > 2 && !absl::SimpleAtoi(argv[2], &num_agents)) ||
      (argc > 3 && !absl::SimpleAtoi(argv[3], &seconds))) {
    std::cerr << "usage: coordinator_bench PROFILE [AGENTS] [SECONDS]"
              << std::endl;
    return 2;
  }
  return millrace::Run(argv[1], num_agents, seconds);
}

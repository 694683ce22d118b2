// How much of a core the coordinator of many agents takes: the real one, in a
// process of its own, with simulated agents of one worker each that join, send
// their heartbeats every 200 ms, and end a step each second.
//
//   coordinator_bench PROFILE [AGENTS] [SECONDS]
//
// PROFILE is a hardware profile in fp32; the plan that is made with it is never
// run. tests/bench/many_agents.py --keep-profile writes one.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/files.h"
#include "coordinator/coordinator.h"
#include "coordinator/protocol/build_id.h"
#include "coordinator/protocol/connection.h"
#include "coordinator/protocol/millrace.pb.h"
#include "coordinator/protocol/secret.h"
#include "worker/agent/listener.h"

namespace millrace {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr auto kHeartbeat = std::chrono::milliseconds(200);
constexpr auto kStep = std::chrono::seconds(1);
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

// Counts what the simulated processes reached.
struct Progress {
  int32_t num_running = 0;
  int64_t num_steps = 0;  // Of all ranks.
  int32_t num_ended = 0;
};

// An agent, or a worker. Asks for nothing that the real ones do not.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  Peer(boost::asio::io_context& loop, tcp::endpoint coordinator, int32_t idx,
       int32_t incarnation, Progress* progress)
      : loop_(loop),
        coordinator_(std::move(coordinator)),
        idx_(idx),
        incarnation_(incarnation),
        progress_(progress),
        socket_(loop),
        heartbeat_(loop),
        step_(loop) {}

  void Start() {
    socket_.async_connect(coordinator_,
                          [self = shared_from_this()](const error_code& error) {
                            CHECK(!error);
                            self->Challenge();
                          });
  }

  // Ends the job.
  void Stop() {
    protocol::ToCoordinator message;
    message.mutable_stop_request()->set_now(true);
    Send(message, /*reliably=*/true);
  }

 private:
  bool is_worker() const { return incarnation_ > 0; }

  void Send(protocol::ToCoordinator& message, bool reliably) {
    if (reliably) message.set_sequence(++last_sequence_);
    connection_->Send(message.SerializeAsString());
  }

  void Challenge() {
    connection_ = std::make_shared<Connection>(std::move(socket_));
    connection_->Start({.on_message =
                            [self = shared_from_this()](std::string payload) {
                              protocol::FromCoordinator message;
                              CHECK(message.ParseFromString(payload));
                              self->OnMessage(message);
                            },
                        .on_closed =
                            [self = shared_from_this()](absl::Status) {
                              self->heartbeat_.cancel();
                              self->step_.cancel();
                            }});
    const absl::StatusOr<std::string> nonce = MakeNonce();
    CHECK(nonce.ok());
    nonce_ = *nonce;
    protocol::ToCoordinator message;
    message.mutable_challenge()->set_nonce(nonce_);
    Send(message, false);
  }

  void SayHello(const std::string& token) {
    protocol::ToCoordinator message;
    message.mutable_hello()->set_token(token);
    if (is_worker()) {
      protocol::WorkerHello* worker = message.mutable_hello()->mutable_worker();
      worker->set_rank(idx_);
      worker->set_incarnation(incarnation_);
      worker->set_run_directory(run_directory_);
    } else {
      protocol::AgentHello* agent = message.mutable_hello()->mutable_agent();
      agent->set_agent_idx(idx_);
      agent->set_host(absl::StrCat("node", idx_));
      agent->set_build_id(BuildId());
      if (!run_directory_.empty()) {
        agent->set_has_job(true);
        agent->set_run_directory(run_directory_);
        agent->set_num_devices(1);
        agent->set_threads_per_device(1);
        agent->set_devices_on_host(1);
        agent->set_machine("simulated");
        agent->set_memory_bytes(int64_t{8} << 30);
        agent->set_data_ready(true);
      }
    }
    Send(message, false);
  }

  void OnMessage(const protocol::FromCoordinator& message) {
    switch (message.body_case()) {
      case protocol::FromCoordinator::kProof:
        SayHello(
            ProofOf(kSecret, Prover::kPeer, nonce_, message.proof().nonce()));
        Heartbeat();
        break;
      case protocol::FromCoordinator::kWelcome:
        run_directory_ = message.welcome().run_directory();
        SayHello("");
        break;
      case protocol::FromCoordinator::kStartWorker: {
        const protocol::StartWorker& order = message.start_worker();
        const auto worker = std::make_shared<Peer>(
            loop_, coordinator_, order.rank(), order.incarnation(), progress_);
        worker->run_directory_ = run_directory_;
        worker->Start();
        break;
      }
      case protocol::FromCoordinator::kAbortGeneration: {
        protocol::ToCoordinator ready;
        ready.set_generation(message.generation());
        ready.mutable_worker_ready();
        Send(ready, true);
        break;
      }
      case protocol::FromCoordinator::kStartGeneration: {
        CHECK(message.start_generation().purpose() ==
              protocol::GENERATION_PURPOSE_TRAIN);
        generation_ = message.generation();
        protocol::ToCoordinator running;
        running.set_generation(generation_);
        running.mutable_generation_running();
        Send(running, true);
        ++progress_->num_running;
        Step(1);
        break;
      }
      case protocol::FromCoordinator::kShutdown:
        if (!is_worker()) ++progress_->num_ended;
        if (!message.shutdown().message().empty() && idx_ == 0) {
          std::cerr << message.shutdown().message() << std::endl;
        }
        connection_->CloseAfterWriting();
        break;
      default:
        break;
    }
  }

  void Heartbeat() {
    heartbeat_.expires_after(kHeartbeat);
    heartbeat_.async_wait([self = shared_from_this()](const error_code& error) {
      if (error) return;
      protocol::ToCoordinator message;
      message.mutable_heartbeat();
      self->Send(message, false);
      self->Heartbeat();
    });
  }

  void Step(int64_t step) {
    step_.expires_after(kStep);
    step_.async_wait(
        [self = shared_from_this(), step](const error_code& error) {
          if (error) return;
          protocol::ToCoordinator message;
          message.set_generation(self->generation_);
          protocol::StepDone* done = message.mutable_step_done();
          done->set_step(step);
          done->set_loss(1);
          done->set_finite(true);
          done->set_step_time_s(1);
          done->mutable_breakdown()->set_compute_s(0.5);
          done->mutable_breakdown()->set_exposed_data_comm_s(0.5);
          self->Send(message, true);
          ++self->progress_->num_steps;
          self->Step(step + 1);
        });
  }

  boost::asio::io_context& loop_;
  const tcp::endpoint coordinator_;
  const int32_t idx_;          // Of the agent, or the worker's rank.
  const int32_t incarnation_;  // 0: an agent.
  Progress* const progress_;
  tcp::socket socket_;
  std::shared_ptr<Connection> connection_;
  boost::asio::steady_timer heartbeat_;
  boost::asio::steady_timer step_;
  std::string nonce_;
  std::string run_directory_;
  uint64_t last_sequence_ = 0;
  int64_t generation_ = 0;
};

// Of both kinds, as the kernel counts it.
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
  boost::asio::io_context loop;
  const std::pair<std::string, std::string> address =
      absl::StrSplit(listener->address(), ':');
  int32_t port = 0;
  CHECK(absl::SimpleAtoi(address.second, &port));
  const tcp::endpoint endpoint(boost::asio::ip::make_address(address.first),
                               static_cast<uint16_t>(port));
  Progress progress;
  std::vector<std::shared_ptr<Peer>> agents;
  const auto began = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < num_agents; ++i) {
    agents.push_back(std::make_shared<Peer>(loop, endpoint, i, 0, &progress));
    agents.back()->Start();
  }
  const auto run_until = [&](const std::function<bool()>& done,
                             std::chrono::seconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!done() && std::chrono::steady_clock::now() < deadline) {
      loop.run_one_for(std::chrono::milliseconds(100));
    }
    return done();
  };
  const auto age = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         began)
        .count();
  };
  const bool all_run =
      run_until([&] { return progress.num_running == num_agents; },
                std::chrono::seconds(120));
  if (all_run) {
    absl::PrintF("%d agents and their workers train %.1f s after their start\n",
                 num_agents, age());
    // The first step has come, and joining is over.
    run_until([] { return false; }, std::chrono::seconds(3));
    const double used_before = ProcessorSeconds(coordinator);
    const int64_t steps_before = progress.num_steps;
    const double age_before = age();
    run_until([] { return false; }, std::chrono::seconds(seconds));
    const double passed = age() - age_before;
    absl::PrintF(
        "coordinator: %.1f %% of a core over %.1f s, with %d heartbeats each "
        "200 ms and %.0f ends of steps a second (bar: 100 %%)\n",
        100 * (ProcessorSeconds(coordinator) - used_before) / passed, passed,
        2 * num_agents,
        static_cast<double>(progress.num_steps - steps_before) / passed);
  } else {
    absl::PrintF("only %d of %d workers train after %.0f s\n",
                 progress.num_running, num_agents, age());
  }
  agents[0]->Stop();
  const bool all_ended =
      run_until([&] { return progress.num_ended == num_agents; },
                std::chrono::seconds(30));
  if (!all_ended) {
    absl::PrintF("only %d of %d agents were told the end\n", progress.num_ended,
                 num_agents);
    kill(coordinator, SIGKILL);
  }
  waitpid(coordinator, nullptr, 0);
  std::filesystem::remove_all(folder);
  return all_run && all_ended ? 0 : 1;
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

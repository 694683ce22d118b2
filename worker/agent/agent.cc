#include "worker/agent/agent.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/files/file_server.h"
#include "coordinator/protocol/build_id.h"
#include "coordinator/protocol/client.h"
#include "coordinator/protocol/exit_codes.h"
#include "worker/agent/child_process.h"
#include "worker/agent/coordinator_process.h"
#include "worker/agent/data_facts.h"
#include "worker/agent/data_offer.h"
#include "worker/agent/data_preparation.h"
#include "worker/agent/gpu_watch.h"
#include "worker/agent/host_job.h"
#include "worker/agent/rank_log.h"
#include "worker/agent/replica_store.h"
#include "worker/agent/run_copies.h"
#include "worker/agent/worker_child.h"
#include "worker/agent/worker_children.h"
#include "worker/data/prepare.h"

namespace millrace {
namespace {

// How late a worker may be seen to exit.
constexpr int kPollMs = 40;
// How long workers and the coordinator may take to end by themselves.
constexpr absl::Duration kEndLimit = absl::Seconds(3);

sigset_t AgentSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) {
    sigaddset(&signals, number);
  }
  return signals;
}

class Agent {
 public:
  explicit Agent(AgentOptions options)
      : options_(std::move(options)),
        is_first_(options_.agent_idx == 0),
        agent_idx_(options_.agent_idx) {}

  int Run() {
    const absl::StatusOr<int> exit_code = RunUntilShutdown();
    if (exit_code.ok()) {
      End();
      return *exit_code;
    }
    std::cerr << "millrace: " << Name() << ": " << exit_code.status().message()
              << std::endl;
    End();
    return 1;
  }

 private:
  absl::StatusOr<int> RunUntilShutdown() {
    const sigset_t signals = AgentSignals();
    signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signal_fd_ < 0) return absl::InternalError("no signalfd");
    if (options_.coordinator.has_value()) {
      RETURN_IF_ERROR(coordinator_.StartFirst());
    }
    ASSIGN_OR_RETURN(
        client_,
        Client::Create({.address = options_.coordinator_address,
                        .secret = options_.secret,
                        .make_hello = [this] { return MakeHello(); }}));
    while (!exit_code_.has_value()) {
      // poll() passes over a negative descriptor.
      const int data_fd = data_.has_value() ? data_->event_fd() : -1;
      pollfd fds[] = {{.fd = signal_fd_, .events = POLLIN},
                      {.fd = client_->event_fd(), .events = POLLIN},
                      {.fd = data_fd, .events = POLLIN},
                      {.fd = coordinator_.event_fd(), .events = POLLIN}};
      if (poll(fds, std::size(fds), kPollMs) < 0 && errno != EINTR) {
        return absl::InternalError("poll failed");
      }
      HandleSignals();
      RETURN_IF_ERROR(UpdateCoordinator());
      RETURN_IF_ERROR(HandleMessages());
      if (data_.has_value() && data_->TakeResult(&prepared_)) HandleData();
      if (MonotonicNow() > give_up_at_) {
        return absl::UnavailableError(
            absl::StrCat("the coordinator did not answer",
                         coordinator_has_ended_
                             ? absl::StrCat("; it ", *coordinator_.last_exit())
                             : ""));
      }
    }
    return *exit_code_;
  }

  // On the client's thread.
  protocol::Hello MakeHello() {
    std::lock_guard<std::mutex> lock(mutex_);
    protocol::Hello hello;
    protocol::AgentHello* agent = hello.mutable_agent();
    agent->set_agent_idx(agent_idx_);
    if (options_.agent_idx < 0) agent->set_instance(instance_);
    agent->set_host(options_.host);
    agent->set_build_id(BuildId());
    if (!host_job_.has_value()) return hello;
    const AgentDevices& devices = host_job_->devices;
    agent->set_has_job(true);
    agent->set_run_directory(host_job_->run);
    agent->set_num_devices(devices.num_devices);
    agent->set_threads_per_device(devices.threads_per_device);
    agent->set_devices_on_host(devices.devices_on_host);
    agent->set_machine(devices.machine);
    agent->set_machine_description(devices.description);
    agent->set_memory_bytes(devices.memory_bytes);
    AddAddresses(*host_job_, agent);
    agent->set_sees_checkpoints(host_job_->sees_checkpoints);
    agent->set_sees_run_directory(host_job_->sees_run_directory);
    if (is_keeper_) {
      agent->set_keeper(instance_);
      agent->set_coordinator_address(keeper_address_);
      copies_->AddTo(agent);
    }
    if (files_ != nullptr) agent->set_file_port(files_->port());
    agent->set_data_ready(data_ready_.has_value());
    if (data_ready_.has_value()) {
      *agent->mutable_data() = data_ready_->data();
      if (data_ready_->has_offer()) {
        *agent->mutable_offer() = data_ready_->offer();
      }
    }
    if (stop_.has_value()) *agent->mutable_stop() = *stop_;
    for (const auto& [worker_idx, incarnation] : workers_.Living()) {
      protocol::LiveWorker* live = agent->add_workers();
      live->set_worker(worker_idx);
      live->set_incarnation(incarnation);
    }
    return hello;
  }

  void Log(const std::string& line) {
    if (!log_.is_open()) return;
    log_ << absl::FormatTime("%H:%M:%E3S ", absl::Now(), absl::LocalTimeZone())
         << line << std::endl;
  }

  // "agent 1 (node2)".
  std::string Name() const {
    if (agent_idx_ < 0) return absl::StrCat("agent on ", options_.host);
    return absl::StrCat("agent ", agent_idx_, " (", options_.host, ")");
  }

  // Children. -----------------------------------------------------------------

  absl::Status StartWorker(const protocol::StartWorker& order) {
    if (!prepared_.ok()) return absl::OkStatus();  // Of an earlier process.
    const int32_t worker_idx = order.worker();
    for (const auto& [living, incarnation] : workers_.Living()) {
      if (living == worker_idx && incarnation >= order.incarnation()) {
        return absl::OkStatus();  // Said twice.
      }
    }
    ASSIGN_OR_RETURN(const HostAddress address,
                     ChooseAddress(host_job_->job.network, host_job_->addresses,
                                   order.host_address()));
    worker_addresses_[worker_idx] = address;
    ASSIGN_OR_RETURN(ChildOptions child, ChildOf(worker_idx));
    gpus_.NoteStart(places_.DeviceOf(worker_idx));
    ASSIGN_OR_RETURN(
        const WorkerChildren::Started started,
        workers_.Start(worker_idx, order.incarnation(),
                       coordinator_addresses_.empty() ? client_->address()
                                                      : coordinator_addresses_,
                       std::move(child)));
    Log(absl::StrCat(started.was_standby ? "gave the standby process worker "
                                         : "started worker ",
                     worker_idx, ", incarnation ", order.incarnation(),
                     ", process ", started.pid, ", at ", address.address,
                     ", over ", address.interface));
    return absl::OkStatus();
  }

  // A process of a worker that was ordered before.
  absl::StatusOr<ChildOptions> ChildOf(int32_t worker_idx) {
    ChildOptions child = OptionsOf({.secret = options_.secret,
                                    .worker_idx = worker_idx,
                                    .address = worker_addresses_.at(worker_idx),
                                    .device_idx = places_.DeviceOf(worker_idx),
                                    .log_path = WorkerLog(worker_idx)},
                                   *host_job_, *prepared_);
    ASSIGN_OR_RETURN(const int replica_fd, places_.ReplicaMemoryOf(worker_idx));
    child.keep_fds = {replica_fd};
    child.arguments.insert(child.arguments.end(),
                           {"--replica-fd", absl::StrCat(replica_fd)});
    return child;
  }

  void KeepStandbys(bool keep) {
    if (!keep) workers_.EndStandbys();
    for (const auto& [worker_idx, incarnation] : workers_.Living()) {
      if (!keep) break;
      absl::StatusOr<ChildOptions> child = ChildOf(worker_idx);
      const absl::Status started =
          child.ok() ? workers_.StartStandby(worker_idx, *std::move(child))
                     : child.status();
      if (started.ok()) continue;
      Log(absl::StrCat("worker ", worker_idx,
                       " has no standby process: ", started.message()));
    }
  }

  std::string WorkerLog(int32_t worker_idx) const {
    return RankLogPath(host_job_->run_directory, worker_idx);
  }

  void TellDeaths() {
    gpus_.ReadLog();
    for (const WorkerChildren::Death& death : workers_.TakeDeaths()) {
      std::string how = DescribeExit(death.wait_status);
      if (death.wait_status != 0) {
        const std::string about_gpu =
            gpus_.NoteDeath(places_.DeviceOf(death.worker_idx),
                            {death.worker_idx, death.incarnation});
        if (!about_gpu.empty()) absl::StrAppend(&how, "; ", about_gpu);
      }
      protocol::ToCoordinator message;
      message.mutable_worker_died()->set_worker(death.worker_idx);
      message.mutable_worker_died()->set_incarnation(death.incarnation);
      message.mutable_worker_died()->set_detail(how);
      if (!host_job_->sees_run_directory) {
        message.mutable_worker_died()->set_log_end(absl::StrCat(
            "The end of ", options_.host, ":", WorkerLog(death.worker_idx),
            ":\n", EndOfLog(WorkerLog(death.worker_idx))));
      }
      Log(absl::StrCat("worker ", death.worker_idx, " ", how));
      client_->SendReliably(std::move(message));
    }
    for (const GpuWatch::Finding& finding : gpus_.TakeFindings()) {
      protocol::ToCoordinator message;
      message.mutable_gpu_after_death()->set_worker(finding.process.worker_idx);
      message.mutable_gpu_after_death()->set_detail(finding.text);
      Log(absl::StrCat("worker ", finding.process.worker_idx, ", process ",
                       finding.process.incarnation, ": ", finding.text));
      client_->SendReliably(std::move(message));
    }
  }

  absl::Status UpdateCoordinator() {
    RETURN_IF_ERROR(coordinator_.Update());
    if (!coordinator_.last_exit().has_value() || coordinator_has_ended_) {
      return absl::OkStatus();
    }
    // On purpose. Its last word to us may still be on the way.
    coordinator_has_ended_ = true;
    give_up_at_ = std::min(give_up_at_, MonotonicNow() + kEndLimit);
    return absl::OkStatus();
  }

  // Inputs. -------------------------------------------------------------------

  void HandleSignals() {
    signalfd_siginfo info;
    while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGUSR1) {
        RequestStop({.requeue = true});
      } else if (info.ssi_signo != SIGCHLD) {
        OnStopSignal();
      }
    }
    // Nobody else could stop the job any more.
    if (options_.launched && getppid() != launcher_ && !launcher_is_gone_) {
      launcher_is_gone_ = true;
      Log("the launcher is gone");
      RequestStop({});
    }
    TellDeaths();
  }

  struct Stop {
    bool now = false;
    bool requeue = false;
  };
  void RequestStop(const Stop& stop) {
    protocol::ToCoordinator message;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!stop_.has_value()) stop_.emplace();
      if (stop.now) stop_->set_now(true);
      if (stop.requeue) stop_->set_requeue(true);
      *message.mutable_stop_request() = *stop_;
    }
    client_->SendReliably(std::move(message));
  }

  void OnStopSignal() {
    ++num_stop_signals_;
    RequestStop({.now = num_stop_signals_ > 1});
    if (num_stop_signals_ > 1) {
      give_up_at_ = std::min(give_up_at_, MonotonicNow() + kEndLimit);
    }
  }

  absl::Status HandleMessages() {
    while (!exit_code_.has_value()) {
      std::optional<protocol::FromCoordinator> message;
      absl::StatusOr<std::optional<protocol::FromCoordinator>> received =
          client_->Receive(absl::ZeroDuration());
      if (!received.ok()) return received.status();
      if (!received->has_value()) return absl::OkStatus();
      RETURN_IF_ERROR(Handle(**received));
    }
    return absl::OkStatus();
  }

  absl::Status Handle(const protocol::FromCoordinator& message) {
    if (files_ != nullptr) files_->RefuseTermsBelow(message.term());
    switch (message.body_case()) {
      case protocol::FromCoordinator::kWelcome:
        OnWelcome(message.welcome());
        break;
      case protocol::FromCoordinator::kCoordinators:
        coordinator_addresses_ = message.coordinators().addresses();
        return client_->SetAddress(coordinator_addresses_);
      case protocol::FromCoordinator::kRunFile:
        TakeRunFile(message);
        break;
      case protocol::FromCoordinator::kFetchData:
        OnFetchData(message.fetch_data());
        break;
      case protocol::FromCoordinator::kStartWorker:
        return StartWorker(message.start_worker());
      case protocol::FromCoordinator::kKillWorker: {
        const protocol::KillWorker& order = message.kill_worker();
        workers_.Kill(order.worker(), order.incarnation());
        break;
      }
      case protocol::FromCoordinator::kKeepStandbys:
        KeepStandbys(message.keep_standbys().keep());
        break;
      case protocol::FromCoordinator::kReadLog:
        if (host_job_.has_value()) {
          protocol::ToCoordinator answer;
          *answer.mutable_log() = PieceOfLog(host_job_->run_directory,
                                             options_.host, message.read_log());
          client_->Send(std::move(answer));
        }
        break;
      case protocol::FromCoordinator::kShutdown:
        exit_code_ = message.shutdown().exit_code();
        // Agent 0 says it for all of a launcher, which shows what all print.
        if ((is_first_ || options_.agent_idx < 0) &&
            !message.shutdown().message().empty()) {
          std::cerr << "millrace: " << message.shutdown().message()
                    << std::endl;
        }
        break;
      default:
        break;
    }
    return absl::OkStatus();
  }

  // The job, once: after a reconnection the agent says that it has it.
  void OnWelcome(const protocol::Welcome& welcome) {
    if (host_job_.has_value()) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      agent_idx_ = welcome.agent_idx();
    }
    absl::StatusOr<HostJob> taken =
        TakeJob(welcome, options_.job, options_.devices, options_.share);
    if (!taken.ok()) {
      SendFailure(taken.status());
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      host_job_ = *std::move(taken);
    }
    gpus_ = GpuWatch(host_job_->devices.gpu_bus_ids);
    log_.open(absl::StrCat(host_job_->run_directory, "/logs/agent-", agent_idx_,
                           ".log"),
              std::ios::app);
    if (!host_job_->sees_run_directory) {
      Log(absl::StrCat("this host does not see ", welcome.run_directory(),
                       " of agent 0's host and keeps its logs here"));
    }
    absl::Status serving = ServeFiles();
    if (serving.ok()) serving = BeKeeper();
    if (!serving.ok()) {
      SendFailure(serving);
      return;
    }
    protocol::ToCoordinator message;
    *message.mutable_hello() = MakeHello();
    client_->Send(std::move(message));
    const DataSpec& data = host_job_->job.data;
    if (!data.is_on(agent_idx_, options_.host)) return;  // OnFetchData().
    data_.emplace(
        host_job_->job,
        DataPreparationOptions{
            .num_threads = host_job_->devices.num_devices *
                           host_job_->devices.threads_per_device,
            .show_progress = is_first_,
            .counts_documents = is_first_ || is_keeper_ || !data.from.empty(),
            .offers = files_ != nullptr && !data.from.empty()});
  }

  // Other hosts, where there are some, may ask this one for files.
  absl::Status ServeFiles() {
    if (options_.agent_idx >= 0 && options_.num_agents == 1) {
      return absl::OkStatus();
    }
    std::unique_ptr<FileServer> files;
    ASSIGN_OR_RETURN(files, ServeFilesOf(*host_job_, options_.secret));
    std::lock_guard<std::mutex> lock(mutex_);
    files_ = std::move(files);
    return absl::OkStatus();
  }

  // The coordinator may come to this host when it is lost.
  absl::Status BeKeeper() {
    if (agent_idx_ >= host_job_->job.fault.coordinator_replicas ||
        files_ == nullptr) {
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(
        coordinator_.BeKeeper(*host_job_, agent_idx_, instance_, files_.get()));
    std::lock_guard<std::mutex> lock(mutex_);
    copies_.emplace(host_job_->run_directory);
    keeper_address_ = coordinator_.address();
    is_keeper_ = true;
    return absl::OkStatus();
  }

  void TakeRunFile(const protocol::FromCoordinator& message) {
    // What is still on the way must not meet what a coordinator here writes.
    if (!is_keeper_ || host_job_->sees_run_directory || coordinator_.pid() > 0)
      return;
    std::lock_guard<std::mutex> lock(mutex_);
    const absl::Status taken =
        copies_->Take(message.term(), message.run_file());
    if (!taken.ok()) Log(std::string(taken.message()));
  }

  // Another host has the data.
  void OnFetchData(const protocol::FetchData& order) {
    if (!host_job_.has_value() || data_.has_value()) return;  // Said twice.
    DataFetch fetch = {.order = order,
                       .secret = options_.secret,
                       .cache_directory = host_job_->job.data.cache_directory};
    Log(absl::StrCat("fetching the data from ", order.from(0).host()));
    data_.emplace(
        host_job_->job,
        DataPreparationOptions{.show_progress = is_first_,
                               .fetch = [fetch] { return FetchData(fetch); }});
  }

  void HandleData() {
    absl::StatusOr<protocol::DataFacts> facts;
    if (!prepared_.ok()) {
      facts = prepared_.status();
    } else if (prepared_->offer.has_value()) {
      facts = prepared_->offer->facts();
    } else {
      facts = FactsOf(*prepared_);
    }
    if (!facts.ok()) {
      SendFailure(
          absl::Status(facts.status().code(),
                       absl::StrCat("data: ", facts.status().message())));
      return;
    }
    protocol::ToCoordinator message;
    *message.mutable_data_ready()->mutable_data() = *facts;
    if (prepared_->offer.has_value()) {
      ServeData(*prepared_, files_.get());
      *message.mutable_data_ready()->mutable_offer() = *prepared_->offer;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      data_ready_ = message.data_ready();
    }
    client_->SendReliably(std::move(message));
  }

  // Ends the job, with this reason.
  void SendFailure(const absl::Status& status) {
    protocol::ToCoordinator message;
    message.mutable_agent_failed()->set_reason(
        is_first_ ? std::string(status.message())
                  : absl::StrCat(options_.host, ", agent ", agent_idx_, ": ",
                                 status.message()));
    // Damaged data stay damaged, however often the job is started.
    message.mutable_agent_failed()->set_bad_input(
        absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
        absl::IsDataLoss(status));
    client_->SendReliably(std::move(message));
  }

  // The end. ------------------------------------------------------------------

  // Workers were told too; who does not end by himself is killed.
  void End() {
    const bool all_well =
        exit_code_ == kDoneExitCode || exit_code_ == kRequeueExitCode;
    const absl::Time deadline =
        MonotonicNow() + (all_well ? kEndLimit : absl::ZeroDuration());
    workers_.End(deadline);
    client_.reset();
    if (coordinator_.pid() > 0) {
      WaitOrKill(coordinator_.pid(), MonotonicNow() + kEndLimit);
    }
    if (data_.has_value() && !data_->ended()) {
      // The thread reads and tokenizes and cannot be interrupted; what it
      // writes is renamed into place last, so nothing is left half done.
      std::cout.flush();
      _exit(exit_code_.value_or(1));
    }
  }

  const AgentOptions options_;
  const bool is_first_;
  const uint64_t instance_ =
      std::random_device()() | (uint64_t{std::random_device()()} << 32);
  int signal_fd_ = -1;
  std::ofstream log_;
  std::optional<DataPreparation> data_;
  absl::StatusOr<PreparedJobData> prepared_ = absl::UnavailableError("not yet");
  std::optional<int> exit_code_;
  int num_stop_signals_ = 0;
  const pid_t launcher_ = getppid();
  bool launcher_is_gone_ = false;
  absl::Time give_up_at_ = absl::InfiniteFuture();
  CoordinatorProcess coordinator_{
      options_, [this](const std::string& line) { Log(line); }};
  bool coordinator_has_ended_ = false;  // For good.
  std::string coordinator_addresses_;   // Empty: only the one that is known.
  WorkerPlaces places_;
  std::map<int32_t, HostAddress> worker_addresses_;  // Where each listens.
  WorkerChildren workers_;                           // By WorkerIdx.
  GpuWatch gpus_{{}};                                // By DeviceOf().

  // Written by the main thread only; the client's thread reads.
  std::mutex mutex_;
  int32_t agent_idx_;  // -1: not known yet.
  std::optional<HostJob> host_job_;
  std::optional<protocol::DataReady> data_ready_;  // Once it is.
  bool is_keeper_ = false;
  std::string keeper_address_;         // With that: CoordinatorProcess's.
  std::optional<RunCopies> copies_;    // Of a keeper.
  std::unique_ptr<FileServer> files_;  // Where hosts are several.
  std::optional<protocol::StopRequest> stop_;  // Once asked for.

  std::unique_ptr<Client> client_;  // Its thread calls MakeHello(): last.
};

}  // namespace

void BlockAgentSignals() {
  const sigset_t signals = AgentSignals();
  CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
}

int RunAgent(AgentOptions options) { return Agent(std::move(options)).Run(); }

}  // namespace millrace

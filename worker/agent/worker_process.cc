#include "worker/agent/worker_process.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/protocol/client.h"
#include "fault/file_system.h"
#include "worker/agent/checkpoint_writer.h"
#include "worker/agent/generation_run.h"
#include "worker/agent/host_sign.h"
#include "worker/agent/replica_keeper.h"
#include "worker/agent/standby.h"
#include "worker/backend/agent_devices.h"

namespace millrace {
namespace {

constexpr absl::Duration kTearDownLimit = absl::Seconds(2);
constexpr int kReplaceMeExitCode = 3;
// A driver frees the memory of a GPU within a second.
constexpr absl::Duration kPredecessorLimit = absl::Seconds(30);
constexpr absl::Duration kHostInterval = absl::Seconds(1);
// Names of the process in /proc and in lists of processes.
constexpr char kStandbyName[] = "millrace-wait";
constexpr char kWorkerName[] = "millrace-worker";

class WorkerProcess {
 public:
  explicit WorkerProcess(const WorkerOptions& options) : options_(options) {}
  // A run uses client and writer.
  ~WorkerProcess() {
    SetRun(nullptr);
    if (warming_up_.joinable()) warming_up_.join();
  }

  absl::Status Run() {
    // The generation begins once the others have ended theirs.
    if (!options_.gpu_bus_id.empty()) {
      warming_up_ = std::thread([this] { WarmUp(); });
    }
    if (options_.standby_fd >= 0) {
      ASSIGN_OR_RETURN(const bool ordered, WaitForOrder());
      if (!ordered) return absl::OkStatus();
    }
    prctl(PR_SET_NAME, kWorkerName);
    RETURN_IF_ERROR(WaitForPredecessors());
    ASSIGN_OR_RETURN(
        replicas_, ReplicaKeeper::Create(options_.host_address, options_.secret,
                                         options_.replica_fd));
    host_.emplace(options_.gpu_bus_id);
    ASSIGN_OR_RETURN(
        client_,
        Client::Create({.address = options_.coordinator_address,
                        .secret = options_.secret,
                        .heartbeat_interval = options_.heartbeat_interval,
                        .measures_clock = true,
                        .make_hello = [this] { return MakeHello(); },
                        .fill_heartbeat =
                            [this](protocol::ToCoordinator* message) {
                              FillHeartbeat(message);
                            }}));
    while (true) {
      std::optional<protocol::FromCoordinator> message;
      ASSIGN_OR_RETURN(message, client_->Receive(absl::Seconds(1)));
      if (!message.has_value()) continue;
      if (message->has_shutdown()) {
        EndRun();
        return absl::OkStatus();
      }
      Handle(*message);
    }
  }

 private:
  // Returns false if none will come.
  absl::StatusOr<bool> WaitForOrder() {
    prctl(PR_SET_NAME, kStandbyName);
    ASSIGN_OR_RETURN(std::optional<StandbyOrder> order,
                     ReceiveOrder(options_.standby_fd));
    close(options_.standby_fd);
    if (!order.has_value()) return false;
    options_.coordinator_address = std::move(order->coordinator_address);
    options_.incarnation = order->incarnation;
    options_.predecessor_fds = std::move(order->predecessor_fds);
    std::cerr << "this standby process becomes incarnation "
              << options_.incarnation << std::endl;
    return true;
  }

  // They may still write to the memory file, and hold the GPU's memory.
  absl::Status WaitForPredecessors() const {
    const absl::Time deadline = MonotonicNow() + kPredecessorLimit;
    for (const int fd : options_.predecessor_fds) {
      pollfd entry = {.fd = fd, .events = POLLIN};
      int ready = 0;
      while (ready <= 0) {
        const int64_t left_ms =
            absl::ToInt64Milliseconds(deadline - MonotonicNow());
        if (left_ms <= 0) {
          return absl::DeadlineExceededError(absl::StrCat(
              "the process of this worker that died before has not ended "
              "within ",
              absl::FormatDuration(kPredecessorLimit),
              "; does its GPU or its disk hang?"));
        }
        ready = poll(&entry, 1, static_cast<int>(left_ms));
      }
      close(fd);
    }
    return absl::OkStatus();
  }

  void WarmUp() const {
    const double began_s = MonotonicSeconds();
    // Its error is met again, and reported, where the trainer is made.
    const absl::StatusOr<WorkerGpu> gpu = FindWorkerGpu(options_.gpu_bus_id);
    if (!gpu.ok()) return;
    const double found_s = MonotonicSeconds();
    gpu->backend->WarmUp(gpu->device_idx);
    std::cerr << absl::StrFormat(
                     "GPU %s ready in %.2f s; libraries %.3f s, device %.3f s",
                     options_.gpu_bus_id, MonotonicSeconds() - began_s,
                     found_s - began_s, MonotonicSeconds() - found_s)
              << std::endl;
  }

  // On the client's thread.
  protocol::Hello MakeHello() {
    std::lock_guard<std::mutex> lock(mutex_);
    protocol::Hello hello;
    protocol::WorkerHello* worker = hello.mutable_worker();
    worker->set_worker(ToInt(options_.worker));
    worker->set_incarnation(options_.incarnation);
    worker->set_run_directory(options_.run);
    *worker->mutable_replicas() = replicas_->Held();
    if (run_ == nullptr) {
      worker->set_phase(protocol::WORKER_PHASE_IDLE);
    } else {
      worker->set_generation(ToInt(run_->generation()));
      worker->set_phase(run_->running() ? protocol::WORKER_PHASE_RUNNING
                                        : protocol::WORKER_PHASE_STARTING);
    }
    return hello;
  }

  // On the client's thread.
  void FillHeartbeat(protocol::ToCoordinator* message) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (run_ == nullptr) return;
      run_->AddProgress(message);
    }
    const absl::Time now = MonotonicNow();
    if (now - host_read_ < kHostInterval) return;
    host_read_ = now;
    const bool is_first = host_->gpu_seconds() == 0;
    ToMessage(host_->Read(), message->mutable_heartbeat()->mutable_host());
    if (is_first && host_->gpu_seconds() > 0) {
      std::cerr << absl::StrFormat(
                       "GPU %s: its driver took %.1f ms for the first reading "
                       "of its state",
                       options_.gpu_bus_id, 1e3 * host_->gpu_seconds())
                << std::endl;
    }
  }

  void Handle(const protocol::FromCoordinator& message) {
    const Generation generation{message.generation()};
    switch (message.body_case()) {
      case protocol::FromCoordinator::kStartGeneration:
        if (generation < newest_) break;  // Late; ended already.
        EndRun();
        newest_ = generation;
        client_->DropOlderThan(message.generation());
        replicas_->RefuseOlderThan(generation);
        SetRun(std::make_unique<GenerationRun>(
            options_, client_.get(), &writer_, replicas_.get(), generation,
            message.start_generation()));
        break;
      case protocol::FromCoordinator::kAbortGeneration:
        if (generation < newest_) break;
        newest_ = generation;
        replicas_->RefuseOlderThan(generation);
        if (run_ != nullptr && run_->generation() < generation) EndRun();
        client_->DropOlderThan(message.generation());
        SendReady(message.generation());
        break;
      case protocol::FromCoordinator::kRendezvousValue:
        if (run_ != nullptr && run_->generation() == generation) {
          run_->store()->OnValue(message.rendezvous_value().key(),
                                 message.rendezvous_value().value());
        }
        break;
      case protocol::FromCoordinator::kStopTraining:
        if (run_ != nullptr && run_->generation() == generation) {
          if (message.stop_training().pause()) {
            run_->RequestPause();
          } else {
            run_->RequestStop();
          }
        }
        break;
      case protocol::FromCoordinator::kCheckpointInterval:
        if (run_ != nullptr && run_->generation() == generation) {
          run_->SetCheckpointInterval(message.checkpoint_interval());
        }
        break;
      default:
        break;
    }
  }

  void SendReady(int64_t generation) {
    protocol::ToCoordinator ready;
    ready.set_generation(generation);
    *ready.mutable_worker_ready()->mutable_replicas() = replicas_->Held();
    client_->SendReliably(std::move(ready));
  }

  void SetRun(std::unique_ptr<GenerationRun> run) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      run_.swap(run);
    }
    // The old one is destroyed here, with the client's thread not waiting.
  }

  void EndRun() {
    if (run_ == nullptr) return;
    const double began_s = MonotonicSeconds();
    run_->Abort();
    // A state that is being kept is waited for: the coordinator bounds it.
    while (!run_->WaitUntilEnded(kTearDownLimit)) {
      if (run_->keeps_state()) continue;
      std::cerr << "generation " << ToInt(run_->generation())
                << " did not end within "
                << absl::FormatDuration(kTearDownLimit)
                << "; exiting to be replaced" << std::endl;
      _exit(kReplaceMeExitCode);
    }
    if (run_->device_lost()) {
      std::cerr << "the device is unusable after an error; exiting to be "
                   "replaced"
                << std::endl;
      _exit(kReplaceMeExitCode);
    }
    std::cerr << absl::StrFormat("generation %d ended in %.2f s",
                                 ToInt(run_->generation()),
                                 MonotonicSeconds() - began_s)
              << std::endl;
    SetRun(nullptr);
  }

  WorkerOptions options_;  // Complete once WaitForOrder() has returned.
  std::thread warming_up_;
  Generation newest_{};  // Told of; older ones are refused.
  // Changed by the main thread only; the client's thread reads it.
  std::mutex mutex_;
  std::unique_ptr<ReplicaKeeper> replicas_;  // Set once, at first.
  std::unique_ptr<GenerationRun> run_;
  std::optional<HostSignReader> host_;  // On the client's thread.
  absl::Time host_read_ = absl::InfinitePast();
  // Destroyed before what its thread uses in MakeHello().
  std::unique_ptr<Client> client_;
  CheckpointWriter writer_{PosixFileSystem()};  // Reports to the client.
};

}  // namespace

absl::Status RunWorker(const WorkerOptions& options) {
  return WorkerProcess(options).Run();
}

}  // namespace millrace

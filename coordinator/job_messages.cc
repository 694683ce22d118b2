// Messages to events; see job_runner.h.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "coordinator/job_runner.h"
#include "coordinator/protocol/convert.h"
#include "coordinator/protocol/exit_codes.h"
#include "planner/profile/profile_file.h"

namespace millrace {
namespace {

// Steps that some ranks have not reported yet.
constexpr size_t kTimelinesKept = 2;
// Between writes of time.json.
constexpr absl::Duration kTimeInterval = absl::Seconds(5);

WorkerPhase PhaseOf(protocol::WorkerPhase phase) {
  switch (phase) {
    case protocol::WORKER_PHASE_STARTING:
      return WorkerPhase::kStarting;
    case protocol::WORKER_PHASE_RUNNING:
      return WorkerPhase::kRunning;
    default:
      return WorkerPhase::kIdle;
  }
}

RankLoad LoadOf(const protocol::HostLoad& load) {
  return {.seconds = load.seconds(),
          .busy_s = load.busy_s(),
          .own_s = load.own_s(),
          .num_processors = load.num_processors()};
}

}  // namespace

void JobRunner::Acknowledge(SessionId session, uint64_t sequence) {
  if (sequence == 0) return;
  protocol::FromCoordinator answer;
  answer.mutable_acknowledge()->add_sequences(sequence);
  server_->Send(session, answer);
}

void JobRunner::OnMessage(SessionId session,
                          const protocol::ToCoordinator& message) {
  if (message.has_hello()) {
    OnHello(session, message.hello());
    return;
  }
  const auto found = peers_.find(session);
  if (found == peers_.end() || exit_code_.has_value()) return;
  const Peer peer = found->second;
  // Parts and results are held back: a restarted coordinator needs them again.
  if (message.has_step_done() && !log_->job().keepers.empty()) {
    // So does a coordinator on another host, until it has a copy of metrics.
    uncopied_.emplace_back(session, message.sequence());
  } else if (!message.has_checkpoint_part() && !message.has_worker_finished()) {
    Acknowledge(session, message.sequence());
  }
  if (peer.visits) {
    OnVisitorMessage(session, message);
  } else if (peer.process.has_value()) {
    Handle(WorkerHeard{*peer.process});
    OnWorkerMessage(session, *peer.process, message);
  } else {
    Handle(AgentHeard{peer.agent_idx});
    OnAgentMessage(peer.agent_idx, message);
  }
}

void JobRunner::OnClosed(SessionId session) {
  ForgetVisitor(session);
  const auto found = peers_.find(session);
  if (found == peers_.end()) return;
  const int32_t agent_idx = found->second.agent_idx;
  peers_.erase(found);
  if (agent_idx >= 0 && agent_sessions_[agent_idx] == session) {
    Handle(AgentDisconnected{agent_idx});
  }
}

void JobRunner::OnHello(SessionId session, const protocol::Hello& hello) {
  if (options_.term > 0 && hello.term() > options_.term) {
    StepDown(absl::StrCat("a peer knows the coordinator of term ", hello.term(),
                          ", and this is that of term ", options_.term));
  }
  if (exit_code_.has_value()) {
    protocol::FromCoordinator message;
    message.mutable_shutdown()->set_exit_code(*exit_code_);
    message.mutable_shutdown()->set_message(last_message_);
    server_->Send(session, message);
    return;
  }
  if (hello.has_agent()) {
    OnAgentHello(session, hello.agent());
    return;
  }
  if (hello.has_visitor()) {
    peers_[session] = {.visits = true};
    return;
  }
  const protocol::WorkerHello& worker = hello.worker();
  const std::string refusal =
      StrangerRefusal(absl::StrCat("the host of worker ", worker.worker()),
                      worker.run_directory());
  if (!refusal.empty()) {
    Refuse(session, refusal);
    return;
  }
  const ProcessId process = {WorkerIdx{worker.worker()}, worker.incarnation()};
  const auto known = worker_sessions_.find(process.worker);
  if (known != worker_sessions_.end()) {
    const auto peer = peers_.find(known->second);
    if (peer != peers_.end() && peer->second.process.has_value() &&
        peer->second.process->incarnation > process.incarnation) {
      Refuse(session, "a later process has its place");
      return;
    }
  }
  peers_[session] = {.process = process};
  replicas_[process.worker] = worker.replicas();
  worker_sessions_[process.worker] = session;
  // Says that somebody listens.
  protocol::FromCoordinator message;
  message.mutable_acknowledge();
  server_->Send(session, message);
  // It may have missed it; another generation's it ignores.
  if (interval_change_.has_value()) server_->Send(session, *interval_change_);
  Handle(WorkerJoined{process, Generation{worker.generation()},
                      PhaseOf(worker.phase())});
}

void JobRunner::Refuse(SessionId session, absl::string_view reason) {
  protocol::FromCoordinator message;
  message.mutable_shutdown()->set_exit_code(kRefusedExitCode);
  message.mutable_shutdown()->set_message(std::string(reason));
  server_->Send(session, message);
}

void JobRunner::OnAgentHello(SessionId session,
                             const protocol::AgentHello& greeting) {
  protocol::AgentHello hello = greeting;
  const absl::StatusOr<int32_t> agent_idx = IndexFor(hello);
  if (!agent_idx.ok()) {
    Refuse(session, agent_idx.status().message());
    return;
  }
  hello.set_agent_idx(*agent_idx);
  peers_[session] = {.agent_idx = hello.agent_idx()};
  agent_sessions_[hello.agent_idx()] = session;
  if (hello.agent_idx() == options_.own_agent) {
    for (const AgentGaveUp& earlier : std::exchange(gave_up_early_, {})) {
      Handle(earlier);
    }
  }
  if (const std::string refusal = BuildRefusal(hello); !refusal.empty()) {
    OnGaveUp({hello.agent_idx(), refusal, /*bad_input=*/true});
    return;
  }
  if (!hello.has_job()) {
    protocol::FromCoordinator message;
    protocol::Welcome* welcome = message.mutable_welcome();
    welcome->set_job_yaml(job_yaml_);
    welcome->set_run_directory(options_.run);
    welcome->set_probe(probe_);
    welcome->set_agent_idx(hello.agent_idx());
    welcome->set_num_agents(options_.num_agents);
    welcome->set_checkpoint_directory(job_.checkpoint.directory);
    server_->Send(session, message);
    return;
  }
  agents_[hello.agent_idx()] = hello;
  agent_routes_[hello.agent_idx()] = server_->RouteOf(session);
  // Says that somebody listens.
  protocol::FromCoordinator message;
  message.mutable_acknowledge();
  server_->Send(session, message);
  TellCoordinators(session);
  if (const std::string refusal = SourceRefusal(); !refusal.empty()) {
    OnGaveUp({hello.agent_idx(), refusal, /*bad_input=*/true});
    return;
  }
  if (hello.data_ready() && !OnAgentData(hello.agent_idx())) return;
  if (hello.data_ready()) {
    OnDataOffer(hello.agent_idx());
  } else if (!job_.data.is_on(hello.agent_idx(), hello.host())) {
    SendOffer(hello.agent_idx());
  }
  PrintFetching();
  AgentJoined joined = {.agent_idx = hello.agent_idx(),
                        .host = hello.host(),
                        .num_devices = hello.num_devices(),
                        .data_ready = hello.data_ready()};
  for (const protocol::LiveWorker& worker : hello.workers()) {
    joined.live_workers.push_back(
        {WorkerIdx{worker.worker()}, worker.incarnation()});
  }
  if (hello.has_stop()) {
    Handle(StopRequested{hello.stop().now(), hello.stop().requeue()});
  }
  Handle(joined);
}

void JobRunner::OnGaveUp(const AgentGaveUp& event) {
  if (agent_sessions_.contains(options_.own_agent)) {
    Handle(event);
  } else {
    gave_up_early_.push_back(event);
  }
}

void JobRunner::OnAgentMessage(int32_t agent_idx,
                               const protocol::ToCoordinator& message) {
  switch (message.body_case()) {
    case protocol::ToCoordinator::kDataReady:
      *agents_[agent_idx].mutable_data() = message.data_ready().data();
      agents_[agent_idx].set_data_ready(true);
      if (message.data_ready().has_offer()) {
        *agents_[agent_idx].mutable_offer() = message.data_ready().offer();
      }
      if (OnAgentData(agent_idx)) {
        OnDataOffer(agent_idx);
        PrintFetching();
        Handle(AgentDataReady{agent_idx});
      }
      break;
    case protocol::ToCoordinator::kAgentFailed:
      OnGaveUp({agent_idx, message.agent_failed().reason(),
                message.agent_failed().bad_input()});
      break;
    case protocol::ToCoordinator::kWorkerDied: {
      const protocol::WorkerDied& died = message.worker_died();
      const WorkerIdx worker{died.worker()};
      output_->AddToLog(worker, died.log_end());
      replicas_.erase(worker);  // Its next process tells what it finds.
      Handle(WorkerDead{{worker, died.incarnation()}, died.detail()});
      break;
    }
    case protocol::ToCoordinator::kGpuAfterDeath:
      Do(Report{.event = "gpu_after_death",
                .worker = WorkerIdx{message.gpu_after_death().worker()},
                .detail = message.gpu_after_death().detail()});
      break;
    case protocol::ToCoordinator::kLog:
      OnLogText(message.log());
      break;
    case protocol::ToCoordinator::kStopRequest:
      if (end_after_exports_.has_value()) {
        End(*std::exchange(end_after_exports_, std::nullopt));
        break;
      }
      Handle(StopRequested{message.stop_request().now(),
                           message.stop_request().requeue()});
      break;
    default:
      break;  // Heartbeat.
  }
}

void JobRunner::OnWorkerMessage(SessionId session, const ProcessId& process,
                                const protocol::ToCoordinator& message) {
  const Generation generation{message.generation()};
  const std::optional<Rank> rank = state_->RankOf(process.worker);
  switch (message.body_case()) {
    case protocol::ToCoordinator::kWorkerReady:
      // One that is sent again, of an older generation, knows less.
      if (generation == state_->generation()) {
        replicas_[process.worker] = message.worker_ready().replicas();
      }
      Handle(WorkerCleared{process, generation});
      break;
    case protocol::ToCoordinator::kRendezvousSet:
    case protocol::ToCoordinator::kRendezvousGet:
      OnRendezvous(session, message);
      break;
    case protocol::ToCoordinator::kGenerationRunning:
      AddStart(message.generation_running());
      ReportDamagedCopies(
          {message.generation_running().damaged_copies().begin(),
           message.generation_running().damaged_copies().end()});
      Handle(WorkerRunning{process.worker, generation,
                           message.generation_running().completed_steps(),
                           message.generation_running().from_memory()});
      break;
    case protocol::ToCoordinator::kGenerationFailed: {
      const protocol::GenerationFailed& failed = message.generation_failed();
      const auto code = static_cast<absl::StatusCode>(failed.code());
      if (code == absl::StatusCode::kDataLoss) {
        // The bytes read were damaged: a part in memory, or a checkpoint.
        if (restored_set_.has_value() && generation == state_->generation()) {
          refused_replicas_.insert(*restored_set_);
        } else {
          verify_before_restore_ = true;
        }
      }
      Handle(WorkerFailed{process.worker, generation,
                          absl::Status(code, failed.message())});
      break;
    }
    case protocol::ToCoordinator::kStepDone:
      if (rank.has_value() && generation == state_->generation()) {
        OnStepOfRank(*rank, message.generation(), message.step_done());
      }
      if (generation <= state_->generation()) {
        RecordStep(message.generation(), message.step_done());
      }
      break;
    case protocol::ToCoordinator::kHeartbeat:
      if (rank.has_value()) OnProgress(*rank, message);
      break;
    case protocol::ToCoordinator::kStateHash:
      if (rank.has_value()) OnStateHash(*rank, message);
      break;
    case protocol::ToCoordinator::kBadStep:
      if (rank.has_value()) OnBadStep(*rank, message);
      break;
    case protocol::ToCoordinator::kCheckpointPart:
      if (rank.has_value()) {
        OnCheckpointPart(process.worker, *rank, message);
      } else {
        Acknowledge(session, message.sequence());
      }
      break;
    case protocol::ToCoordinator::kProfileMeasured:
      OnProfile(message);
      break;
    case protocol::ToCoordinator::kWorkerFinished:
      if (rank.has_value()) OnFinished(process.worker, *rank, message);
      break;
    default:
      break;
  }
}

void JobRunner::OnRendezvous(SessionId session,
                             const protocol::ToCoordinator& message) {
  if (Generation{message.generation()} != state_->generation()) return;
  protocol::FromCoordinator answer;
  answer.set_generation(message.generation());
  if (message.has_rendezvous_set()) {
    const std::string& key = message.rendezvous_set().key();
    rendezvous_[key] = message.rendezvous_set().value();
    answer.mutable_rendezvous_value()->set_key(key);
    answer.mutable_rendezvous_value()->set_value(rendezvous_[key]);
    for (SessionId waiter : rendezvous_waiters_[key]) {
      server_->Send(waiter, answer);
    }
    rendezvous_waiters_.erase(key);
    return;
  }
  const std::string& key = message.rendezvous_get().key();
  const auto found = rendezvous_.find(key);
  if (found == rendezvous_.end()) {
    rendezvous_waiters_[key].insert(session);
    return;
  }
  answer.mutable_rendezvous_value()->set_key(key);
  answer.mutable_rendezvous_value()->set_value(found->second);
  server_->Send(session, answer);
}

void JobRunner::OnStepOfRank(Rank rank, int64_t generation,
                             const protocol::StepDone& step) {
  OnReplicaStep(rank, step);
  output_->AddRankStep(rank, generation, step.step(), step.stage(),
                       FromMessage(step.breakdown()), step.validation_s());
  if (step.timeline_size() > 0 && plan_.has_value()) {
    auto& ranks = timelines_[step.step()];
    ranks[rank] = {.timeline = TimelineOf(step, rank),
                   .load = LoadOf(step.load())};
    if (static_cast<int32_t>(ranks.size()) == plan_->layout.num_ranks()) {
      Timeline timeline = {.step_time_s = step.step_time_s()};
      std::vector<RankLoad> loads;
      for (auto& [member, measured] : ranks) {
        timeline.ranks.push_back(std::move(measured.timeline));
        loads.push_back(measured.load);
      }
      AlignBegins(&timeline);
      ShouldSucceed(output_->WriteFile("timelines/measured.json",
                                       TimelineToJson(timeline)));
      ObserveStep(generation, step.step(), timeline,
                  OthersShare(loads, Devices().ranks_per_host));
      timelines_.erase(step.step());
    }
    while (timelines_.size() > kTimelinesKept) {
      timelines_.erase(timelines_.begin());
    }
  }
  WatchCompute(rank, step);
  if (rank == Rank{0}) hang_watch_.NoteStep(step.step_time_s());
}

void JobRunner::RecordStep(int64_t generation, const protocol::StepDone& step) {
  const int64_t tokens =
      job_.training.global_batch * job_.model.sequence_length;
  const std::map<std::string, double> evaluation(
      step.evaluation_losses().begin(), step.evaluation_losses().end());
  const bool is_new = output_->Step(
      {.generation = generation,
       .step = step.step(),
       .loss = step.loss(),
       .gradient_norm = step.gradient_norm(),
       .learning_rate = step.learning_rate(),
       .tokens = tokens,
       .step_time_s = step.step_time_s(),
       .predicted_step_time_s = plan_.has_value() ? plan_->step_time_s : 0,
       .validation_loss = step.has_validation_loss()
                              ? std::optional<double>(step.validation_loss())
                              : std::nullopt,
       .evaluation = evaluation,
       .rewards = step.has_rewards()
                      ? std::optional<RewardRecord>(
                            {.chosen = step.rewards().chosen(),
                             .rejected = step.rewards().rejected(),
                             .accuracy = step.rewards().accuracy()})
                      : std::nullopt});
  if (!is_new) return;
  const absl::Time now = MonotonicNow();
  if (now - time_written_ > kTimeInterval) {
    // For those who watch. Failing that hurts nobody: checkpoints write it too.
    static_cast<void>(output_->WriteTime());
    time_written_ = now;
  }
  if (progress_.has_value()) {
    progress_->Step(
        {.step = step.step(),
         .loss = step.loss(),
         .tokens_per_s = static_cast<double>(tokens) / step.step_time_s(),
         .step_time_s = step.step_time_s()},
        now);
    for (const auto& [set, loss] : evaluation) {
      progress_->Line(absl::StrFormat(
          "evaluation after step %d: %s loss %.4f, perplexity %.4g",
          step.step(), set, loss, std::exp(loss)));
    }
  }
  // A generation that has ended cannot go back any more.
  if (Generation{generation} == state_->generation()) {
    WatchLoss(step.step(), step.loss());
  }
}

void JobRunner::OnCheckpointPart(WorkerIdx worker, Rank rank,
                                 const protocol::ToCoordinator& message) {
  const protocol::CheckpointPart& part = message.checkpoint_part();
  const Generation generation{message.generation()};
  if (generation != state_->generation() ||
      part.step() <= state_->committed_step() ||
      abandoned_steps_.contains(part.step())) {
    Acknowledge(worker_sessions_[worker], message.sequence());
    return;
  }
  if (!part.error().empty()) {
    output_->Event({.event = "checkpoint_failed",
                    .generation = message.generation(),
                    .step = part.step(),
                    .rank = ToInt(rank),
                    .host = state_->HostOf(worker),
                    .detail = part.error()});
  }
  auto& of_step = parts_[part.step()];
  const bool is_new = !of_step.contains(rank);
  of_step[rank] = {.entry = part.entry(),
                   .worker = worker,
                   .sequence = message.sequence(),
                   .waited_s = part.waited_s(),
                   .written_s = part.written_s(),
                   .failed = !part.error().empty()};
  if (is_new) output_->AddCheckpoint(rank, part.waited_s());
  const bool is_over =
      static_cast<int32_t>(of_step.size()) == plan_->layout.num_ranks() &&
      std::any_of(of_step.begin(), of_step.end(),
                  [](const auto& entry) { return entry.second.failed; });
  // This comes first: a job whose last checkpoint has failed ends.
  if (part.memory_changed()) OnMemoryChanged(worker, rank, part.step());
  Handle(PartWritten{worker, generation, part.step(), part.error()});
  if (is_over && generation == state_->generation()) AbandonParts(part.step());
}

void JobRunner::OnProfile(const protocol::ToCoordinator& message) {
  const Generation generation{message.generation()};
  if (generation != state_->generation()) return;
  absl::StatusOr<HardwareProfile> profile = ParseProfile(
      message.profile_measured().profile_yaml(), "measured profile");
  const absl::StatusOr<std::string> path =
      profile.ok()
          ? KeepProfile(job_, Devices(), options_.profile_output, *profile)
          : absl::StatusOr<std::string>(profile.status());
  if (!path.ok()) {
    Handle(
        WorkerFailed{WorkerIdx{0}, generation,
                     absl::InvalidArgumentError(absl::StrCat(
                         "the measured profile: ", path.status().message()))});
    return;
  }
  output_->Event({.event = "profiled",
                  .generation = message.generation(),
                  .detail = *path});
  progress_->Line(absl::StrCat("profile of this machine: ", *path));
  if (options_.profile_only) {
    progress_->Line(
        HowToUseProfile(job_, options_.job_file, *path,
                        /*is_cached=*/options_.profile_output.empty()));
  }
  measured_profile_ = *std::move(profile);
  Handle(ProfileMade{generation});
}

void JobRunner::OnFinished(WorkerIdx worker, Rank rank,
                           const protocol::ToCoordinator& message) {
  if (Generation{message.generation()} != state_->generation()) return;
  const protocol::WorkerFinished& finished = message.worker_finished();
  if (finished.paused()) {
    Handle(WorkerPaused{worker, Generation{message.generation()},
                        finished.kept()});
    return;
  }
  if (finished.has_parameter_hash()) {
    parameter_hashes_[rank] = finished.parameter_hash();
  }
  if (rank == Rank{0}) final_loss_ = finished.final_loss();
  device_bytes_ = std::max(device_bytes_, finished.device_bytes());
  Handle(WorkerDone{worker, Generation{message.generation()}, finished.steps(),
                    finished.stopped(), finished.saved()});
}

}  // namespace millrace

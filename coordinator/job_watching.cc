// Watches ranks that train: hangs, slow ranks, wrong numbers. Part of JobRunner
// (job_runner.h). The rules are pure and lie in fault/.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/units.h"
#include "coordinator/host_signs.h"
#include "coordinator/job_runner.h"
#include "fault/hang.h"
#include "fault/replica_check.h"
#include "planner/lower/lower.h"

namespace millrace {
namespace {

// A rank that is this many times as slow as it should be is replaced, if the
// job asks for it.
constexpr double kReplacedFrom = 1.5;
constexpr size_t kHashedStepsKept = 4;
// Seconds. The oldest tells what a host was before its rank became slow.
constexpr size_t kHostSignsKept = 60;
// A rank that was replaced for wrong numbers is tested for so many steps.
constexpr int32_t kComparedSteps = 20;

RankSign SignOf(const protocol::Progress& message) {
  // The values of both enumerations are the same.
  RankSign sign = {.activity = static_cast<RankActivity>(message.activity()),
                   .progress = {.step = message.step()}};
  const int num_lanes = std::min(kNumLanes, message.completed_size());
  for (int lane = 0; lane < num_lanes; ++lane) {
    sign.progress.completed[lane] = message.completed(lane);
  }
  return sign;
}

}  // namespace

std::string JobRunner::NameOf(Rank rank) const {
  return state_->NameOf(state_->members()[ToInt(rank)]);
}

void JobRunner::BeginWatching() {
  watched_ = state_->generation();
  const Layout& layout = plan_->layout;
  hang_watch_.Begin(layout.num_ranks(), plan_->step_time_s, MonotonicNow());
  bad_steps_.Begin(layout);
  state_hashes_.clear();
  hosts_.clear();
  // Ranks of one stage with different micro-batches compute for different
  // times.
  std::vector<int32_t> stage_of;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    stage_of.push_back(static_cast<int32_t>(
        ProgramIdx(layout, CoordinatesOf(layout, Rank{rank}))));
  }
  std::vector<SlowRankWatch::Stage> stages(NumPrograms(layout));
  for (size_t i = 0; i < stages.size() && i < plan_->compute_s.size(); ++i) {
    stages[i].compute_s = plan_->compute_s[i];
  }
  slow_ranks_.Begin(std::move(stage_of), std::move(stages));
}

// Hangs. ----------------------------------------------------------------------

void JobRunner::OnProgress(Rank rank, const protocol::ToCoordinator& message) {
  if (!message.heartbeat().has_progress() ||
      Generation{message.generation()} != watched_) {
    return;
  }
  hang_watch_.Note(rank, SignOf(message.heartbeat().progress()),
                   MonotonicNow());
  if (!message.heartbeat().has_host()) return;
  std::deque<HostSign>& signs = hosts_[rank];
  signs.push_back(SignFromMessage(message.heartbeat().host()));
  if (signs.size() > kHostSignsKept) signs.pop_front();
}

void JobRunner::CheckHang() {
  const absl::Time now = MonotonicNow();
  if (!hang_watch_.StandsStill(now) || watched_ != state_->generation()) return;
  const absl::StatusOr<std::vector<Program>> programs =
      BuildProgramsOfRanks(job_.model, plan_->layout);
  if (!programs.ok()) return;  // They were built when the plan was made.
  std::vector<const Program*> borrowed;
  for (const Program& program : *programs) borrowed.push_back(&program);
  const Hang hang = ExplainStandstill(borrowed, hang_watch_.Progress(now));
  RanksHang event = {
      .generation = watched_,
      .explanation = absl::StrCat(
          "no rank has got on for ",
          FormatSeconds(absl::ToDoubleSeconds(hang_watch_.StandingFor(now))),
          ": ", hang.explanation)};
  for (size_t i = 0; i < hang.culprits.size(); ++i) {
    event.culprits.push_back(state_->members()[ToInt(hang.culprits[i])]);
    event.reasons.push_back(
        absl::StrCat(hang.whereabouts[i], "; ", event.explanation));
    progress_->Line(absl::StrCat(NameOf(hang.culprits[i]),
                                 " hangs: ", hang.whereabouts[i]));
  }
  Handle(event);
}

// Slow ranks. -----------------------------------------------------------------

void JobRunner::WatchCompute(Rank rank, const protocol::StepDone& step) {
  // Only a GPU's measured steps say how long it computed.
  if (job_.resources.uses_cuda() && step.timeline_size() == 0) return;
  const std::optional<SlowRank> slow =
      slow_ranks_.Note(rank, step.breakdown().compute_s());
  if (!slow.has_value()) return;
  const WorkerIdx worker = state_->members()[ToInt(rank)];
  EventRecord record = {
      .event = slow->recovered ? "rank_recovered" : "slow_rank",
      .generation = ToInt(state_->generation()),
      .step = step.step(),
      .rank = ToInt(rank),
      .host = state_->HostOf(worker)};
  if (slow->recovered) {
    record.detail = "computes as long as its Program's prediction again";
  } else {
    record.detail = absl::StrFormat(
        "computes %.2f times as long as its Program's prediction, as learnt",
        slow->factor);
    const std::deque<HostSign>& signs = hosts_[rank];
    if (!signs.empty()) {
      absl::StrAppend(&record.detail, "; ",
                      SlowCause(signs.front(), signs.back()));
    }
  }
  output_->Event(record);
  progress_->Line(absl::StrCat(NameOf(rank), " ", record.detail));
  if (!slow->recovered && job_.fault.on_slow_rank == "replace" &&
      slow->factor >= kReplacedFrom && replaced_.insert(worker).second) {
    Handle(ReplaceWorker{worker, absl::StrCat("slow: ", record.detail)});
  }
}

// Wrong numbers. --------------------------------------------------------------

void JobRunner::OnStateHash(Rank rank, const protocol::ToCoordinator& message) {
  const Generation generation{message.generation()};
  if (generation != state_->generation() || generation != watched_) return;
  const protocol::StateHash& sent = message.state_hash();
  const int64_t step = sent.step();
  const Layout& layout = plan_->layout;
  const bool gathered = sent.gathered_size() > 0;
  if (gathered && sent.gathered_size() != layout.group_data()) return;
  auto& of_step = state_hashes_[{step, gathered}];
  of_step[rank] = {sent.gathered().begin(), sent.gathered().end()};
  if (!gathered) of_step[rank] = {sent.hash()};
  if (static_cast<int32_t>(of_step.size()) < layout.num_ranks()) {
    while (state_hashes_.size() > kHashedStepsKept) {
      state_hashes_.erase(state_hashes_.begin());
    }
    return;
  }
  std::vector<uint64_t> hashes;
  std::vector<std::vector<uint64_t>> slices;
  for (auto& [member, of_rank] : of_step) {
    hashes.push_back(of_rank.front());
    slices.push_back(std::move(of_rank));
  }
  state_hashes_.erase({step, gathered});
  const ReplicaVerdict verdict = gathered ? CompareGathered(layout, slices)
                                          : CompareReplicas(layout, hashes);
  if (verdict.agree) {
    agreed_ = {generation, step};
    // One kind is counted: comparisons of the state, where there are some.
    if (gathered == HasReplicas(layout)) return;
    if (++num_agreed_ == compared_steps_) {
      output_->Event({.event = "replicas_agree",
                      .generation = ToInt(generation),
                      .step = step,
                      .detail = absl::StrCat("in all ", num_agreed_,
                                             " comparisons since they "
                                             "differed")});
      compared_steps_ = 0;
    }
    return;
  }
  const bool outvoted = !verdict.minority.empty();
  const std::vector<Rank>& suspects =
      outvoted ? verdict.minority : verdict.undecided;
  ReplicasDiffer event = {
      .generation = generation, .step = step, .outvoted = outvoted};
  std::vector<std::string> names;
  for (const Rank suspect : suspects) {
    event.suspects.push_back(state_->members()[ToInt(suspect)]);
    names.push_back(NameOf(suspect));
  }
  event.explanation = absl::StrCat(
      gathered ? absl::StrCat("in step ", step + 1, " the gathered parameters")
               : absl::StrCat("after step ", step, " the parameters"),
      " of ", absl::StrJoin(names, ", "),
      outvoted ? " differ from those of most replicas; replacing it"
               : " differ, with no majority");
  GoBack(event);
}

void JobRunner::OnMemoryChanged(WorkerIdx worker, Rank rank, int64_t step) {
  GoBack({.generation = state_->generation(),
          .step = step,
          .suspects = {worker},
          .outvoted = true,
          .explanation = absl::StrCat(
              "after step ", step, " the state of ", NameOf(rank),
              " changed in memory between the comparison of replicas and the "
              "checkpoint; replacing it")});
}

std::string JobRunner::BackToText(int64_t trusted_step) {
  return trusted_step >= 0
             ? absl::StrCat("; going back to step ", trusted_step,
                            ", after which all agreed, or to the newest state "
                            "there is of a step before it")
             : "; going back to the last checkpoint";
}

void JobRunner::GoBack(ReplicasDiffer event) {
  if (job_.fault.replica_check_steps > 0) compared_steps_ = kComparedSteps;
  absl::StrAppend(&event.explanation,
                  BackToText(DistrustMemory(event.generation, event.step)));
  progress_->Line(absl::StrCat("wrong numbers: ", event.explanation));
  Handle(event);
}

void JobRunner::OnBadStep(Rank rank, const protocol::ToCoordinator& message) {
  const Generation generation{message.generation()};
  if (generation != state_->generation() || generation != watched_) return;
  const protocol::BadStep& bad = message.bad_step();
  BadStepReport report = {.step = bad.step(),
                          .passed = bad.passed(),
                          .origin = bad.origin(),
                          .largest_amax = bad.largest_amax(),
                          .largest_in = bad.largest_in()};
  if (bad.has_elsewhere()) {
    report.elsewhere = {.passed = bad.elsewhere().passed(),
                        .origin = bad.elsewhere().origin()};
  }
  const std::optional<BadStepVerdict> verdict = bad_steps_.Note(rank, report);
  if (!verdict.has_value()) return;
  const bool counts = verdict->passed || verdict->passed_elsewhere;
  EventRecord record = {.event = "not_finite",
                        .generation = message.generation(),
                        .step = verdict->step,
                        .detail = TextOf(*verdict)};
  if (!verdict->passed && !verdict->origins.empty()) {
    record.rank = ToInt(verdict->origins[0].first);
    record.host = state_->HostOf(state_->members()[record.rank]);
  }
  output_->Event(record);
  if (counts || verdict->num_in_row == 1 || !verdict->suspects.empty()) {
    progress_->Line(absl::StrCat("step ", verdict->step, ": ", record.detail));
  }
  // A copy: to replace a worker may change them.
  const std::vector<WorkerIdx> members = state_->members();
  for (const Rank suspect : verdict->suspects) {
    Handle(ReplaceWorker{members[ToInt(suspect)],
                         "it computes wrongly what others compute well"});
  }
  if (counts || !verdict->suspects.empty()) return;
  const int32_t most = job_.fault.max_skipped_steps;
  if (job_.fault.on_bad_gradient == "stop") {
    Handle(TrainingHopeless{
        generation, absl::StrCat("step ", verdict->step, ": ", record.detail)});
  } else if (verdict->num_in_row > most) {
    Handle(TrainingHopeless{
        generation, absl::StrCat(verdict->num_in_row,
                                 " steps in a row were skipped, more than "
                                 "fault.max_skipped_steps = ",
                                 most, ": ", record.detail)});
  }
}

std::string JobRunner::TextOf(const BadStepVerdict& verdict) const {
  if (verdict.passed) {
    return "loss or gradient was not a number, and was one when the step was "
           "run again: some device computed wrongly; the step counts";
  }
  std::string text =
      verdict.passed_elsewhere
          ? "loss or gradient was not a number, twice, and was one when other "
            "ranks computed the same samples; the step counts"
          : "loss or gradient is not a number; the weights were left as they "
            "were";
  if (verdict.origins.empty()) {
    absl::StrAppend(&text, "; no op made it: some parameters are not numbers");
  } else {
    absl::StrAppend(&text, "; it began in ",
                    absl::StrJoin(verdict.origins, ", in ",
                                  [this](std::string* out, const auto& origin) {
                                    absl::StrAppend(out, origin.second, " of ",
                                                    NameOf(origin.first));
                                  }));
  }
  if (verdict.cause == BadStepCause::kSamples) {
    absl::StrAppend(&text,
                    "; the same samples make it on other ranks, too: they or "
                    "the model are the cause");
  } else if (verdict.cause == BadStepCause::kDevices) {
    absl::StrAppend(&text,
                    "; other ranks compute the same samples well: replacing ",
                    absl::StrJoin(verdict.suspects, ", ",
                                  [this](std::string* out, Rank suspect) {
                                    absl::StrAppend(out, NameOf(suspect));
                                  }));
  }
  if (verdict.largest_on != Rank{-1}) {
    absl::StrAppend(
        &text,
        absl::StrFormat("; of the tensors that were copied in 8 bits, the "
                        "largest magnitude was %.3g, in ",
                        verdict.largest_amax),
        verdict.largest_in, " of ", NameOf(verdict.largest_on));
  }
  return text;
}

void JobRunner::WatchLoss(int64_t step, double loss) {
  const std::optional<LossSpike> spike = losses_.Note(step, loss);
  if (!spike.has_value()) return;
  const Generation generation = state_->generation();
  const int64_t committed = state_->committed_step();
  // 0: there is no checkpoint to go back to.
  const int64_t saved =
      committed >= 0 ? committed : StepOnDisk(plan_->resume_path, {});
  const std::string& policy = job_.fault.on_loss_spike;
  const bool rolls_back = policy == "roll_back" && saved > 0;
  const int64_t first = rolls_back ? saved + 1 : step;
  std::string detail =
      absl::StrFormat("loss %.4g, usually %.4g", spike->loss, spike->usual);
  if (policy == "continue") {
    detail += "; going on (fault.on_loss_spike: continue)";
  } else {
    absl::StrAppend(&detail, "; going back to ",
                    saved > 0 ? "the last checkpoint" : "the beginning",
                    " and leaving out ",
                    first == step ? absl::StrCat("step ", step)
                                  : absl::StrCat("steps ", first, " to ", step),
                    " (fault.on_loss_spike: ", policy, ")");
  }
  output_->Event({.event = "loss_spike",
                  .generation = ToInt(generation),
                  .step = step,
                  .detail = detail});
  progress_->Line(absl::StrCat("step ", step, ": ", detail));
  if (policy == "continue") return;
  MustSucceed([&] { return log_->StepsLeftOut(first, step); });
  MustSucceed([&] { return log_->MemoryDistrusted(generation); });
  Handle(RollBack{generation, absl::StrCat("the loss jumped in step ", step)});
}

}  // namespace millrace

// Checks what the job's state machine orders of hosts that go and come back,
// and of the workers of a coordinator that comes back.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "coordinator/job_state.h"
#include "tests/sim/cluster.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

// Goal: processes of a host that came back start while the others finish their
// step, once, and join the generation that takes the host in. Method: lose one
// of two hosts, let it come back, and see what is ordered when.
TEST(JobStateTest, StartsProcessesOfReturnedHostsBeforeOthersStop) {
  absl::Time now = absl::UnixEpoch();
  JobState state({.num_agents = 2}, {}, now);
  std::vector<ProcessId> starts;
  std::optional<BeginGeneration> begun;
  const auto handle = [&](const JobEvent& event) {
    for (const JobAction& action : state.Handle(event, now)) {
      if (const auto* start = std::get_if<StartWorkerProcess>(&action)) {
        starts.push_back(start->process);
      }
      if (const auto* begin = std::get_if<BeginGeneration>(&action)) {
        begun = *begin;
      }
    }
  };
  const AgentJoined back = {
      .agent_idx = 1, .num_devices = 1, .data_ready = true};
  handle(AgentJoined{.agent_idx = 0, .num_devices = 1, .data_ready = true});
  handle(back);
  handle(PlanMade{{WorkerIdx{0}, WorkerIdx{1}}});
  for (const ProcessId& process : std::exchange(starts, {})) {
    handle(WorkerJoined{process, Generation{}, WorkerPhase::kIdle});
  }
  handle(AgentDisconnected{1});
  for (int32_t i = 0; i < 30; ++i) {
    now += absl::Milliseconds(100);
    handle(AgentHeard{0});
    handle(WorkerHeard{{WorkerIdx{0}, 1}});
    handle(Tick{});
  }
  ASSERT_EQ(state.phase(), JobState::Phase::kPlanning);
  handle(PlanMade{{WorkerIdx{0}}});
  handle(WorkerCleared{{WorkerIdx{0}, 1}, state.generation()});
  ASSERT_EQ(state.phase(), JobState::Phase::kTraining);
  const Generation shrunk = state.generation();
  handle(WorkerRunning{WorkerIdx{0}, shrunk, 5});
  ASSERT_TRUE(starts.empty());

  handle(back);
  handle(GrowthWeighed{shrunk, true});
  ASSERT_EQ(starts.size(), 1u);
  const ProcessId started = {WorkerIdx{1}, static_cast<int32_t>(ToInt(shrunk))};
  EXPECT_EQ(starts[0], started);
  EXPECT_EQ(state.phase(), JobState::Phase::kTraining);
  handle(WorkerJoined{started, Generation{}, WorkerPhase::kIdle});
  handle(WorkerPaused{WorkerIdx{0}, shrunk, /*kept=*/true});
  handle(PlanMade{{WorkerIdx{0}, WorkerIdx{1}}});
  handle(WorkerCleared{{WorkerIdx{0}, 1}, state.generation()});
  handle(WorkerCleared{started, state.generation()});
  EXPECT_EQ(starts.size(), 1u);
  ASSERT_TRUE(begun.has_value());
  EXPECT_EQ(begun->members.size(), 2u);
  EXPECT_EQ(begun->generation, state.generation());
}

// Goal: a stop that is asked for while the job plans with a host that came back
// loses nothing: the state is in memory, and goes into a checkpoint. Without
// memory for it the ranks write one at once. Method: a job without commits
// pauses, once with its state kept and once without, and is to stop then.
TEST(JobStateTest, StopsAfterAPauseWithACheckpoint) {
  for (const bool kept : {true, false}) {
    SCOPED_TRACE(kept);
    absl::Time now = absl::UnixEpoch();
    JobState state({.num_agents = 2},
                   {.generation = Generation{3},
                    .members = {WorkerIdx{0}},
                    .devices_by_agent = {1, 1}},
                   now);
    int num_pauses = 0, num_stops = 0, num_ends = 0;
    const auto handle = [&](const JobEvent& event) {
      for (const JobAction& action : state.Handle(event, now)) {
        num_pauses += std::holds_alternative<TellWorkersToPause>(action);
        num_stops += std::holds_alternative<TellWorkersToStop>(action);
        num_ends += std::holds_alternative<EndJob>(action);
      }
    };
    const ProcessId alive = {WorkerIdx{0}, 2};
    handle(AgentJoined{.agent_idx = 0,
                       .num_devices = 1,
                       .data_ready = true,
                       .live_workers = {alive}});
    handle(WorkerJoined{alive, Generation{3}, WorkerPhase::kRunning});
    handle(AgentJoined{.agent_idx = 1, .num_devices = 1, .data_ready = true});
    handle(GrowthWeighed{Generation{3}, true});
    EXPECT_EQ(num_pauses, 1);
    handle(WorkerPaused{WorkerIdx{0}, Generation{3}, kept});
    if (kept) {
      EXPECT_EQ(state.phase(), JobState::Phase::kPlanning);
      handle(StopRequested{});
      handle(PlanMade{{WorkerIdx{0}}});
      handle(WorkerCleared{alive, state.generation()});
      handle(WorkerJoined{
          {WorkerIdx{1}, 3}, Generation{}, WorkerPhase::kIdle});  // Started.
    }
    EXPECT_EQ(state.phase(), JobState::Phase::kTraining);
    EXPECT_EQ(num_stops, 1);
    EXPECT_EQ(num_ends, 0);
  }
}

// Goal: a worker whose process died while the coordinator was away is started
// once more, though the next plan has no rank for it: it may hold the only copy
// of a part of the state. Method: a coordinator comes back to one of two hosts,
// with one of its two processes; the plan takes one device.
TEST(JobStateTest, AsksWorkersWithoutARankForTheirMemoryAfterARestart) {
  absl::Time now = absl::UnixEpoch();
  JobState state({.num_agents = 2, .host_timeout = absl::Seconds(2)},
                 {.generation = Generation{3},
                  .members = {WorkerIdx{0}, WorkerIdx{1}, WorkerIdx{2}},
                  .devices_by_agent = {2, 1}},
                 now);
  std::vector<ProcessId> starts;
  bool begun = false;
  const auto handle = [&](const JobEvent& event) {
    for (const JobAction& action : state.Handle(event, now)) {
      if (const auto* start = std::get_if<StartWorkerProcess>(&action)) {
        starts.push_back(start->process);
      }
      begun = begun || std::holds_alternative<BeginGeneration>(action);
    }
  };
  const ProcessId alive = {WorkerIdx{0}, 2};
  handle(AgentJoined{.agent_idx = 0,
                     .num_devices = 2,
                     .data_ready = true,
                     .live_workers = {alive}});
  handle(WorkerJoined{alive, Generation{3}, WorkerPhase::kRunning});
  for (int32_t i = 0; i < 1200 && state.phase() != JobState::Phase::kPlanning;
       ++i) {
    now += absl::Milliseconds(100);
    handle(AgentHeard{0});
    handle(WorkerHeard{alive});
    handle(Tick{});
  }
  ASSERT_EQ(state.phase(), JobState::Phase::kPlanning);
  handle(PlanMade{{WorkerIdx{0}}});
  const ProcessId started = {WorkerIdx{1},
                             static_cast<int32_t>(ToInt(state.generation()))};
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0], started);
  handle(WorkerCleared{alive, state.generation()});
  EXPECT_FALSE(begun);
  handle(WorkerJoined{started, Generation{}, WorkerPhase::kIdle});
  EXPECT_TRUE(begun);
}

// Goal: a second host that is lost while the job plans ends the search at once,
// and the answer to it, whatever it is, leads to a search for the hosts that
// are left. Method: lose two of three hosts, and refuse the plan of two.
TEST(JobStateTest, AbandonsThePlanOfHostsThatAreLostMeanwhile) {
  absl::Time now = absl::UnixEpoch();
  JobState state({.num_agents = 3}, {}, now);
  int num_plans = 0, num_abandoned = 0;
  const auto handle = [&](const JobEvent& event) {
    for (const JobAction& action : state.Handle(event, now)) {
      num_plans += std::holds_alternative<MakePlan>(action);
      num_abandoned += std::holds_alternative<AbandonPlan>(action);
    }
  };
  const auto lose = [&](int32_t agent, std::vector<int32_t> others) {
    handle(AgentDisconnected{agent});
    for (int32_t i = 0; i < 30; ++i) {
      now += absl::Milliseconds(100);
      for (const int32_t other : others) {
        handle(AgentHeard{other});
        handle(WorkerHeard{{WorkerIdx{other}, 1}});
      }
      handle(Tick{});
    }
  };
  for (const int32_t agent : {0, 1, 2}) {
    handle(
        AgentJoined{.agent_idx = agent, .num_devices = 1, .data_ready = true});
  }
  handle(PlanMade{{WorkerIdx{0}, WorkerIdx{1}, WorkerIdx{2}}});
  for (const int32_t worker : {0, 1, 2}) {
    handle(
        WorkerJoined{{WorkerIdx{worker}, 1}, Generation{}, WorkerPhase::kIdle});
  }
  lose(2, {0, 1});
  ASSERT_EQ(state.phase(), JobState::Phase::kPlanning);
  EXPECT_EQ(num_plans, 2);
  EXPECT_EQ(num_abandoned, 0);
  lose(1, {0});
  EXPECT_EQ(num_plans, 2);
  EXPECT_EQ(num_abandoned, 1);
  handle(PlanRefused{"stopped"});
  EXPECT_EQ(state.phase(), JobState::Phase::kPlanning);
  EXPECT_EQ(num_plans, 3);
  EXPECT_EQ(state.Workers(), std::vector<WorkerIdx>{WorkerIdx{0}});
  EXPECT_EQ(num_abandoned, 1);
}

// Goal: hosts that come back cost no step, whether memory takes the state or
// not: a job without checkpoints goes on with the step after the pause, and one
// rank without memory makes all write a checkpoint. Method: hosts end and come
// back, at any moment, also while all pause; ranks have memory or not.
TEST(ReturnedHostTest, TakesInHostsWithoutLosingAStep) {
  int64_t num_pauses = 0;
  int64_t num_commits = 0;
  int64_t num_seeds = 0;
  for (uint64_t seed = 1; seed <= 1000; seed += SweepStep(13)) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ++num_seeds;
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 2 + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 1 + static_cast<int32_t>(seed % 2),
        .num_steps = 200,
        .checkpoint_interval = 1000,
        .checkpoint_at_end = false,
        .num_worker_kills = static_cast<int32_t>(seed % 2),
        .num_coordinator_kills = static_cast<int32_t>(seed % 3),
        .num_host_losses = 1 + static_cast<int32_t>(seed % 3),
        .most_absent_s = 5,
        .return_probability = 1,
        .replica_interval = static_cast<int64_t>(seed % 4),
        .unkept_probability = seed % 2 == 0 ? 0 : 0.2};
    Cluster cluster(options);
    cluster.Run();
    ASSERT_TRUE(cluster.violations().empty())
        << absl::StrJoin(cluster.violations(), "\n");
    ASSERT_TRUE(cluster.end().has_value());
    EXPECT_EQ(cluster.end()->verdict, Verdict::kFinished)
        << cluster.end()->reason;
    ASSERT_EQ(cluster.end()->steps, options.num_steps);
    num_pauses += cluster.num_pauses();
    EXPECT_TRUE(cluster.num_commits() == 0 || options.unkept_probability > 0);
    num_commits += cluster.num_commits();
  }
  EXPECT_GT(num_pauses, num_seeds / 2);
  EXPECT_GT(num_commits, num_seeds / 20);
}

// Goal: the process of a spare host starts once the others train, and waits
// there while the coordinator starts again. An older one is killed, and has no
// successor in this generation, whose deaths may be heard of late. Method: one
// host trains, one is spare.
TEST(SpareHostsTest, KeepTheirProcessesWhileTheCoordinatorStartsAgain) {
  const JobStateOptions options = {.num_agents = 2, .keeps_spare_hosts = true};
  absl::Time now = absl::UnixEpoch();
  std::vector<ProcessId> starts;
  std::vector<ProcessId> kills;
  const auto handle = [&](JobState& state, const JobEvent& event) {
    for (const JobAction& action : state.Handle(event, now)) {
      if (const auto* start = std::get_if<StartWorkerProcess>(&action)) {
        starts.push_back(start->process);
      }
      if (const auto* kill = std::get_if<KillWorkerProcess>(&action)) {
        kills.push_back(kill->process);
      }
    }
  };
  const ProcessId trains = {WorkerIdx{0}, 1};
  const ProcessId waits = {WorkerIdx{1}, 1};
  JobState first(options, {}, now);
  for (int32_t i = 0; i < 2; ++i) {
    handle(first,
           AgentJoined{.agent_idx = i, .num_devices = 1, .data_ready = true});
  }
  handle(first, PlanMade{{WorkerIdx{0}}});
  ASSERT_EQ(starts, std::vector<ProcessId>{trains});
  handle(first, WorkerJoined{trains, Generation{}, WorkerPhase::kIdle});
  handle(first, WorkerRunning{WorkerIdx{0}, Generation{1}, 0});
  ASSERT_EQ(starts, (std::vector<ProcessId>{trains, waits}));

  for (const int32_t incarnation : {1, 0}) {
    starts.clear();
    JobState again(options,
                   {.generation = Generation{1},
                    .members = {WorkerIdx{0}},
                    .devices_by_agent = {1, 1}},
                   now);
    const ProcessId found = {WorkerIdx{1}, incarnation};
    handle(again, AgentJoined{.agent_idx = 0,
                              .num_devices = 1,
                              .data_ready = true,
                              .live_workers = {trains}});
    handle(again, AgentJoined{.agent_idx = 1,
                              .num_devices = 1,
                              .data_ready = true,
                              .live_workers = {found}});
    handle(again, WorkerJoined{trains, Generation{1}, WorkerPhase::kRunning});
    ASSERT_EQ(again.phase(), JobState::Phase::kTraining);
    const bool is_kept = incarnation == 1;
    EXPECT_EQ(kills, is_kept ? std::vector<ProcessId>{}
                             : std::vector<ProcessId>{found});
    EXPECT_TRUE(starts.empty());
  }
}

// Goal: as long as there are spare hosts, a job that loses others trains with
// as many ranks as before; one more makes it shrink, and grow again once one is
// back, which is spare when there are enough. Method: hosts end for ever, as
// many as are spare or one more, or all come back; workers and coordinators die
// too.
TEST(SpareHostsTest, TakeThePlacesOfLostHosts) {
  int64_t num_lost = 0;
  int64_t num_shrunk = 0;
  for (uint64_t seed = 1; seed <= 1000; seed += SweepStep(13)) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int32_t num_spares = 1 + static_cast<int32_t>(seed % 2);
    const bool return_all = seed % 3 == 0;
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 2 + num_spares + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 1 + static_cast<int32_t>(seed % 2),
        .num_steps = 200,
        .num_worker_kills = static_cast<int32_t>(seed % 3),
        .num_coordinator_kills = static_cast<int32_t>(seed % 5 == 0),
        .num_host_losses = num_spares + static_cast<int32_t>(seed / 2 % 2),
        .most_absent_s = 5,
        .return_probability = return_all ? 1.0 : 0.0,
        .spare_hosts = num_spares};
    Cluster cluster(options);
    cluster.Run();
    ASSERT_TRUE(cluster.violations().empty())
        << absl::StrJoin(cluster.violations(), "\n");
    ASSERT_TRUE(cluster.end().has_value());
    ASSERT_EQ(cluster.end()->steps, options.num_steps);
    const int32_t all =
        (options.num_agents - num_spares) * options.devices_per_agent;
    if (options.num_host_losses == num_spares) {
      EXPECT_EQ(cluster.num_sizes(), 1);
    } else if (return_all) {
      EXPECT_LE(cluster.num_sizes(), 2);
    }
    if (options.num_host_losses == num_spares || return_all) {
      EXPECT_EQ(cluster.num_ranks(), all);
    }
    num_lost += cluster.num_generations() > 1;
    num_shrunk += cluster.num_sizes() > 1;
  }
  EXPECT_GT(num_lost, 1000 / SweepStep(13) / 2);
  EXPECT_GT(num_shrunk, 1000 / SweepStep(13) / 8);
}

}  // namespace
}  // namespace millrace

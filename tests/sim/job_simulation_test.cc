#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_join.h"
#include "tests/sim/cluster.h"
#include "tests/sim/seeds.h"

namespace millrace {
namespace {

// Goal: without faults a job needs one generation (two with a profile) and
// commits each checkpoint once. Method: late and repeated messages only.
TEST(JobSimulationTest, RunsThroughWithoutFaults) {
  for (uint64_t seed : Seeds(50)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    for (bool needs_profile : {false, true}) {
      const ClusterOptions options = {.seed = seed,
                                      .needs_profile = needs_profile};
      Cluster cluster(options);
      cluster.Run();
      ExpectFinished(options, cluster);
      EXPECT_EQ(cluster.num_generations(), needs_profile ? 2 : 1);
      EXPECT_EQ(cluster.num_commits(), 6);  // 7, 14, 21, 28, 35, 40.
    }
  }
}

// Goal: whatever dies whenever, the job ends with all its steps done, every
// commit whole and unique, every generation restored from the last commit.
// Method: random deaths and freezes of workers and deaths of the coordinator,
// in clusters of different shapes.
TEST(JobSimulationTest, SurvivesRandomDeaths) {
  for (uint64_t seed : Seeds(2000)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 1 + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 1 + static_cast<int32_t>(seed % 4),
        .needs_profile = seed % 5 == 0,
        .num_worker_kills = static_cast<int32_t>(seed % 7),
        .num_worker_freezes = static_cast<int32_t>(seed % 2),
        .num_coordinator_kills = static_cast<int32_t>(seed % 4)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    if (testing::Test::HasFailure()) break;
  }
}

// Goal: whichever hosts are lost, by death or by a cut network, the job goes on
// with the others, and takes in those that come back: it ends with all its
// steps, every commit whole and unique. Method: hosts end or are cut off at
// random moments, for a second or for ever, while workers and coordinators die.
TEST(JobSimulationTest, GoesOnWithoutLostHosts) {
  size_t num_regrouped = 0;
  size_t num_grown = 0;
  const std::vector<uint64_t> seeds = Seeds(3000);
  for (uint64_t seed : seeds) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 2 + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 1 + static_cast<int32_t>(seed % 2),
        .num_steps = 200,
        .num_worker_kills = static_cast<int32_t>(seed % 3),
        .num_coordinator_kills = static_cast<int32_t>(seed % 5 == 0),
        .num_host_losses = static_cast<int32_t>(seed % 4),
        .num_host_cuts = static_cast<int32_t>(seed % 3),
        .rank_multiple = seed % 14 == 7 ? 2 : 1};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    num_regrouped += cluster.num_sizes() > 1;
    num_grown +=
        cluster.num_sizes() > 1 &&
        cluster.num_ranks() == options.num_agents * options.devices_per_agent;
    if (testing::Test::HasFailure()) break;
  }
  if (seeds.size() < 100) return;  // A replay.
  EXPECT_GT(num_regrouped, seeds.size() / 4);
  EXPECT_GT(num_grown, seeds.size() / 15);
}

// Goal: when the coordinator's host ends or is cut off, another one goes on and
// the job ends with all its steps, whatever else is lost meanwhile. Method:
// hosts, workers and coordinators end at random moments.
TEST(JobSimulationTest, GoesOnAtAnotherHost) {
  int64_t num_takeovers = 0;
  const std::vector<uint64_t> seeds = Seeds(2000);
  for (uint64_t seed : seeds) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 4 - static_cast<int32_t>(seed % 3),
        .devices_per_agent = 1 + static_cast<int32_t>(seed % 2),
        .num_steps = 200,
        .num_worker_kills = static_cast<int32_t>(seed % 5),
        .num_coordinator_kills = static_cast<int32_t>(seed % 5 == 0),
        .num_takeovers = 1 + static_cast<int32_t>(seed % 3),
        .num_host_losses = static_cast<int32_t>(seed % 4 == 0),
        .num_host_cuts = static_cast<int32_t>(seed % 7 == 0),
        .return_probability = 1,
        // Copies survive one host at a time, while there are two others.
        .replica_interval = seed % 3 != 0 || seed % 4 == 0 || seed % 7 == 0
                                ? 0
                                : static_cast<int64_t>(1 + seed % 2)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    num_takeovers += cluster.num_takeovers();
    if (testing::Test::HasFailure()) break;
  }
  if (seeds.size() < 100) return;  // A replay.
  EXPECT_GT(num_takeovers, static_cast<int64_t>(seeds.size()));
}

// Goal: with copies in memory and no checkpoints but the last, no generation
// goes back further than to the newest set that was copied, whichever processes
// die, and whichever one host, or two with two partners; the job ends with all
// its steps. Method: workers, hosts and coordinators die at random moments, in
// clusters of different shapes, at different intervals and with one partner or
// two.
TEST(JobSimulationTest, RestoresFromMemory) {
  int64_t num_from_memory = 0;
  const std::vector<uint64_t> seeds = Seeds(3000);
  for (uint64_t seed : seeds) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 1 + static_cast<int32_t>(seed % 4),
        .devices_per_agent = 1 + static_cast<int32_t>(seed % 3),
        .num_steps = 150,
        .checkpoint_interval = 1000,
        .num_worker_kills = static_cast<int32_t>(seed % 6),
        .num_coordinator_kills = static_cast<int32_t>(seed % 5 == 0),
        .num_host_losses = static_cast<int32_t>(seed % 3),
        .num_host_cuts = static_cast<int32_t>(seed % 7 == 0),
        .rank_multiple = seed % 3 == 2 ? 2 : 1,
        .replica_interval = 1 + static_cast<int64_t>(seed % 5),
        .replica_partners = 1 + static_cast<int32_t>(seed / 2 % 2)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    num_from_memory += cluster.num_from_memory();
    if (testing::Test::HasFailure()) break;
  }
  if (seeds.size() < 100) return;  // A replay.
  EXPECT_GT(num_from_memory, static_cast<int64_t>(seeds.size()));
}

// Goal: a host and that of its ranks' first partners, lost at one moment, cost
// a job with two partners no more than one host would: it goes on from memory.
// With one partner the state is lost, and the job goes back to its checkpoint.
// Method: such pairs end at random moments, and come back or not, on three
// hosts or more; the same seeds with one partner and with two.
TEST(JobSimulationTest, TwoPartnersSurviveTwoHostsAtOnce) {
  size_t num_lost = 0;
  const std::vector<uint64_t> seeds = Seeds(1000);
  for (uint64_t seed : seeds) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    for (const int32_t partners : {1, 2}) {
      SCOPED_TRACE(testing::Message() << partners << " partners");
      const ClusterOptions options = {
          .seed = seed,
          .num_agents = 3 + static_cast<int32_t>(seed % 4),
          .devices_per_agent = 1 + static_cast<int32_t>(seed % 3),
          .num_steps = 150,
          .checkpoint_interval = 40,
          .num_worker_kills = static_cast<int32_t>(seed % 2),
          .return_probability = 0.5,
          .replica_interval = 1 + static_cast<int64_t>(seed % 5),
          .replica_partners = partners,
          .num_pair_losses = 1};
      Cluster cluster(options);
      cluster.Run();
      ExpectFinished(options, cluster);
      const bool loses = cluster.num_pair_losses() > 0;
      if (partners == 2) {
        EXPECT_EQ(cluster.num_back_to_disk(), 0);
        EXPECT_GE(cluster.num_from_memory(), cluster.num_pair_losses());
      } else if (loses) {
        EXPECT_GT(cluster.num_back_to_disk(), 0);
      }
      num_lost += loses;
    }
    if (testing::Test::HasFailure()) break;
  }
  if (seeds.size() < 100) return;  // A replay.
  EXPECT_GT(num_lost, seeds.size() * 3 / 2);
}

// Goal: hosts that are too few to go on wait for those that are lost, and say
// so when these do not come. Method: a plan needs all devices; hosts end, and
// come back within the time to join, or never.
TEST(JobSimulationTest, WaitsForHostsItCannotDoWithout) {
  size_t num_failed = 0;
  const std::vector<uint64_t> seeds = Seeds(500);
  for (uint64_t seed : seeds) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {.seed = seed,
                                    .num_agents = 3,
                                    .devices_per_agent = 2,
                                    .num_steps = 200,
                                    .num_worker_kills = 1,
                                    .num_host_losses = 1,
                                    .num_host_cuts = seed % 2 == 0 ? 1 : 0,
                                    .most_absent_s = 15,
                                    .return_probability = 0.5,
                                    .least_ranks = 6};
    Cluster cluster(options);
    cluster.Run();
    EXPECT_TRUE(cluster.violations().empty())
        << absl::StrJoin(cluster.violations(), "\n");
    ASSERT_TRUE(cluster.end().has_value());
    if (cluster.end()->verdict == Verdict::kFailed) {
      ++num_failed;
      EXPECT_NE(cluster.end()->reason.find("too few devices"),
                std::string::npos)
          << cluster.end()->reason;
    } else {
      ExpectFinished(options, cluster);
    }
    if (testing::Test::HasFailure()) break;
  }
  if (seeds.size() < 100) return;
  EXPECT_GT(num_failed, seeds.size() / 5);
  EXPECT_LT(num_failed, seeds.size() * 4 / 5);
}

// Goal: a worker that hangs while it ends a generation, heartbeats going on, is
// killed and replaced, and nothing else is: the job ends with all its steps.
// Method: some hang once a death raises the generation; every kill must say
// that one hung, and all that hung are killed.
TEST(JobSimulationTest, ReplacesWorkersThatHangInClearing) {
  int32_t num_stuck = 0;
  for (uint64_t seed : Seeds(1000)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 1 + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 2,
        .needs_profile = seed % 5 == 0,
        .num_worker_kills = 1 + static_cast<int32_t>(seed % 4),
        .num_worker_hangs = 1 + static_cast<int32_t>(seed % 3),
        .num_coordinator_kills = static_cast<int32_t>(seed % 2)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    num_stuck += cluster.num_stuck();
    // A coordinator that comes back orders the kill anew.
    if (options.num_coordinator_kills == 0) {
      EXPECT_LE(static_cast<int32_t>(cluster.kill_reasons().size()),
                cluster.num_stuck());
    }
    for (const std::string& reason : cluster.kill_reasons()) {
      EXPECT_NE(reason.find("hangs in ending generation"), std::string::npos)
          << reason;
    }
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(num_stuck, 100 / SweepStep(13));
}

// Goal: a GPU runs its step to the end before it ends a generation, and is not
// killed as if it hung, however long its steps are, also by a coordinator that
// was restarted. Method: steps of 5 s, where 3 s are given besides.
TEST(JobSimulationTest, WaitsForTheEndOfLongSteps) {
  for (uint64_t seed : Seeds(100)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 1 + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 2,
        .num_worker_kills = 1 + static_cast<int32_t>(seed % 4),
        .num_coordinator_kills = static_cast<int32_t>(seed % 3),
        .step_s = 5,
        .end_s = 0.5};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    EXPECT_EQ(cluster.kill_reasons(), std::vector<std::string>());
  }
}

// Goal: commits that take long, as on a disk that hangs, change nothing of what
// a job promises: no generation begins while one may still end, nothing is
// committed of a state that was found wrong, and the job ends with all its
// steps. Method: commits of up to 20 s and last writes of up to half a second,
// while workers and coordinators die and steps are rolled back.
TEST(JobSimulationTest, SurvivesSlowCommits) {
  int32_t num_given_up = 0;
  int64_t num_committed = 0;
  for (uint64_t seed : Seeds(2000)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 1 + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 2,
        .num_steps = 100,
        .num_worker_kills = static_cast<int32_t>(seed % 4),
        .num_worker_freezes = static_cast<int32_t>(seed % 2),
        .num_wrong_replicas = static_cast<int32_t>(seed % 3),
        .num_roll_backs = static_cast<int32_t>(seed % 2),
        .num_coordinator_kills = static_cast<int32_t>(seed % 5 == 0),
        .num_takeovers = static_cast<int32_t>(seed % 7 == 0),
        // Not both at once, which may leave no host.
        .num_host_losses =
            static_cast<int32_t>(seed % 11 == 0 && seed % 7 != 0),
        .most_commit_s = seed % 2 == 0 ? 20.0 : 1.0,
        .most_last_write_s = 0.5};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    num_given_up += cluster.num_given_up();
    num_committed += cluster.num_commits();
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(num_given_up, 500 / SweepStep(13));
  EXPECT_GT(num_committed, 10000 / SweepStep(13));
}

// Goal: a recovery does not wait for a commit that hangs. Method: commits take
// up to ten minutes and are given up for recoveries from dead workers, which
// take as long as without commits: until their processes are there.
TEST(JobSimulationTest, RecoversWhileACommitHangs) {
  double longest_s = 0;
  for (uint64_t seed : Seeds(200)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {.seed = seed,
                                    .num_steps = 100,
                                    .num_worker_kills = 3,
                                    .most_commit_s = 600,
                                    .most_last_write_s = 0.5};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    longest_s = std::max(longest_s, cluster.longest_recovery_s());
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_LT(longest_s, 5);
  std::cout << "longest recovery " << longest_s << " s\n";
}

// Goal: a worker that trains and falls silent is killed after two seconds by
// default; not while it prepares to train, nor while its whole host is cut off,
// which is no matter of its workers. Method: by hand, one rank on each of two
// hosts.
TEST(JobStateTest, KillsSilentWorkersOfHostsThatSpeak) {
  const absl::Time start = absl::UnixEpoch();
  JobState state({.num_agents = 2}, {}, start);
  absl::Time now = start;
  std::vector<std::pair<int32_t, absl::Time>> kills;
  const auto handle = [&](const JobEvent& event) {
    for (const JobAction& action : state.Handle(event, now)) {
      if (const auto* kill = std::get_if<KillWorkerProcess>(&action)) {
        kills.emplace_back(ToInt(kill->process.worker), now);
      }
    }
  };
  const auto wait = [&](absl::Duration duration, bool host_speaks,
                        bool worker_speaks) {
    for (const absl::Time until = now + duration; now < until;) {
      now += absl::Milliseconds(100);
      handle(AgentHeard{0});
      handle(WorkerHeard{{WorkerIdx{0}, 1}});
      if (host_speaks) handle(AgentHeard{1});
      if (worker_speaks) handle(WorkerHeard{{WorkerIdx{1}, 1}});
      handle(Tick{});
    }
  };
  for (const int32_t agent : {0, 1}) {
    handle(
        AgentJoined{.agent_idx = agent, .num_devices = 1, .data_ready = true});
  }
  handle(PlanMade{{WorkerIdx{0}, WorkerIdx{1}}});
  for (const int32_t worker : {0, 1}) {
    handle(
        WorkerJoined{{WorkerIdx{worker}, 1}, Generation{}, WorkerPhase::kIdle});
  }
  wait(absl::Seconds(9), true, false);
  EXPECT_TRUE(kills.empty());
  handle(WorkerHeard{{WorkerIdx{1}, 1}});
  for (const int32_t worker : {0, 1}) {
    handle(WorkerRunning{WorkerIdx{worker}, Generation{1}, 0});
  }
  wait(absl::Seconds(5), false, false);
  EXPECT_TRUE(kills.empty());
  wait(absl::Seconds(1), true, true);
  EXPECT_TRUE(kills.empty());
  const absl::Time stopped = now;
  wait(absl::Seconds(3), true, false);
  ASSERT_EQ(kills.size(), 1u);
  EXPECT_EQ(kills[0].first, 1);
  EXPECT_LE(kills[0].second - stopped, absl::Seconds(2.2));
}

// Goal: a healthy worker has the whole time-out and a step of the plan to
// clear, from the first order that it has not answered, and not a moment more:
// orders in between do not put it off. Method: by hand, two ranks, of which one
// dies, and dies again.
TEST(JobStateTest, GivesWorkersTheirTimeToClear) {
  const absl::Time start = absl::UnixEpoch();
  const absl::Duration step = absl::Seconds(15);
  const absl::Duration limit = absl::Seconds(5) + step;
  JobState state({.num_agents = 1, .clear_timeout = limit - step}, {}, start);
  absl::Time now = start;
  std::vector<KillWorkerProcess> kills;
  const auto handle = [&](const JobEvent& event) {
    for (const JobAction& action : state.Handle(event, now)) {
      if (const auto* kill = std::get_if<KillWorkerProcess>(&action)) {
        kills.push_back(*kill);
      }
    }
  };
  const auto wait = [&](absl::Duration duration) {
    for (const absl::Time until = now + duration; now < until;) {
      now += absl::Milliseconds(200);
      handle(AgentHeard{0});
      for (const int32_t worker : {0, 1}) {
        for (const int32_t incarnation : {1, 2, 3}) {
          handle(WorkerHeard{{WorkerIdx{worker}, incarnation}});
        }
      }
      handle(Tick{});
    }
  };
  handle(AgentJoined{.agent_idx = 0, .num_devices = 2, .data_ready = true});
  handle(PlanMade{{WorkerIdx{0}, WorkerIdx{1}}, step});
  for (const int32_t worker : {0, 1}) {
    handle(
        WorkerJoined{{WorkerIdx{worker}, 1}, Generation{}, WorkerPhase::kIdle});
  }
  ASSERT_EQ(state.phase(), JobState::Phase::kTraining);
  wait(2 * limit);  // This is training: no order, no time-out.
  handle(WorkerDead{{WorkerIdx{0}, 1}, "killed"});
  ASSERT_EQ(state.generation(), Generation{2});
  wait(limit / 2);
  handle(WorkerJoined{{WorkerIdx{0}, 2}, Generation{}, WorkerPhase::kIdle});
  handle(WorkerDead{{WorkerIdx{0}, 2}, "killed again"});
  ASSERT_EQ(state.generation(), Generation{3});
  handle(WorkerJoined{{WorkerIdx{0}, 3}, Generation{}, WorkerPhase::kIdle});
  wait(limit / 2 - absl::Seconds(1));
  EXPECT_TRUE(kills.empty());
  wait(absl::Seconds(2));
  ASSERT_EQ(kills.size(), 1u);
  EXPECT_EQ(kills[0].process, (ProcessId{WorkerIdx{1}, 1}));
  EXPECT_EQ(kills[0].reason,
            "hangs in ending generation 1, which it was told to 20s ago");
  wait(2 * limit);  // One order is enough; its death is awaited.
  EXPECT_EQ(kills.size(), 1u);
  // Unless the order may have been lost with its agent's connection.
  handle(AgentJoined{.agent_idx = 0,
                     .num_devices = 2,
                     .data_ready = true,
                     .live_workers = {{WorkerIdx{0}, 3}, {WorkerIdx{1}, 1}}});
  wait(absl::Seconds(1));
  ASSERT_EQ(kills.size(), 2u);
  EXPECT_EQ(kills[1].process, kills[0].process);
}

// Goal: people may take long to start agents, but an agent that does not come
// back to a restarted coordinator is given up as soon as one that falls silent.
// Method: both waits, by hand, for the second of two agents.
TEST(JobStateTest, WaitsLongOnlyForAgentsThatNeverCame) {
  // Ticks a second apart are no stall of the coordinator's own.
  const JobStateOptions options = {.num_agents = 2,
                                   .heartbeat_timeout = absl::Seconds(10),
                                   .join_timeout = absl::Seconds(60),
                                   .first_join_timeout = absl::Minutes(10)};
  // The seconds until the job ends.
  const auto wait = [&](const RecoveredJob& recovered) {
    const absl::Time start = absl::UnixEpoch();
    JobState state(options, recovered, start);
    absl::Time now = start;
    state.Handle(AgentJoined{.agent_idx = 0, .num_devices = 1}, now);
    while (state.phase() != JobState::Phase::kEnded) {
      now += absl::Seconds(1);
      state.Handle(AgentHeard{0}, now);
      state.Handle(Tick{}, now);
    }
    return absl::ToInt64Seconds(now - start);
  };
  EXPECT_EQ(wait({}), 601);
  // With a plan, the job would go on without it.
  EXPECT_EQ(wait({.generation = Generation{1}}), 61);
}

// Goal: without a checkpoint at the end a job still ends, after the commit of
// its last step where the interval asks for one. Method: both kinds of
// interval, with deaths around.
TEST(JobSimulationTest, EndsWithoutCheckpoint) {
  for (uint64_t seed : Seeds(300)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .checkpoint_interval = seed % 2 == 0 ? 7 : 10,
        .checkpoint_at_end = false,
        .num_worker_kills = static_cast<int32_t>(seed % 3),
        .num_coordinator_kills = static_cast<int32_t>(seed % 2)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    // A coordinator that comes back may hear of two at once and commit the
    // later.
    const int64_t most_commits = seed % 2 == 0 ? 5 : 4;
    EXPECT_LE(cluster.num_commits(), most_commits);
    if (options.num_coordinator_kills == 0) {
      EXPECT_EQ(cluster.num_commits(), most_commits);
    }
    if (testing::Test::HasFailure()) break;
  }
}

// Goal: a graceful stop ends with a checkpoint of the last step taken, or
// before training began, and the verdict says whether the job is to be started
// again. Method: stop at many moments, with deaths around, for both reasons.
TEST(JobSimulationTest, StopsGracefully) {
  for (uint64_t seed : Seeds(300)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_steps = 100000,
        .num_worker_kills = static_cast<int32_t>(seed % 3),
        .stop_after_s = 0.03 * static_cast<double>(seed),
        .requeue = seed % 2 == 0};
    Cluster cluster(options);
    cluster.Run();
    EXPECT_TRUE(cluster.violations().empty())
        << absl::StrJoin(cluster.violations(), "\n");
    ASSERT_TRUE(cluster.end().has_value());
    EXPECT_EQ(cluster.end()->verdict,
              options.requeue ? Verdict::kRequeued : Verdict::kStopped);
    EXPECT_TRUE(cluster.end()->steps >= 0 ||
                cluster.end()->reason == "stopped before training" ||
                cluster.end()->reason.starts_with("stopped in a recovery"));
    if (testing::Test::HasFailure()) break;
  }
}

// Goal: a job whose workers die for ever gives up and says why, rather than
// restarting for ever. Method: more kills than the budget allows.
TEST(JobSimulationTest, GivesUpBeyondTheBudget) {
  ClusterOptions options = {
      .seed = 3, .checkpoint_interval = 100000, .num_worker_kills = 200};
  options.num_steps = 10000;
  options.max_restarts = 3;
  Cluster cluster(options);
  cluster.Run();
  EXPECT_TRUE(cluster.violations().empty());
  ASSERT_TRUE(cluster.end().has_value());
  EXPECT_EQ(cluster.end()->verdict, Verdict::kFailed);
  EXPECT_NE(cluster.end()->reason.find("fault.max_restarts = 3"),
            std::string::npos)
      << cluster.end()->reason;
}

}  // namespace
}  // namespace millrace

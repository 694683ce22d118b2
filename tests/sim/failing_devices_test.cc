// Devices that fail again and again.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/job_state.h"
#include "tests/sim/cluster.h"
#include "tests/sim/seeds.h"

namespace millrace {
namespace {

// Goal: a device whose worker keeps dying is left out after its second death,
// gets no rank before its time is over, and is taken in again after it; the job
// ends with all its steps. Method: a worker dies soon after it has begun to
// train, on one host of several devices and on several hosts, with copies in
// memory and without.
TEST(FailingDeviceSimulationTest, AreLeftOutAndTakenInAgain) {
  int32_t num_pauses = 0;
  for (uint64_t seed : Seeds(300)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const bool one_host = seed % 2 == 0;
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = one_host ? 1 : 3,
        .devices_per_agent = one_host ? 4 : 1 + static_cast<int32_t>(seed % 3),
        .num_steps = 600,
        .checkpoint_interval = 20,
        .num_flaps = 2 + static_cast<int32_t>(seed % 3),
        .leave_out_s = 5,
        .replica_interval = seed % 4 < 2 ? 0 : 5};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    EXPECT_EQ(cluster.num_left_out(), options.num_flaps - 1);
    EXPECT_EQ(cluster.num_taken_back(), 0);
    num_pauses += cluster.num_pauses();
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(num_pauses, 0);
}

// Goal: a job that cannot do without the device goes on with it. Method: a plan
// needs all devices.
TEST(FailingDeviceSimulationTest, AreTakenBackWhereOthersDoNotSuffice) {
  for (uint64_t seed : Seeds(100)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {.seed = seed,
                                    .num_agents = 2,
                                    .devices_per_agent = 1,
                                    .num_steps = 300,
                                    .num_flaps = 3,
                                    .leave_out_s = 5,
                                    .least_ranks = 2};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    EXPECT_EQ(cluster.num_taken_back(), cluster.num_left_out());
    EXPECT_EQ(cluster.num_left_out(), options.num_flaps - 1);
    if (testing::Test::HasFailure()) break;
  }
}

// A job of one host with two devices, whose generations begin at once.
class TwoDevices {
 public:
  TwoDevices() {
    Handle(AgentJoined{.agent_idx = 0, .num_devices = 2, .data_ready = true});
    Handle(PlanMade{state_.Workers()});
    Train();
  }

  void Handle(const JobEvent& event) {
    for (const JobAction& action : state_.Handle(event, now_)) {
      if (const auto* start = std::get_if<StartWorkerProcess>(&action)) {
        processes_[start->process.worker] = start->process;
      } else if (const auto* kill = std::get_if<KillWorkerProcess>(&action)) {
        kills_.push_back(kill->reason);
      } else if (const auto* report = std::get_if<Report>(&action)) {
        ++num_reports_[report->event];
      } else if (std::holds_alternative<WeighGrowth>(action)) {
        ++num_weighed_;
      } else if (std::holds_alternative<TellWorkersToPause>(action)) {
        ++num_pauses_;
      }
    }
  }

  // All processes join, clear and train.
  void Train() {
    Join();
    for (const WorkerIdx worker : state_.members()) {
      Handle(WorkerRunning{worker, state_.generation(), 0});
    }
  }

  void Join() {
    for (const auto& [worker, process] : std::map(processes_)) {
      Handle(WorkerJoined{process, Generation{}, WorkerPhase::kIdle});
    }
  }

  // The worker's process dies.
  void Die(WorkerIdx worker) {
    const ProcessId process = processes_.at(worker);
    processes_.erase(worker);
    Handle(WorkerDead{process, "exited with code 1"});
  }

  // Time goes by, and agent and processes are heard of.
  void Pass(absl::Duration duration) {
    for (const absl::Time end = now_ + duration; now_ < end;
         now_ += absl::Milliseconds(500)) {
      Handle(AgentHeard{0});
      for (const auto& [worker, process] : std::map(processes_)) {
        Handle(WorkerHeard{process});
      }
      Handle(Tick{});
    }
  }

  void Fail(WorkerIdx worker, const absl::Status& status) {
    Handle(WorkerFailed{worker, state_.generation(), status});
  }

  const JobState& state() const { return state_; }
  const std::vector<std::string>& kills() const { return kills_; }
  int num_reports(const std::string& event) { return num_reports_[event]; }
  int num_weighed() const { return num_weighed_; }
  int num_pauses() const { return num_pauses_; }

 private:
  absl::Time now_ = absl::UnixEpoch();
  JobState state_{
      {.num_agents = 1, .leave_out_time = absl::Minutes(10)}, {}, now_};
  std::map<WorkerIdx, ProcessId> processes_;
  std::vector<std::string> kills_;
  std::map<std::string, int> num_reports_;
  int num_weighed_ = 0;
  int num_pauses_ = 0;
};

// Goal: a device that fails twice while its process lives is left out, and the
// process ends; its peers, which meet errors of the network by that, are not.
// Method: the state machine alone.
TEST(FailingDeviceSimulationTest, ErrorsOfDevicesCountAndPeersErrorsDoNot) {
  for (const bool of_device : {true, false}) {
    TwoDevices job;
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(job.state().phase(), JobState::Phase::kTraining);
      job.Fail(WorkerIdx{1}, of_device ? absl::InternalError("a launch failed")
                                       : absl::UnavailableError("lost a peer"));
      if (i == 0) job.Train();
    }
    EXPECT_EQ(job.num_reports("generation_failed"), 2);
    EXPECT_EQ(job.num_reports("device_left_out"), of_device ? 1 : 0);
    const std::vector<WorkerIdx> left =
        of_device ? std::vector<WorkerIdx>{WorkerIdx{0}}
                  : std::vector<WorkerIdx>{WorkerIdx{0}, WorkerIdx{1}};
    EXPECT_EQ(job.state().Workers(), left);
    EXPECT_EQ(job.state().phase(), of_device ? JobState::Phase::kPlanning
                                             : JobState::Phase::kStarting);
    EXPECT_EQ(job.kills().size(), of_device ? 1u : 0u);
  }
}

// Goal: growth is weighed once when the device's time is over, not before, and
// once in each generation that begins after it; training pauses once, however
// often it is answered. Method: as above.
TEST(FailingDeviceSimulationTest, GrowthIsWeighedOnceWhenTimeIsOver) {
  TwoDevices job;
  job.Die(WorkerIdx{1});
  job.Train();
  job.Die(WorkerIdx{1});
  ASSERT_EQ(job.num_reports("device_left_out"), 1);
  job.Handle(PlanMade{job.state().Workers()});
  job.Handle(WorkerCleared{{WorkerIdx{0}, 1}, job.state().generation()});
  job.Train();
  ASSERT_EQ(job.state().phase(), JobState::Phase::kTraining);
  job.Pass(absl::Minutes(9));
  EXPECT_EQ(job.num_weighed(), 0);
  job.Pass(absl::Minutes(2));
  EXPECT_EQ(job.num_weighed(), 1);
  job.Handle(GrowthWeighed{job.state().generation(), false});
  job.Die(WorkerIdx{0});
  job.Train();
  ASSERT_EQ(job.state().phase(), JobState::Phase::kTraining);
  job.Pass(absl::Seconds(2));
  EXPECT_EQ(job.num_weighed(), 2);
  for (int i = 0; i < 2; ++i) {
    job.Handle(GrowthWeighed{job.state().generation(), true});
  }
  EXPECT_EQ(job.num_pauses(), 1);
}

// Goal: whatever else fails, jobs end with all their steps. Method: hosts are
// lost and coordinators die beside the device.
TEST(FailingDeviceSimulationTest, OtherFaultsChangeNothing) {
  int32_t num_left_out = 0;
  for (uint64_t seed : Seeds(500)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 2 + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 1 + static_cast<int32_t>(seed % 2),
        .num_steps = 400,
        .num_flaps = 4,
        .leave_out_s = 3,
        .num_coordinator_kills = static_cast<int32_t>(seed % 3 == 0),
        .num_host_losses = static_cast<int32_t>(seed % 4),
        .num_host_cuts = static_cast<int32_t>(seed % 3)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    num_left_out += cluster.num_left_out();
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(num_left_out, 0);
}

}  // namespace
}  // namespace millrace

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "coordinator/coordinator.h"
#include "coordinator/protocol/build_id.h"
#include "coordinator/protocol/client.h"
#include "fault/checkpoint.h"
#include "fault/faulty_file_system.h"
#include "planner/profile/profile_file.h"
#include "tests/fault/state_fixture.h"
#include "tests/planner/profile_fixture.h"
#include "worker/agent/listener.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr absl::Duration kMessageLimit = absl::Seconds(60);
constexpr char kSlowCheckpoints[] = "checkpoints";

// A disk whose syncs of folders take until they are let go.
class HangingFiles : public FaultyFileSystem {
 public:
  absl::Status SyncDirectory(const std::string& path) override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ++num_hanging_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !hangs_; });
      --num_hanging_;
    }
    return FaultyFileSystem::SyncDirectory(path);
  }
  void Hang(bool hangs) {
    const std::lock_guard<std::mutex> lock(mutex_);
    hangs_ = hangs;
    changed_.notify_all();
  }
  void AwaitHanging() {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, absl::ToChronoSeconds(kMessageLimit),
                                  [this] { return num_hanging_ > 0; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hangs_ = false;
  int num_hanging_ = 0;
};

// A coordinator on a thread, whose agent and two workers the test plays.
class JobCommitsTest : public testing::Test {
 protected:
  void SetUp() override {
    run_directory_ =
        testing::TempDir() + "/millrace-commits-" + std::to_string(getpid());
    std::filesystem::remove_all(run_directory_);
    ASSERT_TRUE(MakeDirectories(run_directory_ + "/logs").ok());
    const std::string profile = run_directory_ + "/machine.yaml";
    ASSERT_TRUE(
        WriteFileAtomically(profile, ProfileToYaml(MakeProfile({}))).ok());
    ASSERT_TRUE(WriteFileAtomically(run_directory_ + "/job.yaml",
                                    R"(
name: tiny
model: {family: llama, vocab_size: 288, hidden: 32, layers: 2, heads: 4,
        kv_heads: 2, ffn_hidden: 64, sequence_length: 32}
data: {synthetic: true}
training: {steps: 12, global_batch: 8, optimizer: {learning_rate: 1e-3}}
layout: {data: 2, tensor: 1, pipeline: 1}
checkpoint: {interval_steps: 4, resume: none}
fault: {heartbeat_timeout_ms: 600000, hang_timeout_ms: 0}
profile: )" + profile + "\n" + more_keys_)
                    .ok());
    auto listener = Listener::Create();
    ASSERT_TRUE(listener.ok()) << listener.status();
    address_ = listener->address();
    thread_ = std::thread([this, fd = dup(listener->fd())] {
      exit_code_ = RunCoordinator({.run_directory = run_directory_,
                                   .job_file = "job.yaml",
                                   .listen_fd = fd,
                                   .hosts = {"node1"},
                                   .secret = "secret",
                                   .checkpoint_files = &files_});
    });
    protocol::Hello hello;
    protocol::AgentHello* agent = hello.mutable_agent();
    agent->set_host("node1");
    agent->set_build_id(BuildId());
    agent->set_has_job(true);
    agent->set_run_directory(run_directory_);
    agent->set_num_devices(2);
    agent->set_threads_per_device(1);
    agent->set_devices_on_host(2);
    agent->set_machine("made up");
    agent->set_memory_bytes(int64_t{8} << 30);
    agent->set_sees_checkpoints(true);
    agent->set_data_ready(true);
    agent_ = Open(hello);
  }

  void TearDown() override {
    files_.Hang(false);
    protocol::ToCoordinator message;
    message.mutable_agent_failed()->set_reason("enough");
    agent_->SendReliably(std::move(message));
    thread_.join();
    EXPECT_TRUE(exit_code_.ok()) << exit_code_.status();
    std::filesystem::remove_all(run_directory_);
  }

  std::unique_ptr<Client> Open(const protocol::Hello& hello) {
    auto client = Client::Create({.address = address_,
                                  .secret = "secret",
                                  .make_hello = [hello] { return hello; }});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  static protocol::FromCoordinator Next(Client& client) {
    auto message = client.Receive(kMessageLimit);
    if (!message.ok() || !message->has_value()) return {};
    return **message;
  }

  // The worker that the agent is told to start next; says which. `held` as in
  // SayCleared().
  std::unique_ptr<Client> StartWorker(protocol::StartWorker* order,
                                      const protocol::HeldReplicas& held = {}) {
    *order = Next(*agent_).start_worker();
    protocol::Hello hello;
    hello.mutable_worker()->set_worker(order->worker());
    hello.mutable_worker()->set_incarnation(order->incarnation());
    hello.mutable_worker()->set_run_directory(run_directory_);
    *hello.mutable_worker()->mutable_replicas() = held;
    return Open(hello);
  }

  static void Send(Client& worker, int64_t generation,
                   protocol::ToCoordinator message) {
    message.set_generation(generation);
    worker.SendReliably(std::move(message));
  }
  static void SayRunning(Client& worker, int64_t generation) {
    protocol::ToCoordinator running;
    running.mutable_generation_running();
    Send(worker, generation, std::move(running));
  }
  // `held`: the copies of the state in memory that it tells of.
  static void SayCleared(Client& worker, int64_t generation,
                         const protocol::HeldReplicas& held = {}) {
    protocol::ToCoordinator ready;
    *ready.mutable_worker_ready()->mutable_replicas() = held;
    Send(worker, generation, std::move(ready));
  }
  void SayDied(const protocol::StartWorker& order) {
    protocol::ToCoordinator death;
    death.mutable_worker_died()->set_worker(order.worker());
    death.mutable_worker_died()->set_incarnation(order.incarnation());
    death.mutable_worker_died()->set_detail("killed by the test");
    agent_->SendReliably(death);
  }
  // Writes the parts of both ranks; returns what they report.
  std::vector<protocol::ToCoordinator> WriteParts(int64_t generation,
                                                  int64_t step) {
    std::vector<RankState> state = MakeState(TinyModel(), layout_);
    FillState(state, step);
    std::vector<protocol::ToCoordinator> parts;
    for (const RankState& rank : state) {
      const absl::StatusOr<std::string> entry = WriteCheckpointPart(
          files_, run_directory_ + "/checkpoints",
          InfoOf(layout_, step, generation), rank.rank, rank.pieces);
      EXPECT_TRUE(entry.ok()) << entry.status();
      parts.emplace_back().set_generation(generation);
      parts.back().mutable_checkpoint_part()->set_step(step);
      parts.back().mutable_checkpoint_part()->set_entry(entry.value_or(""));
    }
    return parts;
  }
  static void Report(const std::vector<Client*>& workers,
                     const std::vector<protocol::ToCoordinator>& parts) {
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      workers[rank]->SendReliably(parts[rank]);
    }
  }
  // Returns once the coordinator has handled all that the worker has sent.
  static void AwaitHandled(Client& worker, int64_t generation) {
    protocol::ToCoordinator message;
    message.mutable_rendezvous_set()->set_key("handled");
    message.mutable_rendezvous_set()->set_value("yes");
    Send(worker, generation, message);
    message.mutable_rendezvous_get()->set_key("handled");
    Send(worker, generation, message);
    EXPECT_TRUE(Next(worker).has_rendezvous_value());
  }
  bool IsCommitted(const std::string& step) {
    return files_.Exists(run_directory_ + "/checkpoints/step-" + step +
                         "/manifest.json");
  }

  std::string AwaitEvent(const std::string& text) {
    std::string events;
    for (const absl::Time end = absl::Now() + kMessageLimit;
         absl::Now() < end;) {
      const auto read = ReadFile(run_directory_ + "/events.jsonl");
      if (read.ok()) events = *read;
      if (events.find(text) != std::string::npos) break;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return events;
  }

  // The workers of both ranks, in generation 1, which runs.
  std::vector<std::unique_ptr<Client>> StartBoth() {
    protocol::StartWorker order;
    std::vector<std::unique_ptr<Client>> workers;
    for (int i = 0; i < 2; ++i) workers.push_back(StartWorker(&order));
    for (const auto& worker : workers) {
      EXPECT_TRUE(Next(*worker).has_start_generation());
      SayRunning(*worker, 1);
    }
    return workers;
  }
  // Steps 8 and 12 are saved while the disk hangs in the commit of step 4;
  // returns the events once step 12 is committed.
  std::string SaveOnASlowDisk() {
    const auto owned = StartBoth();
    const std::vector<Client*> workers = {owned[0].get(), owned[1].get()};
    std::vector<std::vector<protocol::ToCoordinator>> parts;
    for (const int64_t step : {4, 8, 12}) parts.push_back(WriteParts(1, step));
    files_.Hang(true);
    Report(workers, parts[0]);
    files_.AwaitHanging();
    Report(workers, parts[1]);
    Report(workers, parts[2]);
    for (Client* client : workers) AwaitHandled(*client, 1);
    files_.Hang(false);
    return AwaitEvent(
        R"("event":"checkpoint_committed","generation":1,"step":12)");
  }

  std::string more_keys_;  // Of the job.
  std::string run_directory_;
  std::string address_;
  HangingFiles files_;
  std::unique_ptr<Client> agent_;
  std::thread thread_;
  absl::StatusOr<int> exit_code_ = absl::UnavailableError("not yet");
  Layout layout_ = {.data = 2};
};

// Goal: while a disk holds up a commit, the coordinator goes on listening, and
// recovers from the death of a worker: it gives the commit up, whose manifest
// never appears; the next commit on the same disk is made. Method: a file
// system that hangs in the commit of step 4; a worker dies meanwhile.
TEST_F(JobCommitsTest, RecoversWhileACommitHangs) {
  protocol::StartWorker first, second;
  const std::unique_ptr<Client> worker = StartWorker(&first);
  std::unique_ptr<Client> other = StartWorker(&second);
  for (Client* client : {worker.get(), other.get()}) {
    ASSERT_TRUE(Next(*client).has_start_generation());
    SayRunning(*client, 1);
  }
  const auto parts = WriteParts(1, 4);
  files_.Hang(true);
  Report({worker.get(), other.get()}, parts);
  files_.AwaitHanging();

  protocol::Hello hello;
  hello.mutable_visitor();
  const std::unique_ptr<Client> visitor = Open(hello);
  protocol::ToCoordinator question;
  question.mutable_status_request();
  visitor->SendReliably(question);
  EXPECT_THAT(Next(*visitor).status().json(), HasSubstr(R"("over":false)"));

  other.reset();
  SayDied(second);
  EXPECT_TRUE(Next(*worker).has_abort_generation());
  SayCleared(*worker, 2);
  other = StartWorker(&second);
  EXPECT_EQ(second.incarnation(), 2);
  for (Client* client : {worker.get(), other.get()}) {
    const protocol::FromCoordinator start = Next(*client);
    ASSERT_TRUE(start.has_start_generation());
    EXPECT_THAT(start.start_generation().restore_path(), IsEmpty());
    SayRunning(*client, 2);
  }
  EXPECT_THAT(AwaitEvent("given up"),
              HasSubstr(R"("event":"checkpoint_failed","generation":1,)"
                        R"("step":4,"detail":"given up: a recovery)"));

  files_.Hang(false);
  Report({worker.get(), other.get()}, WriteParts(2, 8));
  EXPECT_THAT(AwaitEvent("checkpoint_committed"),
              HasSubstr(R"("event":"checkpoint_committed","generation":2,)"
                        R"("step":8)"));
  EXPECT_TRUE(IsCommitted("00000008"));
  EXPECT_FALSE(IsCommitted("00000004"));
}

// Goal: where commits take longer than the steps between checkpoints, those in
// between are given up for the newest.
TEST_F(JobCommitsTest, CommitsTheNewestOnASlowDisk) {
  EXPECT_THAT(SaveOnASlowDisk(), HasSubstr("given up for step 12"));
  EXPECT_TRUE(IsCommitted("00000012"));
  EXPECT_FALSE(IsCommitted("00000008"));
}

// Goal: a rank that finds its checkpoint to be of another state than the one
// that was compared is replaced, and all go back to the checkpoint before.
// Method: rank 1 says so of step 8.
TEST_F(JobCommitsTest, ReplacesARankWhoseMemoryChanged) {
  protocol::StartWorker first, second;
  const std::unique_ptr<Client> worker = StartWorker(&first);
  std::unique_ptr<Client> other = StartWorker(&second);
  for (Client* client : {worker.get(), other.get()}) {
    ASSERT_TRUE(Next(*client).has_start_generation());
    SayRunning(*client, 1);
  }
  Report({worker.get(), other.get()}, WriteParts(1, 4));
  AwaitEvent("checkpoint_committed");
  auto parts = WriteParts(1, 8);
  parts[1].mutable_checkpoint_part()->clear_entry();
  parts[1].mutable_checkpoint_part()->set_error("the state changed");
  parts[1].mutable_checkpoint_part()->set_memory_changed(true);
  Report({worker.get(), other.get()}, parts);
  const protocol::FromCoordinator order = Next(*agent_);
  ASSERT_TRUE(order.has_kill_worker());
  EXPECT_EQ(order.kill_worker().worker(), second.worker());
  EXPECT_TRUE(Next(*worker).has_abort_generation());
  other.reset();
  SayDied(second);
  EXPECT_TRUE(Next(*worker).has_abort_generation());
  SayCleared(*worker, 3);
  other = StartWorker(&second);
  for (Client* client : {worker.get(), other.get()}) {
    const protocol::FromCoordinator start = Next(*client);
    ASSERT_TRUE(start.has_start_generation());
    EXPECT_THAT(start.start_generation().restore_path(),
                HasSubstr("step-00000004"));
  }
  EXPECT_FALSE(IsCommitted("00000008"));
  EXPECT_THAT(AwaitEvent("replicas_differ"),
              HasSubstr("after step 8 the state of rank 1 changed in memory"));
}

// The parts of both ranks after each of the steps, in generation 1, with these
// hashes.
protocol::HeldReplicas HeldAfter(const std::vector<int64_t>& steps,
                                 const std::vector<uint64_t>& hashes) {
  protocol::HeldReplicas held;
  held.set_address("127.0.0.1:1");
  for (size_t i = 0; i < steps.size(); ++i) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      protocol::HeldReplica* part = held.add_parts();
      part->set_generation(1);
      part->set_step(steps[i]);
      part->set_rank(rank);
      part->set_num_ranks(2);
      part->set_hash(hashes[i] + static_cast<uint64_t>(rank));
    }
  }
  return held;
}

// Goal: a recovery compares what several workers hold. Copies that differ are
// not trusted, nor is what else their generation holds; where all agree, or one
// worker alone holds them, the newest are restored.
// Method: step 4 is committed; then rank 1 dies, and both ranks tell of copies
// of steps 6 and 7.
TEST_F(JobCommitsTest, TrustsNoCopiesThatDiffer) {
  protocol::StartWorker first, second;
  const std::unique_ptr<Client> worker = StartWorker(&first);
  std::unique_ptr<Client> other = StartWorker(&second);
  for (Client* client : {worker.get(), other.get()}) {
    ASSERT_TRUE(Next(*client).has_start_generation());
    SayRunning(*client, 1);
  }
  Report({worker.get(), other.get()}, WriteParts(1, 4));
  AwaitEvent("checkpoint_committed");
  // Ends the newest generation; returns the orders of the next one.
  int64_t generation = 1;
  const auto recover = [&](const protocol::HeldReplicas& of_first,
                           const protocol::HeldReplicas& of_second) {
    other.reset();
    SayDied(second);
    EXPECT_TRUE(Next(*worker).has_abort_generation());
    SayCleared(*worker, ++generation, of_first);
    other = StartWorker(&second, of_second);
    const protocol::FromCoordinator start = Next(*worker);
    EXPECT_TRUE(start.has_start_generation());
    EXPECT_TRUE(Next(*other).has_start_generation());
    return start.start_generation();
  };
  const auto expect_memory = [](const protocol::StartGeneration& start,
                                int64_t step) {
    EXPECT_EQ(start.restore_path(), "");
    EXPECT_EQ(start.replica_restore().generation(), 1);
    EXPECT_EQ(start.replica_restore().step(), step);
  };
  expect_memory(recover(HeldAfter({6, 7}, {60, 70}), HeldAfter({7}, {70})), 7);
  EXPECT_THAT(AwaitEvent("generation_started"), Not(HasSubstr("differ")));
  expect_memory(recover(HeldAfter({6, 7}, {60, 70}), {}), 7);  // One alone.
  const protocol::StartGeneration start =
      recover(HeldAfter({6, 7}, {60, 70}), HeldAfter({7}, {71}));
  EXPECT_FALSE(start.has_replica_restore());
  EXPECT_THAT(start.restore_path(), HasSubstr("step-00000004"));
  EXPECT_THAT(
      AwaitEvent("replicas_differ"),
      HasSubstr("the state after step 7, which rank 0, rank 1 hold in memory, "
                "differs, with no majority; no copy of it is trusted; going "
                "back to the last checkpoint"));
  // They tell of the same again, and are not believed.
  EXPECT_FALSE(recover(HeldAfter({6, 7}, {60, 70}), {}).has_replica_restore());
}

// Goal: of a generation whose copies differ, those are trusted that are no
// newer than the last comparison that agreed. Method: the replicas agree after
// step 6; copies of steps 5, 6 and 7 are there, and those of step 7 differ.
TEST_F(JobCommitsTest, TrustsCopiesThatWereCompared) {
  protocol::StartWorker first, second;
  const std::unique_ptr<Client> worker = StartWorker(&first);
  std::unique_ptr<Client> other = StartWorker(&second);
  for (Client* client : {worker.get(), other.get()}) {
    ASSERT_TRUE(Next(*client).has_start_generation());
    SayRunning(*client, 1);
  }
  for (Client* client : {worker.get(), other.get()}) {
    protocol::ToCoordinator message;
    message.mutable_state_hash()->set_step(6);
    message.mutable_state_hash()->set_hash(17);
    Send(*client, 1, message);
    AwaitHandled(*client, 1);
  }
  other.reset();
  SayDied(second);
  EXPECT_TRUE(Next(*worker).has_abort_generation());
  SayCleared(*worker, 2, HeldAfter({5, 6, 7}, {50, 60, 70}));
  other = StartWorker(&second, HeldAfter({6, 7}, {60, 71}));
  const protocol::FromCoordinator start = Next(*worker);
  ASSERT_TRUE(start.has_start_generation());
  EXPECT_EQ(start.start_generation().replica_restore().step(), 6);
  EXPECT_TRUE(Next(*other).has_start_generation());
  EXPECT_THAT(AwaitEvent("replicas_differ"),
              HasSubstr("going back to step 6, after which all agreed"));
}

// Goal: checkpoints that a full disk refuses do not stay on it: the next one
// that fails removes them, and once there is room the next is committed.
// Method: the parts of three steps are written, and no byte more fits while the
// first two are to be committed.
TEST_F(JobCommitsTest, RemovesWhatFailedFromAFullDisk) {
  const auto owned = StartBoth();
  const std::vector<Client*> workers = {owned[0].get(), owned[1].get()};
  std::vector<std::vector<protocol::ToCoordinator>> parts;
  for (const int64_t step : {4, 8, 12}) parts.push_back(WriteParts(1, step));
  const std::string folder = run_directory_ + "/checkpoints/step-000000";
  files_.SetCapacity(files_.used_bytes());
  Report(workers, parts[0]);
  EXPECT_THAT(AwaitEvent(R"("generation":1,"step":4)"),
              HasSubstr("checkpoint_failed"));
  EXPECT_TRUE(files_.Exists(folder + "04"));
  Report(workers, parts[1]);
  EXPECT_THAT(AwaitEvent(R"("generation":1,"step":8)"),
              HasSubstr("checkpoint_failed"));
  for (const absl::Time end = absl::Now() + kMessageLimit;
       files_.Exists(folder + "04") && absl::Now() < end;) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_FALSE(files_.Exists(folder + "04"));
  Report(workers, parts[2]);  // There is room now.
  AwaitEvent(R"("event":"checkpoint_committed","generation":1,"step":12)");
  EXPECT_TRUE(IsCommitted("00000012"));
}

// Goal: every step has a record, whoever reports it: the rank that comes first,
// and one whose report of an ended generation comes late. Method: the second
// rank alone reports, the first dies.
TEST_F(JobCommitsTest, RecordsStepsThatOneRankReports) {
  protocol::StartWorker first, second;
  std::unique_ptr<Client> dies = StartWorker(&first);
  const std::unique_ptr<Client> worker = StartWorker(&second);
  for (Client* client : {dies.get(), worker.get()}) {
    ASSERT_TRUE(Next(*client).has_start_generation());
    SayRunning(*client, 1);
  }
  const auto report = [&](int64_t generation, int64_t step) {
    protocol::ToCoordinator done;
    done.mutable_step_done()->set_step(step);
    done.mutable_step_done()->set_loss(2.5);
    done.mutable_step_done()->set_step_time_s(0.01);
    Send(*worker, generation, std::move(done));
  };
  report(1, 1);
  dies.reset();
  SayDied(first);
  EXPECT_TRUE(Next(*worker).has_abort_generation());
  report(1, 2);
  report(1, 2);  // As after a lost connection.
  report(1, 3);
  AwaitHandled(*worker, 2);
  const auto metrics = ReadFile(run_directory_ + "/metrics.jsonl");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  std::vector<std::string> starts;
  for (const absl::string_view line :
       absl::StrSplit(*metrics, '\n', absl::SkipEmpty())) {
    starts.emplace_back(line.substr(0, line.find(',')));
  }
  EXPECT_THAT(starts,
              ElementsAre(R"({"step":1)", R"({"step":2)", R"({"step":3)"));
}

class ExportingJobTest : public JobCommitsTest {
 protected:
  ExportingJobTest() { more_keys_ = "export: {every: 8}\n"; }
};

// Goal: a step whose weights are to be exported is committed all the same.
// Method: no commit fails; an export may be given up for the next one.
TEST_F(ExportingJobTest, CommitsWhatIsExportedOnASlowDisk) {
  EXPECT_THAT(SaveOnASlowDisk(), Not(HasSubstr("checkpoint_failed")));
  EXPECT_TRUE(IsCommitted("00000012"));
  EXPECT_TRUE(IsCommitted("00000008"));
}

}  // namespace
}  // namespace millrace

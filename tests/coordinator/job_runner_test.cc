#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "coordinator/coordinator.h"
#include "coordinator/protocol/build_id.h"
#include "coordinator/protocol/client.h"
#include "tests/coordinator/objects/fake_store.h"
#include "worker/agent/listener.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr absl::Duration kAnswerLimit = absl::Seconds(20);

// A coordinator on a thread, of a job for two agents. It has a listening socket
// for real clients, which the test lets say what it wants.
class JobRunnerTest : public testing::Test {
 protected:
  void SetUp() override {
    run_directory_ =
        testing::TempDir() + "/millrace-runner-" + std::to_string(getpid());
    std::filesystem::remove_all(run_directory_);
    ASSERT_TRUE(MakeDirectories(run_directory_ + "/logs").ok());
    ASSERT_TRUE(WriteFileAtomically(run_directory_ + "/job.yaml", R"(
name: tiny
model: {family: llama, vocab_size: 288, hidden: 32, layers: 2, heads: 4,
        kv_heads: 2, ffn_hidden: 64, sequence_length: 32}
data: {synthetic: true}
training: {steps: 12, global_batch: 8, optimizer: {learning_rate: 1e-3}}
)" + more_keys_)
                    .ok());
    auto listener = Listener::Create();
    ASSERT_TRUE(listener.ok()) << listener.status();
    address_ = listener->address();
    thread_ = std::thread([this, fd = dup(listener->fd())] {
      exit_code_ = RunCoordinator({.run_directory = run_directory_,
                                   .job_file = "job.yaml",
                                   .listen_fd = fd,
                                   .num_agents = 2,
                                   .hosts = {"node1"},
                                   .secret = "secret"});
    });
  }

  void TearDown() override {
    // Agent 0 ends the job, by which the coordinator ends.
    auto first = Connect(Greeting(0, "node1"));
    protocol::ToCoordinator message;
    message.mutable_agent_failed()->set_reason("enough");
    message.mutable_agent_failed()->set_bad_input(true);
    first->SendReliably(std::move(message));
    EXPECT_EQ(Answer(*first).body_case(), protocol::FromCoordinator::kWelcome);
    thread_.join();
    ASSERT_TRUE(exit_code_.ok()) << exit_code_.status();
    EXPECT_EQ(*exit_code_, 2);
    std::filesystem::remove_all(run_directory_);
  }

  static protocol::Hello Greeting(int32_t agent_idx, const std::string& host,
                                  uint64_t instance = 0) {
    protocol::Hello hello;
    hello.mutable_agent()->set_agent_idx(agent_idx);
    hello.mutable_agent()->set_host(host);
    hello.mutable_agent()->set_build_id(BuildId());
    hello.mutable_agent()->set_instance(instance);
    return hello;
  }

  std::unique_ptr<Client> Connect(const protocol::Hello& hello) {
    auto client = Client::Create({.address = address_,
                                  .secret = "secret",
                                  .make_hello = [hello] { return hello; }});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  static protocol::FromCoordinator Answer(Client& client) {
    auto message = client.Receive(kAnswerLimit);
    if (!message.ok() || !message->has_value()) return {};
    return **message;
  }

  // An agent with the job, data and one device, on host node1 or node2.
  std::unique_ptr<Client> ConnectReadyAgent(int32_t agent_idx) {
    protocol::Hello hello =
        Greeting(agent_idx, agent_idx == 0 ? "node1" : "node2");
    hello.mutable_agent()->set_has_job(true);
    hello.mutable_agent()->set_run_directory(run_directory_);
    hello.mutable_agent()->set_num_devices(1);
    hello.mutable_agent()->set_threads_per_device(1);
    hello.mutable_agent()->set_devices_on_host(1);
    hello.mutable_agent()->set_machine("made up");
    hello.mutable_agent()->set_memory_bytes(int64_t{8} << 30);
    hello.mutable_agent()->set_sees_checkpoints(true);
    hello.mutable_agent()->set_data_ready(true);
    return Connect(hello);
  }

  // The worker that the agent is told to start.
  std::unique_ptr<Client> ConnectWorker(Client& agent) {
    const protocol::FromCoordinator order = Answer(agent);
    EXPECT_TRUE(order.has_start_worker());
    protocol::Hello hello;
    hello.mutable_worker()->set_worker(order.start_worker().worker());
    hello.mutable_worker()->set_incarnation(order.start_worker().incarnation());
    hello.mutable_worker()->set_run_directory(run_directory_);
    return Connect(hello);
  }

  // Why a process with this greeting is refused; empty if it is not.
  std::string Refusal(const protocol::Hello& hello) {
    const std::unique_ptr<Client> client = Connect(hello);
    const protocol::FromCoordinator answer = Answer(*client);
    if (!answer.has_shutdown()) return "";
    EXPECT_EQ(answer.shutdown().exit_code(), 2);
    return answer.shutdown().message();
  }

  std::string more_keys_;  // Of the job, for a fixture to set.
  std::string run_directory_;
  std::string address_;
  std::thread thread_;
  absl::StatusOr<int> exit_code_ = absl::UnavailableError("not yet");
};

// Goal: agents and workers of an earlier job, which had the same address and
// secret, are told so and change nothing. Method: greetings with another run
// directory, or none, from a numbered agent, a joined one and a worker.
TEST_F(JobRunnerTest, RefusesProcessesOfAnEarlierJob) {
  protocol::Hello joined = Greeting(1, "node2", 7);
  joined.mutable_agent()->set_has_job(true);
  joined.mutable_agent()->set_run_directory("/runs/earlier");
  EXPECT_THAT(Refusal(joined),
              HasSubstr("node2 still runs an earlier job, /runs/earlier"));
  protocol::Hello numbered = Greeting(1, "node2");
  numbered.mutable_agent()->set_has_job(true);
  EXPECT_THAT(Refusal(numbered), HasSubstr(run_directory_));
  protocol::Hello worker;
  worker.mutable_worker()->set_worker(1);
  EXPECT_THAT(Refusal(worker), HasSubstr("the host of worker 1"));
  // Its place is still free.
  const auto client = Connect(Greeting(-1, "node2", 8));
  EXPECT_EQ(Answer(*client).welcome().agent_idx(), 1);
}

// Goal: an index that is none of the job's, or another's, is refused with the
// reason; the same agent may come back. Method: two agents that no launcher
// has numbered, and indices on both sides of the allowed ones.
TEST_F(JobRunnerTest, GivesEachIndexOnce) {
  EXPECT_THAT(Refusal(Greeting(2, "node3")),
              HasSubstr("agent 2 on node3 is none of the job's 2 agents"));
  EXPECT_THAT(Refusal(Greeting(-1, "node3")), HasSubstr("agent -1"));
  EXPECT_THAT(Refusal(Greeting(5, "node3", 9)), HasSubstr("agent 5"));
  EXPECT_THAT(Refusal(Greeting(-2, "node3", 9)), HasSubstr("agent -2"));
  EXPECT_EQ(Answer(*Connect(Greeting(-1, "node2", 7))).welcome().agent_idx(),
            1);
  EXPECT_EQ(Answer(*Connect(Greeting(1, "node2", 7))).welcome().agent_idx(), 1);
  EXPECT_THAT(Refusal(Greeting(1, "node3", 9)),
              HasSubstr("host node2 has joined as agent 1, which node3"));
  EXPECT_THAT(Refusal(Greeting(-1, "node3", 9)), HasSubstr("higher --agents"));
  // While the first is there, its host has no second.
  const auto again = Connect(Greeting(1, "node2", 7));
  EXPECT_EQ(Answer(*again).welcome().agent_idx(), 1);
  EXPECT_THAT(Refusal(Greeting(-1, "node2", 9)),
              HasSubstr("host node2 has joined already, as agent 1"));
}

// Goal: an agent that was started again on its host takes the place of the one
// before. Method: the second comes when the first is gone.
TEST_F(JobRunnerTest, TakesAnAgentThatWasStartedAgain) {
  EXPECT_EQ(Answer(*Connect(Greeting(-1, "node2", 7))).welcome().agent_idx(),
            1);
  // The coordinator may hear of the end of a connection a little later.
  std::string refusal = "not asked";
  for (int i = 0; i < 100 && !refusal.empty(); ++i) {
    refusal = Refusal(Greeting(-1, "node2", 9));
  }
  EXPECT_EQ(refusal, "");
}

// Goal: the cause of a failed generation, with its rank and host, reaches the
// run's events. Method: two agents whose workers are to measure a profile; one
// of them fails, as where its peer cannot be reached.
TEST_F(JobRunnerTest, RecordsWhyAGenerationFailed) {
  std::vector<std::unique_ptr<Client>> agents, workers;
  for (int32_t i = 0; i < 2; ++i) agents.push_back(ConnectReadyAgent(i));
  for (int32_t i = 0; i < 2; ++i) workers.push_back(ConnectWorker(*agents[i]));
  const protocol::FromCoordinator start = Answer(*workers[1]);
  ASSERT_TRUE(start.has_start_generation());
  EXPECT_THAT(start.start_generation().hosts(), ElementsAre("node1", "node2"));
  protocol::ToCoordinator failed;
  failed.set_generation(start.generation());
  failed.mutable_generation_failed()->set_code(
      static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  failed.mutable_generation_failed()->set_message("no sign of rank 0");
  workers[1]->SendReliably(std::move(failed));
  // All are told to start again.
  EXPECT_TRUE(Answer(*workers[1]).has_abort_generation());
  const absl::StatusOr<std::string> events =
      ReadFile(run_directory_ + "/events.jsonl");
  ASSERT_TRUE(events.ok());
  EXPECT_THAT(
      *events,
      HasSubstr(R"("event":"generation_failed","generation":1,"rank":1,)"
                R"("host":"node2","detail":"rank 1 (node2): )"
                R"(no sign of rank 0")"));
}

// Goal: who knows the secret sees the job's status and any rank's log from any
// host, without being taken for an agent; a rank that is not there, and a log
// that its host cannot read, are errors. Method: a visitor, and an agent that
// answers it.
TEST_F(JobRunnerTest, AnswersVisitors) {
  std::vector<std::unique_ptr<Client>> agents, workers;
  for (int32_t i = 0; i < 2; ++i) agents.push_back(ConnectReadyAgent(i));
  for (int32_t i = 0; i < 2; ++i) workers.push_back(ConnectWorker(*agents[i]));
  ASSERT_TRUE(Answer(*workers[1]).has_start_generation());
  protocol::Hello hello;
  hello.mutable_visitor();
  const std::unique_ptr<Client> visitor = Connect(hello);

  protocol::ToCoordinator question;
  question.mutable_status_request();
  visitor->SendReliably(question);
  const protocol::FromCoordinator status = Answer(*visitor);
  EXPECT_THAT(status.status().text(),
              HasSubstr("generation_started: measures a profile"));
  EXPECT_THAT(status.status().json(), HasSubstr(R"("over":false)"));

  question.mutable_log_request()->set_rank(1);
  question.mutable_log_request()->set_offset(5);
  visitor->SendReliably(question);
  const protocol::FromCoordinator order = Answer(*agents[1]);
  ASSERT_TRUE(order.has_read_log());
  EXPECT_EQ(order.read_log().rank(), 1);
  EXPECT_EQ(order.read_log().offset(), 5);
  protocol::ToCoordinator text;
  text.mutable_log()->set_number(order.read_log().number());
  text.mutable_log()->set_text("more");
  agents[1]->Send(text);
  EXPECT_EQ(Answer(*visitor).log().text(), "more");

  question.mutable_log_request()->set_rank(2);
  visitor->SendReliably(question);
  EXPECT_THAT(Answer(*visitor).log().error(),
              HasSubstr("the job has no rank 2; its hosts have 2 devices"));
  question.mutable_log_request()->set_rank(-1);
  visitor->SendReliably(question);
  EXPECT_THAT(Answer(*visitor).log().error(), HasSubstr("no rank -1"));
}

// The same with checkpoints in a bucket whose server answers nothing until it
// is let go.
class SlowBucketTest : public JobRunnerTest {
 protected:
  SlowBucketTest() {
    for (const char* name : kCredentials) setenv(name, "test", 1);
    more_keys_ =
        absl::StrCat("checkpoint: {directory: s3://bucket/saved, ",
                     "endpoint: '", store_.Options().place.endpoint, "'}\n");
    store_.SetFault([this](const StoreRequest&) {
      std::call_once(asked_once_, [this] { asked_.Notify(); });
      may_answer_.WaitForNotification();
      return StoreFault::kNone;
    });
  }
  ~SlowBucketTest() override {
    for (const char* name : kCredentials) unsetenv(name);
  }

  static constexpr const char* kCredentials[] = {"AWS_ACCESS_KEY_ID",
                                                 "AWS_SECRET_ACCESS_KEY"};
  std::once_flag asked_once_;
  absl::Notification asked_, may_answer_;
  FakeStore store_;
};

// Goal: where locking the folder of checkpoints takes long, the plan waits for
// it, and nobody else: the coordinator goes on to answer. Method: a visitor
// asks while the store holds back its answer to the lock.
TEST_F(SlowBucketTest, AnswersWhileItWaitsForTheLock) {
  std::vector<std::unique_ptr<Client>> agents;
  for (int32_t i = 0; i < 2; ++i) agents.push_back(ConnectReadyAgent(i));
  ASSERT_TRUE(asked_.WaitForNotificationWithTimeout(kAnswerLimit));
  protocol::Hello hello;
  hello.mutable_visitor();
  const std::unique_ptr<Client> visitor = Connect(hello);
  protocol::ToCoordinator question;
  question.mutable_status_request();
  for (int i = 0; i < 3; ++i) {
    visitor->SendReliably(question);
    EXPECT_TRUE(Answer(*visitor).has_status());
  }
  const auto nothing_yet = agents[0]->Receive(absl::Milliseconds(200));
  ASSERT_TRUE(nothing_yet.ok()) << nothing_yet.status();
  EXPECT_FALSE(nothing_yet->has_value());
  may_answer_.Notify();
  EXPECT_TRUE(Answer(*agents[0]).has_start_worker());
  EXPECT_THAT(store_.objects(),
              testing::Contains(testing::Key("saved/.owner")));
}

}  // namespace
}  // namespace millrace

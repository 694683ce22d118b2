#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/files.h"
#include "coordinator/coordinator.h"
#include "coordinator/protocol/build_id.h"
#include "coordinator/protocol/client.h"
#include "worker/agent/listener.h"

namespace millrace {
namespace {

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
)")
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

  // Why a process with this greeting is refused; empty if it is not.
  std::string Refusal(const protocol::Hello& hello) {
    const std::unique_ptr<Client> client = Connect(hello);
    const protocol::FromCoordinator answer = Answer(*client);
    if (!answer.has_shutdown()) return "";
    EXPECT_EQ(answer.shutdown().exit_code(), 2);
    return answer.shutdown().message();
  }

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

}  // namespace
}  // namespace millrace

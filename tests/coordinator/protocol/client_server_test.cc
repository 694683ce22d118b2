#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/protocol/client.h"
#include "coordinator/protocol/framing.h"
#include "coordinator/protocol/secret.h"
#include "coordinator/server.h"
#include "worker/agent/listener.h"

namespace millrace {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(20);

// A server on a thread, as a coordinator process would be.
class RunningServer {
 public:
  RunningServer(const Listener& listener, bool acknowledge,
                const std::string& secret = "right")
      : acknowledge_(acknowledge) {
    auto server = Server::Create(
        {.listen_fd = dup(listener.fd()),
         .secret = secret,
         .on_message =
             [this](SessionId session, const protocol::ToCoordinator& message) {
               OnMessage(session, message);
             },
         .on_closed = [](SessionId) {},
         .tick_interval = absl::Milliseconds(50),
         .on_tick = [] {}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    thread_ = std::thread([this] { server_->Run(); });
  }
  ~RunningServer() {
    server_->Post([this] { server_->Stop(); });
    thread_.join();
  }

  std::atomic<int> num_hellos = 0;
  std::atomic<int> num_heartbeats = 0;

 private:
  // Echoes RendezvousSet; acknowledges if told to.
  void OnMessage(SessionId session, const protocol::ToCoordinator& message) {
    protocol::FromCoordinator answer;
    if (message.has_hello()) {
      ++num_hellos;
      answer.mutable_welcome()->set_job_yaml("welcome");
      server_->Send(session, answer);
    } else if (message.has_heartbeat()) {
      ++num_heartbeats;
    } else if (message.has_rendezvous_set()) {
      answer.mutable_rendezvous_value()->set_key(
          message.rendezvous_set().key());
      server_->Send(session, answer);
      if (!acknowledge_) return;
      answer.mutable_acknowledge()->add_sequences(message.sequence());
      server_->Send(session, answer);
    }
  }

  const bool acknowledge_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Client>> MakeClient(const std::string& address,
                                                   const std::string& secret) {
  return Client::Create({.address = address,
                         .secret = secret,
                         .heartbeat_interval = absl::Milliseconds(20),
                         .give_up_after = absl::Milliseconds(500),
                         .make_hello = [] {
                           protocol::Hello hello;
                           hello.mutable_worker()->set_rank(3);
                           return hello;
                         }});
}

void Set(Client& client, const std::string& key) {
  protocol::ToCoordinator message;
  message.mutable_rendezvous_set()->set_key(key);
  client.SendReliably(std::move(message));
}

// The keys echoed until `count` different ones have come.
std::set<std::string> Echoes(Client& client, size_t count) {
  std::set<std::string> keys;
  while (keys.size() < count) {
    auto message = client.Receive(kLimit);
    if (!message.ok() || !message->has_value()) break;
    if ((*message)->has_rendezvous_value()) {
      keys.insert((*message)->rendezvous_value().key());
    }
  }
  return keys;
}

// Goal: a client is greeted, its messages arrive and are answered, its
// heartbeats come by themselves. Method: one of each over loopback.
TEST(ClientServerTest, Talks) {
  auto listener = Listener::Create();
  ASSERT_TRUE(listener.ok()) << listener.status();
  RunningServer server(*listener, true);
  auto client = MakeClient(listener->address(), "right");
  ASSERT_TRUE(client.ok()) << client.status();
  auto welcome = (*client)->Receive(kLimit);
  ASSERT_TRUE(welcome.ok() && welcome->has_value());
  EXPECT_EQ((*welcome)->welcome().job_yaml(), "welcome");
  Set(**client, "a");
  EXPECT_EQ(Echoes(**client, 1), std::set<std::string>{"a"});
  while (server.num_heartbeats < 3) std::this_thread::yield();
}

// Goal: what was not acknowledged is sent again to a restarted coordinator, and
// what was is not. Method: two servers, one after the other, on one listening
// socket.
TEST(ClientServerTest, SendsAgainAfterARestart) {
  auto listener = Listener::Create();
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::unique_ptr<Client> client;
  {
    RunningServer server(*listener, false);
    auto made = MakeClient(listener->address(), "right");
    ASSERT_TRUE(made.ok());
    client = *std::move(made);
    Set(*client, "a");
    Set(*client, "b");
    EXPECT_EQ(Echoes(*client, 2).size(), 2u);
  }
  {
    RunningServer server(*listener, true);
    Set(*client, "c");
    EXPECT_EQ(Echoes(*client, 3), (std::set<std::string>{"a", "b", "c"}));
    EXPECT_EQ(server.num_hellos, 1);
  }
  RunningServer server(*listener, true);
  Set(*client, "d");
  EXPECT_TRUE(Echoes(*client, 1).contains("d"));
}

// Goal: a peer without the secret gets nothing. Method: a wrong one; the server
// never sees its hello, and the client gives up.
TEST(ClientServerTest, RefusesAWrongSecret) {
  auto listener = Listener::Create();
  ASSERT_TRUE(listener.ok());
  RunningServer server(*listener, true);
  auto client = MakeClient(listener->address(), "wrong");
  ASSERT_TRUE(client.ok());
  const auto message = (*client)->Receive(kLimit);
  EXPECT_EQ(message.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server.num_hellos, 0);
}

TEST(ClientServerTest, RefusesAnAddressThatIsNone) {
  for (const char* address : {"", "localhost", "1.2.3.4", "1.2.3.4:0", "x:1",
                              "1.2.3.4:5,", "[::1:5", "fd00::1"}) {
    EXPECT_EQ(Client::Create({.address = address}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
}

// Goal: a client knows how far its clock is from the coordinator's, to within
// what it says. Method: both on one machine, the client's clock three hours
// ahead; the first exchange comes with a heartbeat.
TEST(ClientServerTest, MeasuresTheClocksOffset) {
  auto listener = Listener::Create();
  ASSERT_TRUE(listener.ok());
  RunningServer server(*listener, true);
  auto client =
      Client::Create({.address = listener->address(),
                      .secret = "right",
                      .heartbeat_interval = absl::Milliseconds(20),
                      .measures_clock = true,
                      .clock = [] { return MonotonicNow() + absl::Hours(3); },
                      .make_hello = [] { return protocol::Hello(); }});
  ASSERT_TRUE(client.ok());
  const absl::Time deadline = MonotonicNow() + kLimit;
  while (!(*client)->clock_offset().has_value() && MonotonicNow() < deadline) {
    static_cast<void>((*client)->Receive(absl::Milliseconds(20)));
  }
  const std::optional<ClockOffset> offset = (*client)->clock_offset();
  ASSERT_TRUE(offset.has_value());
  EXPECT_LT(offset->uncertainty, 10);
  EXPECT_LE(std::abs(offset->seconds + 3 * 3600), offset->uncertainty + 1e-6);
}

// Goal: of several addresses the one is taken where somebody proves to know the
// secret, and the others are closed. Method: an address where nobody listens,
// one where a server of another job does, one that never answers, and the right
// one.
TEST(ClientServerTest, TakesTheAddressOfItsCoordinator) {
  auto closed = Listener::Create();
  auto other = Listener::Create();
  auto silent = Listener::Create();
  auto right = Listener::Create();
  ASSERT_TRUE(closed.ok() && other.ok() && silent.ok() && right.ok());
  RunningServer other_server(*other, true, "another");
  RunningServer server(*right, true);
  const std::string addresses =
      absl::StrCat(closed->address(), ",", other->address(), ",",
                   silent->address(), ",", right->address());
  {
    const Listener gone = *std::move(closed);  // Its address refuses now.
  }
  auto client = MakeClient(addresses, "right");
  ASSERT_TRUE(client.ok()) << client.status();
  auto welcome = (*client)->Receive(kLimit);
  ASSERT_TRUE(welcome.ok() && welcome->has_value());
  EXPECT_EQ((*client)->address(), right->address());
  EXPECT_EQ(other_server.num_hellos, 0);
}

// Sends `payloads` as a stranger would and reads until the server closes. True
// if it did; a server that goes on listening runs into the limit.
bool IsTurnedAway(const Listener& listener,
                  const std::vector<std::string>& payloads) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  timeval limit = {.tv_sec = 10};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  bool closed = connect(fd, reinterpret_cast<sockaddr*>(&address), size) == 0;
  for (const std::string& payload : payloads) {
    send(fd, payload.data(), payload.size(), MSG_NOSIGNAL);
  }
  char buffer[4096];
  ssize_t num_bytes = 0;
  while ((num_bytes = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
  }
  closed = closed && (num_bytes == 0 || errno == ECONNRESET);
  close(fd);
  return closed;
}

std::string Frame(const protocol::ToCoordinator& message) {
  return EncodeFrame(message.SerializeAsString());
}

// Goal: whoever cannot prove the secret is turned away at once, however he
// begins, and peers are served meanwhile. Method: the secret itself as a token,
// no challenge, a wrong proof, no nonce, a frame that would take memory, bytes
// that are no frame.
TEST(ClientServerTest, TurnsStrangersAway) {
  auto listener = Listener::Create();
  ASSERT_TRUE(listener.ok());
  RunningServer server(*listener, true);
  protocol::ToCoordinator hello;
  hello.mutable_hello()->set_token("right");
  hello.mutable_hello()->mutable_worker()->set_rank(3);
  protocol::ToCoordinator challenge;
  challenge.mutable_challenge()->set_nonce(*MakeNonce());
  protocol::ToCoordinator no_nonce;
  no_nonce.mutable_challenge();
  protocol::ToCoordinator large;
  large.mutable_challenge()->set_nonce(std::string(1 << 20, 'x'));
  const std::vector<std::vector<std::string>> beginnings = {
      {Frame(hello)},
      {Frame(challenge), Frame(hello)},
      {Frame(challenge), Frame(challenge)},
      {Frame(no_nonce)},
      {Frame(large).substr(0, kFrameHeaderBytes)},
      {std::string(100, 'x')}};
  for (size_t i = 0; i < beginnings.size(); ++i) {
    EXPECT_TRUE(IsTurnedAway(*listener, beginnings[i])) << i;
  }
  EXPECT_EQ(server.num_hellos, 0);
  auto client = MakeClient(listener->address(), "right");
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE((*client)->Receive(kLimit).ok());
  EXPECT_EQ(server.num_hellos, 1);
}

// Goal: a recorded conversation opens nothing. Method: proofs of two
// conversations, and of both ends of one, differ.
TEST(SecretTest, ProofsServeOnce) {
  const auto a = MakeNonce();
  const auto b = MakeNonce();
  ASSERT_TRUE(a.ok() && b.ok());
  const std::string proof = ProofOf("secret", Prover::kPeer, *a, *b);
  EXPECT_EQ(proof.size(), 32u);
  EXPECT_EQ(proof, ProofOf("secret", Prover::kPeer, *a, *b));
  EXPECT_NE(proof, ProofOf("secret", Prover::kCoordinator, *a, *b));
  EXPECT_NE(proof, ProofOf("secret", Prover::kPeer, *b, *a));
  EXPECT_NE(proof, ProofOf("other", Prover::kPeer, *a, *b));
}

// Goal: secrets are random and compared whole.
TEST(SecretTest, MakesAndCompares) {
  const auto a = MakeSecret();
  const auto b = MakeSecret();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->size(), 32u);
  EXPECT_TRUE(SecretsEqual(*a, *a));
  EXPECT_FALSE(SecretsEqual(*a, *b));
  EXPECT_FALSE(SecretsEqual(*a, a->substr(1)));
}

}  // namespace
}  // namespace millrace

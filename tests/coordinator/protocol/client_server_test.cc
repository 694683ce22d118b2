#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
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

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
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
                const std::string& secret = "right", int64_t term = 0)
      : acknowledge_(acknowledge) {
    auto server = Server::Create(
        {.listen_fd = dup(listener.fd()),
         .secret = secret,
         .term = term,
         .on_message =
             [this](SessionId session, const protocol::ToCoordinator& message) {
               OnMessage(session, message);
             },
         .on_closed = [](SessionId) {},
         .on_stranger = [this](const std::string&) { ++num_stranger_events; },
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
  std::atomic<int> num_stranger_events = 0;
  std::atomic<int64_t> latest_term = 0;  // Of those told by peers.
  std::atomic<int64_t> latest_step = 0;  // Likewise.

 private:
  // Echoes RendezvousSet; acknowledges if told to.
  void OnMessage(SessionId session, const protocol::ToCoordinator& message) {
    protocol::FromCoordinator answer;
    if (message.has_hello()) {
      ++num_hellos;
      latest_term = message.hello().term();
      answer.mutable_welcome()->set_job_yaml("welcome");
      server_->Send(session, answer);
    } else if (message.has_heartbeat()) {
      ++num_heartbeats;
    } else if (message.has_step_done()) {
      latest_step = message.step_done().step();
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
                           hello.mutable_worker()->set_worker(3);
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

// Goal: when a generation has ended, what is not acknowledged of it is
// forgotten, but for its reports of steps, from whose state the next one may go
// on. Method: messages of generation 1 to nobody, then a coordinator.
TEST(ClientServerTest, KeepsReportsOfStepsOfEndedGenerations) {
  auto listener = Listener::Create();
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto client = MakeClient(listener->address(), "right");
  ASSERT_TRUE(client.ok()) << client.status();
  protocol::ToCoordinator message;
  message.set_generation(1);
  message.mutable_rendezvous_set()->set_key("forgotten");
  (*client)->SendReliably(message);
  message.mutable_step_done()->set_step(45);
  (*client)->SendReliably(message);
  (*client)->DropOlderThan(2);
  Set(**client, "kept");
  RunningServer server(*listener, true);
  EXPECT_EQ(Echoes(**client, 1), (std::set<std::string>{"kept"}));
  EXPECT_EQ(server.latest_step, 45);
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

// Goal: an address that accepts and says nothing, as that of a host whose
// coordinator has not been started, keeps nobody from one that is reached again
// later, nor does one before it that always refuses. Method: the right server
// appears after all first tries; a round would take a minute.
TEST(ClientServerTest, TriesFailedAddressesAgainBesideASilentOne) {
  auto closed = Listener::Create();
  auto silent = Listener::Create();
  auto early = Listener::Create();
  ASSERT_TRUE(closed.ok() && silent.ok() && early.ok());
  const std::string refusing = closed->address();
  const std::string address = early->address();
  int32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.find(':') + 1), &port));
  {
    const Listener gone = *std::move(early);  // Its address refuses now.
    const Listener gone_for_good = *std::move(closed);
  }
  auto client = MakeClient(
      absl::StrJoin({refusing, address, silent->address()}, ","), "right");
  ASSERT_TRUE(client.ok()) << client.status();
  absl::SleepFor(absl::Seconds(1));
  auto right =
      Listener::Create({"127.0.0.1"}, {.range = {.first = port, .last = port}});
  ASSERT_TRUE(right.ok()) << right.status();
  RunningServer server(*right, true);
  auto welcome = (*client)->Receive(kLimit);
  ASSERT_TRUE(welcome.ok() && welcome->has_value());
  EXPECT_EQ((*client)->address(), address);
}

int ConnectTo(const Listener& listener) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  return fd;
}

// Sends `bytes` as a stranger would and reads until the server closes. True if
// it did; a server that goes on listening runs into the limit.
bool IsTurnedAway(const Listener& listener, const std::string& bytes) {
  const int fd = ConnectTo(listener);
  timeval limit = {.tv_sec = 10};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  char buffer[4096];
  ssize_t num_bytes = 0;
  while ((num_bytes = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
  }
  const bool closed = num_bytes == 0 || errno == ECONNRESET;
  close(fd);
  return closed;
}

// Goal: whoever cannot prove the secret is turned away at once, however he
// begins, and peers are served meanwhile. Method: a greeting without a proof,
// bytes that are nothing, another protocol, a record of TLS that is too large.
TEST(ClientServerTest, TurnsStrangersAway) {
  auto listener = Listener::Create();
  ASSERT_TRUE(listener.ok());
  RunningServer server(*listener, true);
  protocol::ToCoordinator hello;
  hello.mutable_hello()->mutable_worker()->set_worker(3);
  const std::vector<std::string> beginnings = {
      EncodeFrame(hello.SerializeAsString()), std::string(100, 'x'),
      "GET / HTTP/1.1\r\n\r\n", std::string("\x16\x03\x01\xff\xff", 5)};
  for (size_t i = 0; i < beginnings.size(); ++i) {
    EXPECT_TRUE(IsTurnedAway(*listener, beginnings[i])) << i;
  }
  EXPECT_EQ(server.num_hellos, 0);
  EXPECT_EQ(server.num_stranger_events, 1);
  auto client = MakeClient(listener->address(), "right");
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE((*client)->Receive(kLimit).ok());
  EXPECT_EQ(server.num_hellos, 1);
}

// Passes on what the two ends of one connection say, and keeps it.
class Recorder {
 public:
  Recorder(const Listener& here, const Listener& there)
      : thread_([this, listening = here.fd(), &there] {
          int ends[2] = {accept(listening, nullptr, nullptr), ConnectTo(there)};
          pollfd polled[2] = {{.fd = ends[0], .events = POLLIN},
                              {.fd = ends[1], .events = POLLIN}};
          bool open = true;
          while (open && poll(polled, 2, -1) > 0) {
            for (int i = 0; i < 2; ++i) {
              if (polled[i].revents == 0) continue;
              char buffer[4096];
              const ssize_t size = recv(ends[i], buffer, sizeof(buffer), 0);
              open = open && size > 0;
              if (size <= 0) continue;
              said[i].append(buffer, static_cast<size_t>(size));
              send(ends[1 - i], buffer, static_cast<size_t>(size),
                   MSG_NOSIGNAL);
            }
          }
          close(ends[0]);
          close(ends[1]);
        }) {}
  void Wait() { thread_.join(); }

  std::string said[2];  // By the client, by the server. After Wait().

 private:
  std::thread thread_;
};

// Goal: a recorded conversation opens nothing, at either end. Method: record a
// client and its server; say to a server what the client said, and to a client
// what the server said.
TEST(ClientServerTest, RecordedConversationsOpenNothing) {
  auto listener = Listener::Create();
  auto between = Listener::Create();
  ASSERT_TRUE(listener.ok() && between.ok());
  RunningServer server(*listener, true);
  Recorder recorder(*between, *listener);
  {
    auto client = MakeClient(between->address(), "right");
    ASSERT_TRUE(client.ok());
    EXPECT_TRUE((*client)->Receive(kLimit).ok());
    Set(**client, "a");
    EXPECT_EQ(Echoes(**client, 1), std::set<std::string>{"a"});
  }
  recorder.Wait();
  EXPECT_EQ(server.num_hellos, 1);
  EXPECT_GT(recorder.said[0].size(), 300u);
  // Nothing can be read in it either.
  EXPECT_EQ(recorder.said[1].find("welcome"), std::string::npos);
  EXPECT_TRUE(IsTurnedAway(*listener, recorder.said[0]));
  EXPECT_EQ(server.num_hellos, 1);

  std::thread impostor([fd = between->fd(), &recorder] {
    const int end = accept(fd, nullptr, nullptr);
    send(end, recorder.said[1].data(), recorder.said[1].size(), MSG_NOSIGNAL);
    char buffer[4096];
    while (recv(end, buffer, sizeof(buffer), 0) > 0) {
    }
    close(end);
  });
  auto client = MakeClient(between->address(), "right");
  ASSERT_TRUE(client.ok());
  impostor.join();
  shutdown(between->fd(), SHUT_RDWR);
  EXPECT_EQ((*client)->Receive(kLimit).status().code(),
            absl::StatusCode::kUnavailable);
}

// Goal: strangers who say nothing keep nobody out for long, the server holds
// only some of them, and tells of them once. Method: more of them than it holds
// connect before a peer.
TEST(ClientServerTest, HoldsFewStrangers) {
  auto listener = Listener::Create();
  ASSERT_TRUE(listener.ok());
  RunningServer server(*listener, true);
  std::vector<int> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(ConnectTo(*listener));
  auto client = MakeClient(listener->address(), "right");
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE((*client)->Receive(kLimit).ok());
  EXPECT_EQ(server.num_hellos, 1);
  EXPECT_EQ(server.num_stranger_events, 1);
  int num_closed = 0;
  for (const int fd : strangers) {
    char byte;
    num_closed += recv(fd, &byte, 1, MSG_DONTWAIT) == 0 ? 1 : 0;
    close(fd);
  }
  EXPECT_GE(num_closed, 300 - 256);
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

// Goal: a client goes to whichever address has the coordinator, and hangs up on
// one of an earlier term than it has heard of, which learns of it. Method: term
// 2 at one address, then nobody, then term 1 at the other.
TEST(ClientServerTest, HangsUpOnEarlierCoordinators) {
  const auto first = Listener::Create();
  const auto second = Listener::Create();
  ASSERT_TRUE(first.ok() && second.ok());
  auto later = std::make_unique<RunningServer>(*first, true, "right", 2);
  auto client = MakeClient(first->address(), "right");
  ASSERT_TRUE(client.ok()) << client.status();
  auto welcome = (*client)->Receive(kLimit);
  ASSERT_TRUE(welcome.ok() && welcome->has_value());
  EXPECT_EQ((*welcome)->term(), 2);
  EXPECT_FALSE((*client)->SetAddress("nowhere").ok());
  ASSERT_TRUE(
      (*client)->SetAddress(first->address() + "," + second->address()).ok());
  RunningServer earlier(*second, true, "right", 1);
  later = nullptr;
  auto message = (*client)->Receive(kLimit);
  EXPECT_TRUE(absl::IsUnavailable(message.status())) << message.status();
  EXPECT_GT(earlier.num_hellos, 0);
  EXPECT_EQ(earlier.latest_term, 2);
}

}  // namespace
}  // namespace millrace

#include "worker/doctor/examination.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ExaminedJson = nlohmann::json;

// Agents that are each a host of their own and answer as real ones do. No
// network: `blocked` lists who does not reach whom.
class ExaminedHosts {
 public:
  explicit ExaminedHosts(int32_t num_agents)
      : num_agents_(num_agents),
        examination_({.num_agents = num_agents,
                      .hosts = {"node1", "node2"},
                      .join_timeout = absl::Seconds(60)},
                     now_) {}

  void Join(int32_t agent_idx) {
    EXPECT_TRUE(
        examination_
            .OnHello(agent_idx, 0, absl::StrCat("node", agent_idx + 1), now_)
            .ok());
  }

  // Answers whatever is asked, until nothing is.
  void AnswerAll() {
    for (std::vector<ExamineOrder> orders = examination_.TakeOrders();
         !orders.empty(); orders = examination_.TakeOrders()) {
      std::set<int32_t> busy;
      for (const ExamineOrder& order : orders) {
        const ExaminedJson json = ExaminedJson::parse(order.json);
        if (json["do"] == "measure") {
          EXPECT_TRUE(busy.insert(order.agent_idx).second);
          EXPECT_TRUE(busy.insert(json["agent"].get<int32_t>()).second);
        }
        if (silent_.contains(order.agent_idx)) continue;
        examination_.OnAnswer(order.agent_idx, order.number,
                              Answer(order.agent_idx, json).dump(), now_);
      }
    }
  }

  void Wait(absl::Duration duration) {
    now_ += duration;
    examination_.OnTick(now_);
  }

  ExaminedJson Answer(int32_t agent_idx, const ExaminedJson& order) const {
    if (order["do"] == "look") {
      HostFacts facts;
      facts.host = absl::StrCat("node", agent_idx + 1);
      facts.host_identity = facts.host;
      facts.addresses = {
          {.interface = "eth0", .address = absl::StrCat("10.0.0.", agent_idx)},
          {.interface = "eth0", .address = absl::StrCat("fd00::", agent_idx)}};
      facts.port = 4000 + agent_idx;
      return ToJson(facts);
    }
    if (order["do"] == "measure") {
      RailFacts rail = {.to = order["agent"], .round_trip_s = 1e-4};
      rail.there_bytes_s = rail.back_bytes_s = 1e9;
      return {{"rails", {ToJson(rail)}}};
    }
    ExaminedJson reached = ExaminedJson::array();
    for (const ExaminedJson& peer : order["peers"]) {
      const int32_t to = peer["agent"];
      if (to == agent_idx) continue;
      for (const ExaminedJson& address : peer["addresses"]) {
        ReachedAddress way = {.to = to,
                              .interface = address["interface"],
                              .address = address["address"],
                              .own_interface = "eth0"};
        if (blocked_.contains({agent_idx, to})) way.error = "no answer in 3s";
        reached.push_back(ToJson(way));
      }
    }
    return {{"reached", reached}};
  }

  const int32_t num_agents_;
  absl::Time now_ = absl::UnixEpoch();
  Examination examination_;
  std::set<std::pair<int32_t, int32_t>> blocked_;
  std::set<int32_t> silent_;
};

// Goal: an examination of healthy hosts measures every pair once. Method: hosts
// in one process, an even and an odd number of them, and one alone.
TEST(ExaminationTest, MeasuresEveryPairOnce) {
  for (const int32_t num_agents : {1, 2, 5, 64}) {
    ExaminedHosts hosts(num_agents);
    for (int32_t i = 0; i < num_agents; ++i) hosts.Join(i);
    hosts.AnswerAll();
    ASSERT_TRUE(hosts.examination_.is_done());
    const ExaminationResult& result = hosts.examination_.result();
    EXPECT_EQ(result.hosts.size(), static_cast<size_t>(num_agents));
    EXPECT_TRUE(result.failures.empty());
    std::set<std::pair<int32_t, int32_t>> pairs;
    for (const RailFacts& rail : result.rails) {
      EXPECT_TRUE(pairs.insert(std::minmax(rail.from, rail.to)).second);
    }
    EXPECT_EQ(pairs.size(), num_agents * (num_agents - 1) / 2u);
  }
}

// Goal: where only one end may connect, that end measures; where none may,
// nobody does, and the examination ends all the same.
TEST(ExaminationTest, MeasuresFromTheEndThatReachesTheOther) {
  ExaminedHosts hosts(3);
  hosts.blocked_ = {{0, 1}, {0, 2}, {2, 0}};
  for (int32_t i = 0; i < 3; ++i) hosts.Join(i);
  hosts.AnswerAll();
  ASSERT_TRUE(hosts.examination_.is_done());
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (const RailFacts& rail : hosts.examination_.result().rails) {
    pairs.insert({rail.from, rail.to});
  }
  EXPECT_EQ(pairs, (std::set<std::pair<int32_t, int32_t>>{{1, 0}, {1, 2}}));
}

// Goal: agents that do not come, do not answer or die are named, and the rest
// is examined.
TEST(ExaminationTest, GoesOnWithoutWhoIsAway) {
  ExaminedHosts hosts(5);
  for (const int32_t i : {0, 2, 3, 4}) hosts.Join(i);
  hosts.AnswerAll();
  EXPECT_FALSE(hosts.examination_.is_done());
  hosts.silent_ = {2};
  hosts.Wait(absl::Seconds(61));
  hosts.AnswerAll();
  hosts.examination_.OnGone(2, hosts.now_);
  hosts.Wait(absl::Seconds(6));
  hosts.silent_.insert(3);
  hosts.AnswerAll();
  for (int i = 0; i < 5 && !hosts.examination_.is_done(); ++i) {
    hosts.Wait(absl::Minutes(2));
    hosts.AnswerAll();
  }
  ASSERT_TRUE(hosts.examination_.is_done());
  const ExaminationResult& result = hosts.examination_.result();
  ASSERT_EQ(result.failures.size(), 3u);
  EXPECT_EQ(result.failures[0].host, "node2");
  EXPECT_TRUE(absl::StrContains(result.failures[0].text, "did not come"));
  EXPECT_EQ(result.failures[1].host, "node3");
  EXPECT_TRUE(absl::StrContains(result.failures[1].text, "left"));
  EXPECT_EQ(result.failures[2].host, "node4");
  EXPECT_TRUE(absl::StrContains(result.failures[2].text, "did not answer"));
}

// Goal: a lost connection costs nothing. Method: the agent says hello again and
// is asked again; the answer to the first asking counts once.
TEST(ExaminationTest, AsksAgainAfterALostConnection) {
  ExaminedHosts hosts(2);
  hosts.Join(0);
  hosts.Join(1);
  const std::vector<ExamineOrder> first = hosts.examination_.TakeOrders();
  ASSERT_EQ(first.size(), 2u);
  hosts.examination_.OnGone(1, hosts.now_);
  hosts.Wait(absl::Seconds(2));
  hosts.Join(1);
  const std::vector<ExamineOrder> again = hosts.examination_.TakeOrders();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].number, first[1].number);
  hosts.Wait(absl::Seconds(10));
  EXPECT_TRUE(hosts.examination_.result().failures.empty());
}

// Goal: agents without numbers get them, and one too many is refused.
TEST(ExaminationTest, NumbersWhoComesByItself) {
  ExaminedHosts hosts(3);
  hosts.Join(0);
  Examination& examination = hosts.examination_;
  EXPECT_EQ(*examination.OnHello(-1, 77, "a", hosts.now_), 1);
  EXPECT_EQ(*examination.OnHello(-1, 77, "a", hosts.now_), 1);
  EXPECT_EQ(*examination.OnHello(-1, 78, "b", hosts.now_), 2);
  EXPECT_FALSE(examination.OnHello(-1, 79, "c", hosts.now_).ok());
  EXPECT_FALSE(examination.OnHello(3, 0, "d", hosts.now_).ok());
}

// Goal: what is no answer leaves its agent out, and nothing else.
TEST(ExaminationTest, DamagedAnswersAreRefused) {
  for (const char* text :
       {"", "[]", "{\"gpus\": 3}", "{\"cores\": \"many\"}"}) {
    ExaminedHosts hosts(1);
    hosts.Join(0);
    const std::vector<ExamineOrder> orders = hosts.examination_.TakeOrders();
    ASSERT_EQ(orders.size(), 1u);
    hosts.examination_.OnAnswer(0, orders[0].number, text, hosts.now_);
    EXPECT_TRUE(hosts.examination_.is_done());
    EXPECT_EQ(hosts.examination_.result().failures.size(), 1u) << text;
  }
}

}  // namespace
}  // namespace millrace

#include "worker/doctor/examinee.h"

#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "coordinator/protocol/build_id.h"
#include "coordinator/protocol/client.h"
#include "worker/agent/network.h"
#include "worker/doctor/host_look.h"
#include "worker/doctor/pair_probe.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// The text or number of an order's key, which another build may not have sent.
std::string TextOf(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>()
                                                   : "";
}

int32_t NumberOf(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer()
             ? found->get<int32_t>()
             : 0;
}

Json ListOf(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_array() ? *found : Json::array();
}

class Examinee {
 public:
  explicit Examinee(const ExamineeOptions& options)
      : options_(options), instance_((uint64_t{device_()} << 32) | device_()) {}

  absl::StatusOr<int> Run() {
    ASSIGN_OR_RETURN(
        client_, Client::Create({.address = options_.address,
                                 .secret = options_.secret,
                                 .make_hello = [this] { return Hello(); }}));
    while (true) {
      std::optional<protocol::FromCoordinator> message;
      ASSIGN_OR_RETURN(message, client_->Receive(absl::Seconds(1)));
      if (!message.has_value()) continue;
      if (message->has_shutdown()) {
        if (!message->shutdown().message().empty()) {
          std::cerr << "millrace: " << message->shutdown().message()
                    << std::endl;
        }
        return message->shutdown().exit_code();
      }
      if (message->has_welcome()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "a job trains at ", client_->address(),
            "; millrace doctor examines hosts before a job: start it at "
            "another port"));
      }
      if (message->has_examine()) {
        const protocol::ExamineOrder& order = message->examine();
        // Asked again after a lost connection.
        if (order.number() != last_number_) {
          last_answer_ = JsonText(Obey(order.json()));
          last_number_ = order.number();
        }
        protocol::ToCoordinator answer;
        answer.mutable_examined()->set_number(order.number());
        answer.mutable_examined()->set_json(last_answer_);
        client_->Send(std::move(answer));
      }
    }
  }

 private:
  // On the client's thread; reads nothing that changes.
  protocol::Hello Hello() const {
    protocol::Hello hello;
    protocol::AgentHello* agent = hello.mutable_agent();
    agent->set_agent_idx(options_.agent_idx);
    agent->set_host(options_.host);
    agent->set_build_id(BuildId());
    agent->set_to_examine(true);
    if (options_.agent_idx < 0) agent->set_instance(instance_);
    return hello;
  }

  Json Obey(const std::string& text) {
    const absl::StatusOr<Json> order = ParseJson(text);
    if (!order.ok() || !order->is_object()) return Json::object();
    const std::string what = TextOf(*order, "do");
    if (what == "look") return Look(*order);
    if (what == "reach") return ReachPeers(*order);
    if (what == "measure") return MeasurePeer(*order);
    return Json::object();
  }

  Json Look(const Json& order) {
    agent_idx_ = NumberOf(order, "agent");
    HostFacts facts = LookAtHost(order, options_.share, options_.own_copy);
    facts.agent_idx = agent_idx_;
    facts.mpi_library = options_.mpi_library;
    addresses_ = facts.addresses;
    std::vector<std::string> listening;
    for (const HostAddress& address : addresses_) {
      listening.push_back(address.address);
    }
    if (!listening.empty()) {
      absl::StatusOr<std::unique_ptr<PairServer>> server =
          PairServer::Create(listening, options_.secret);
      if (server.ok()) {
        server_ = *std::move(server);
        server_->set_agent_idx(agent_idx_);
        facts.port = server_->port();
      } else {
        facts.failures.push_back(std::string(server.status().message()));
      }
    }
    return ToJson(facts);
  }

  Json ReachPeers(const Json& order) const {
    std::vector<PairTarget> targets;
    for (const Json& peer : ListOf(order, "peers")) {
      if (!peer.is_object() || NumberOf(peer, "agent") == agent_idx_) continue;
      for (const Json& address : ListOf(peer, "addresses")) {
        targets.push_back(
            {.agent_idx = NumberOf(peer, "agent"),
             .port = NumberOf(peer, "port"),
             .address = {.interface = TextOf(address, "interface"),
                         .address = TextOf(address, "address")}});
      }
    }
    Json reached = Json::array();
    for (const ReachedAddress& way :
         ReachAll(targets, options_.secret, addresses_)) {
      reached.push_back(ToJson(way));
    }
    return {{"reached", std::move(reached)}};
  }

  Json MeasurePeer(const Json& order) const {
    Json rails = Json::array();
    for (const Json& rail : ListOf(order, "rails")) {
      RailFacts facts =
          MeasureRail({.agent_idx = NumberOf(order, "agent"),
                       .port = NumberOf(order, "port"),
                       .address = {.interface = TextOf(rail, "interface"),
                                   .address = TextOf(rail, "address")}},
                      options_.secret);
      facts.own_interface = TextOf(rail, "own_interface");
      rails.push_back(ToJson(facts));
    }
    return {{"rails", std::move(rails)}};
  }

  const ExamineeOptions& options_;
  std::random_device device_;
  const uint64_t instance_;
  int32_t agent_idx_ = 0;
  std::vector<HostAddress> addresses_;
  std::unique_ptr<PairServer> server_;
  int32_t last_number_ = 0;
  std::string last_answer_;
  std::unique_ptr<Client> client_;  // Last: its thread uses the others.
};

}  // namespace

absl::StatusOr<int> RunExaminee(const ExamineeOptions& options) {
  Examinee examinee(options);
  return examinee.Run();
}

}  // namespace millrace

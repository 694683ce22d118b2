// Checks what the hosts of a job share and must agree on: folders, the program,
// the data. Part of JobRunner (job_runner.h).

#include <algorithm>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/units.h"
#include "coordinator/job_runner.h"
#include "coordinator/protocol/build_id.h"
#include "planner/job/object_path.h"

namespace millrace {
namespace {

// "node2, agent 1".
std::string HostText(const protocol::AgentHello& agent) {
  return absl::StrCat(agent.host(), ", agent ", agent.agent_idx());
}

std::string BuildText(const std::string& build_id) {
  return build_id.empty() ? "an unknown build"
                          : absl::StrCat("build ", build_id.substr(0, 12));
}

std::string DataText(const protocol::DataFacts& data) {
  return absl::StrCat(FormatCount(static_cast<double>(data.num_tokens())),
                      " tokens in ",
                      FormatCount(static_cast<double>(data.num_documents())),
                      " documents, fingerprint ",
                      absl::Hex(data.fingerprint(), absl::kZeroPad16));
}

}  // namespace

std::string JobRunner::AddressOfHost(int32_t agent_idx) const {
  // A subnet is of one family, whatever way an agent came.
  if (!job_.network.subnet.empty()) return AddressSeen(agent_idx);
  std::map<int32_t, HostAddresses> hosts;
  for (const auto& [other_idx, route] : agent_routes_) {
    const protocol::AgentHello& agent = agents_.at(other_idx);
    hosts[other_idx] = {
        .seen = AddressSeen(other_idx),
        .usable = {agent.addresses().begin(), agent.addresses().end()}};
  }
  return AddressesOfOneFamily(hosts, workers_family_)[agent_idx];
}

std::string JobRunner::AddressSeen(int32_t agent_idx) const {
  const auto own = agent_routes_.find(agent_idx);
  if (own == agent_routes_.end()) return "";
  if (own->second.here != own->second.there) return own->second.there;
  // An agent on this host may have come by an address that leads nowhere else.
  // The others came by addresses that work.
  std::map<std::string, int> votes;
  for (const auto& [other_idx, route] : agent_routes_) {
    if (route.here != route.there) ++votes[route.here];
  }
  const auto most = std::max_element(
      votes.begin(), votes.end(),
      [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == votes.end() ? own->second.here : most->first;
}

void JobRunner::WriteProbes() const {
  // A folder that cannot be written is found by who needs it.
  WriteFileAtomically(options_.run_directory + "/" + probe_, probe_)
      .IgnoreError();
  const std::string& checkpoints = job_.checkpoint.directory;
  if (checkpoints.empty() || IsObjectPath(checkpoints) ||
      options_.num_agents == 1) {
    return;
  }
  MakeDirectories(checkpoints).IgnoreError();
  WriteFileAtomically(checkpoints + "/" + probe_, probe_).IgnoreError();
}

void JobRunner::RemoveProbes() const {
  std::error_code gone_already;
  for (const std::string& folder :
       {options_.run_directory, job_.checkpoint.directory}) {
    if (folder.empty() || IsObjectPath(folder)) continue;
    std::filesystem::remove(folder + "/" + probe_, gone_already);
  }
}

void JobRunner::KeepProbesWhileNeeded() {
  bool are_needed = false;
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    are_needed |= !state_->TakesPart(i);
  }
  folder_work_->Add([this, are_needed]() -> SideWork::Work {
    return [this, are_needed]() -> SideWork::Then {
      if (are_needed) {
        WriteProbes();
      } else {
        RemoveProbes();
      }
      return [] {};
    };
  });
}

absl::Status JobRunner::CheckOneAddressFamily(bool all_ready) const {
  // A subnet is of one family, whatever way an agent came.
  if (!job_.network.subnet.empty()) return absl::OkStatus();
  std::map<AddressFamily, std::string> host_by_family;
  for (const auto& [agent_idx, agent] : agents_) {
    if (!state_->TakesPart(agent_idx) &&
        !(all_ready && state_->IsReady(agent_idx))) {
      continue;
    }
    const std::string address = AddressOfHost(agent_idx);
    host_by_family.try_emplace(FamilyOf(address),
                               absl::StrCat(agent.host(), " by ", address));
  }
  if (host_by_family.size() < 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the coordinator sees ", host_by_family[AddressFamily::kIpv4], " and ",
      host_by_family[AddressFamily::kIpv6],
      ", and IPv4 and IPv6 do not mix between workers; set network.subnet to a "
      "network of all hosts, or join all agents by one kind of address"));
}

std::string JobRunner::StrangerRefusal(const std::string& host,
                                       const std::string& run_directory) const {
  if (run_directory == options_.run) return "";
  return absl::StrCat(host, " still runs an earlier job, ", run_directory,
                      ", and the coordinator at its address runs ",
                      options_.run, " now; start the agent again to join that");
}

bool JobRunner::IsConnected(int32_t agent_idx) const {
  const auto session = agent_sessions_.find(agent_idx);
  return session != agent_sessions_.end() && peers_.contains(session->second);
}

absl::StatusOr<int32_t> JobRunner::IndexFor(const protocol::AgentHello& hello) {
  if (hello.has_job()) {
    const std::string refusal =
        StrangerRefusal(hello.host(), hello.run_directory());
    if (!refusal.empty()) return absl::FailedPreconditionError(refusal);
  }
  const bool numbered_here = hello.instance() != 0;
  if (hello.agent_idx() < (numbered_here ? -1 : 0) ||
      hello.agent_idx() >= options_.num_agents) {
    return absl::InvalidArgumentError(
        absl::StrCat("agent ", hello.agent_idx(), " on ", hello.host(),
                     " is none of the job's ", options_.num_agents,
                     " agents; start all of them for the same job"));
  }
  if (!numbered_here) return hello.agent_idx();
  for (const auto& [agent_idx, newcomer] : newcomers_) {
    if (newcomer.instance == hello.instance()) return agent_idx;
  }
  // An agent that was started again on its host, or in the place of a host that
  // the job goes on without.
  const Newcomer newcomer = {hello.instance(), hello.host()};
  if (hello.agent_idx() >= 0) {  // An earlier coordinator process gave it.
    const auto [known, is_new] =
        newcomers_.try_emplace(hello.agent_idx(), newcomer);
    if (is_new) return hello.agent_idx();
    return absl::AlreadyExistsError(absl::StrCat(
        "host ", known->second.host, " has joined as agent ", hello.agent_idx(),
        ", which ", hello.host(), " claims to be; start one agent a host"));
  }
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    const auto known = newcomers_.find(i);
    const bool on_own = i == options_.own_agent &&
                        i < static_cast<int32_t>(options_.hosts.size()) &&
                        options_.hosts[i] == hello.host();
    const bool is_known =
        known != newcomers_.end() && known->second.host == hello.host();
    if (is_known && !IsConnected(i)) {
      known->second = newcomer;
      return i;
    }
    if (on_own || is_known) {
      return absl::AlreadyExistsError(
          absl::StrCat("host ", hello.host(), " has joined already, as agent ",
                       i, "; start one agent a host"));
    }
  }
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    if (i == options_.own_agent) continue;
    // Agent 0 has its number from the beginning, and another one's after it.
    const bool is_free =
        i > 0 && !newcomers_.contains(i) && !agents_.contains(i);
    const bool is_lost = !state_->TakesPart(i) && !IsConnected(i);
    if (!is_free && !is_lost) continue;
    newcomers_[i] = newcomer;
    return i;
  }
  return absl::AlreadyExistsError(
      absl::StrCat("all ", options_.num_agents,
                   " agents of the job have come; to train over more hosts, "
                   "start it with a higher --agents"));
}

std::string JobRunner::BuildRefusal(const protocol::AgentHello& hello) const {
  const std::string own = BuildId();  // Agent 0 runs this same program.
  if (hello.build_id() == own) return "";
  return absl::StrCat(HostText(hello), ", runs ", BuildText(hello.build_id()),
                      " of millrace, and agent 0",
                      options_.hosts.empty() ? "" : " on " + options_.hosts[0],
                      " runs ", BuildText(own),
                      "; put the same program on all hosts");
}

std::string JobRunner::DataRefusal(const protocol::AgentHello& hello) const {
  for (const auto& [other_idx, other] : agents_) {
    if (other_idx == hello.agent_idx() || !other.data_ready()) continue;
    const protocol::DataFacts& a = other.data();
    const protocol::DataFacts& b = hello.data();
    if (a.tokenizer() != b.tokenizer()) {
      return absl::StrCat(
          "the hosts have different tokenizers: ", HostText(other), ", has ",
          absl::Hex(a.tokenizer(), absl::kZeroPad16), ", ", HostText(hello),
          ", has ", absl::Hex(b.tokenizer(), absl::kZeroPad16),
          "; give all hosts the same data.tokenizer, and the same text if it "
          "is trained on that");
    }
    if (a.fingerprint() != b.fingerprint() ||
        a.num_tokens() != b.num_tokens() ||
        a.num_documents() != b.num_documents()) {
      return absl::StrCat("the hosts have different data: ", HostText(other),
                          ", has ", DataText(a), "; ", HostText(hello),
                          ", has ", DataText(b),
                          "; give all hosts the same files");
    }
    if (a.evaluation() != b.evaluation()) {
      return absl::StrCat(
          "the hosts have different evaluation sets: ", HostText(other),
          ", and ", HostText(hello), "; give all hosts the same files");
    }
  }
  return "";
}

bool JobRunner::OnAgentData(int32_t agent_idx) {
  const std::string refusal = DataRefusal(agents_[agent_idx]);
  if (refusal.empty()) return true;
  agents_[agent_idx].set_data_ready(false);  // Others are not compared with it.
  OnGaveUp({agent_idx, refusal, /*bad_input=*/true});
  return false;
}

// Data of one host. -----------------------------------------------------------

std::string JobRunner::SourceRefusal() const {
  const std::string& from = job_.data.from;
  std::vector<std::string> hosts;
  for (const auto& [agent_idx, agent] : agents_) {
    if (job_.data.is_on(agent_idx, agent.host())) return "";
    hosts.push_back(agent.host());
  }
  if (static_cast<int32_t>(hosts.size()) < options_.num_agents) return "";
  return absl::StrCat("data.from names ", from, ", and the job's hosts are ",
                      absl::StrJoin(hosts, ", "),
                      "; name one of them, or agent0");
}

void JobRunner::OnDataOffer(int32_t agent_idx) {
  const protocol::AgentHello& source = agents_.at(agent_idx);
  if (!source.has_offer() || !job_.data.is_on(agent_idx, source.host())) return;
  for (const auto& [other_idx, other] : agents_) {
    if (other.data_ready()) continue;
    if (!job_.data.is_on(other_idx, other.host())) SendOffer(other_idx);
  }
}

void JobRunner::SendOffer(int32_t agent_idx) {
  protocol::FromCoordinator message;
  protocol::FetchData* order = message.mutable_fetch_data();
  for (const auto& [other_idx, other] : agents_) {
    if (other_idx == agent_idx || !other.has_offer() || !IsConnected(other_idx))
      continue;
    *order->mutable_offer() = other.offer();
    *order->add_from() = FileHostOf(other_idx);
  }
  if (order->from_size() == 0) return;
  SendToAgent(agent_idx, message);
  fetching_.insert(agent_idx);
}

void JobRunner::PrintFetching() {
  const bool all_came =
      static_cast<int32_t>(agents_.size()) == options_.num_agents;
  if (!all_came || fetching_.empty()) return;
  for (const auto& [agent_idx, source] : agents_) {
    if (!source.has_offer() || !job_.data.is_on(agent_idx, source.host()))
      continue;
    int64_t num_bytes = 0;
    for (const auto* sources :
         {&source.offer().training(), &source.offer().evaluation()}) {
      for (const protocol::DataOffer::Source& offered : *sources) {
        for (const protocol::DataOffer::Prefix& prefix : offered.prefixes()) {
          for (const protocol::DataOffer::File& file : prefix.files()) {
            num_bytes += file.bytes();
          }
        }
      }
    }
    progress_->Line(absl::StrCat(
        "data: ", fetching_.size(),
        fetching_.size() == 1 ? " host fetches " : " hosts fetch ",
        FormatBytes(num_bytes), " from ", source.host(), " (data.from)"));
    fetching_.clear();
    return;
  }
}

}  // namespace millrace

#include "worker/agent/mpi_start.h"

// C alone: the library of the old C++ bindings is written in C++, and built for
// another standard library than the one that a bundle may bring.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// Tags of messages.
constexpr int kNames = 1;
constexpr int kWords = 2;

absl::Status MpiStatus(int code, const char* what) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::InternalError(absl::StrCat(what, ": ", text));
}

// Messages go between agent 0 and each other agent only, unlike those of MPI's
// collectives: hosts that do not reach each other then still get a job's or an
// examination's word about it, instead of waiting for MPI.

// Gives every agent all names, `own` of this one.
absl::Status ExchangeNames(const char (&own)[MPI_MAX_PROCESSOR_NAME],
                           AgentPlace* place) {
  const int size = place->num_agents;
  std::vector<char> names(static_cast<size_t>(size) * sizeof(own));
  const int all = static_cast<int>(names.size());
  const char* what = "exchange of host names";
  absl::Status status;
  if (place->agent_idx != 0) {
    status = MpiStatus(
        MPI_Send(own, sizeof(own), MPI_CHAR, 0, kNames, MPI_COMM_WORLD), what);
    if (!status.ok()) return status;
    status = MpiStatus(MPI_Recv(names.data(), all, MPI_CHAR, 0, kNames,
                                MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                       what);
  } else {
    std::copy(std::begin(own), std::end(own), names.begin());
    for (int i = 1; i < size && status.ok(); ++i) {
      status = MpiStatus(
          MPI_Recv(names.data() + i * sizeof(own), sizeof(own), MPI_CHAR, i,
                   kNames, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
          what);
    }
    for (int i = 1; i < size && status.ok(); ++i) {
      status = MpiStatus(
          MPI_Send(names.data(), all, MPI_CHAR, i, kNames, MPI_COMM_WORLD),
          what);
    }
  }
  for (int i = 0; i < size && status.ok(); ++i) {
    place->hosts.emplace_back(names.data() + i * sizeof(own));
  }
  return status;
}

// Agent 0's goes to all others.
absl::Status SpreadAnnouncement(int rank, int size, std::string* text) {
  const char* what = "announcement of agent 0";
  if (rank == 0) {
    for (int i = 1; i < size; ++i) {
      const absl::Status status =
          MpiStatus(MPI_Send(text->data(), static_cast<int>(text->size()),
                             MPI_CHAR, i, kWords, MPI_COMM_WORLD),
                    what);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  MPI_Status found;
  absl::Status status =
      MpiStatus(MPI_Probe(0, kWords, MPI_COMM_WORLD, &found), what);
  if (!status.ok()) return status;
  int bytes = 0;
  MPI_Get_count(&found, MPI_CHAR, &bytes);
  text->resize(static_cast<size_t>(bytes));
  return MpiStatus(MPI_Recv(text->data(), bytes, MPI_CHAR, 0, kWords,
                            MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                   what);
}

absl::StatusOr<AgentStart> Exchange(
    const std::function<std::string(const AgentPlace&)>& announce) {
  AgentStart start;
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  start.place.agent_idx = rank;
  start.place.num_agents = size;
  char name[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  MPI_Get_processor_name(name, &length);
  absl::Status status = ExchangeNames(name, &start.place);
  if (!status.ok()) return status;
  if (rank == 0) start.announcement = announce(start.place);
  status = SpreadAnnouncement(rank, size, &start.announcement);
  if (!status.ok()) return status;
  return start;
}

}  // namespace

int32_t AgentPlace::AgentsOnThisHost() const {
  if (hosts.empty()) return agents_on_this_host;
  return static_cast<int32_t>(
      std::count(hosts.begin(), hosts.end(), hosts[agent_idx]));
}

int32_t AgentPlace::IndexOnThisHost() const {
  if (hosts.empty()) return idx_on_this_host;
  return static_cast<int32_t>(
      std::count(hosts.begin(), hosts.begin() + agent_idx, hosts[agent_idx]));
}

bool AgentPlace::SeveralHosts() const {
  if (hosts.empty()) return num_agents > agents_on_this_host;
  return std::any_of(hosts.begin(), hosts.end(), [this](const auto& host) {
    return host != hosts.front();
  });
}

absl::StatusOr<AgentStart> StartUnderMpi(
    const std::function<std::string(const AgentPlace&)>& announce) {
  int provided = 0;
  // Errors return rather than end the process, so that they can be explained.
  absl::Status status = MpiStatus(
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided),
      "MPI_Init_thread");
  if (!status.ok()) return status;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  absl::StatusOr<AgentStart> start = Exchange(announce);
  MPI_Finalize();
  return start;
}

std::string MpiLibrary() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "";
  const std::string whole(text);
  return whole.substr(0, whole.find_first_of(",\n"));
}

}  // namespace millrace

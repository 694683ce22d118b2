#include "worker/agent/mpi_start.h"

// C alone: the library of the old C++ bindings is written in C++, and built for
// another standard library than the one that a bundle may bring.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

absl::Status MpiStatus(int code, const char* what) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::InternalError(absl::StrCat(what, ": ", text));
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
  std::vector<char> names(static_cast<size_t>(size) * sizeof(name));
  absl::Status status =
      MpiStatus(MPI_Allgather(name, sizeof(name), MPI_CHAR, names.data(),
                              sizeof(name), MPI_CHAR, MPI_COMM_WORLD),
                "exchange of host names");
  if (!status.ok()) return status;
  for (int i = 0; i < size; ++i) {
    start.place.hosts.emplace_back(names.data() + i * sizeof(name));
  }
  if (rank == 0) start.announcement = announce(start.place);
  int bytes = static_cast<int>(start.announcement.size());
  status = MpiStatus(MPI_Bcast(&bytes, 1, MPI_INT, 0, MPI_COMM_WORLD),
                     "announcement of agent 0");
  if (!status.ok()) return status;
  start.announcement.resize(static_cast<size_t>(bytes));
  status = MpiStatus(
      MPI_Bcast(start.announcement.data(), bytes, MPI_CHAR, 0, MPI_COMM_WORLD),
      "announcement of agent 0");
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

}  // namespace millrace

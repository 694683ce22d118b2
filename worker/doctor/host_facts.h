// Facts that one host gives of itself: versions, limits, space, devices. Every
// fact travels as JSON, so hosts with different builds understand each other: a
// fact that a build does not know stays at its default.

#ifndef MILLRACE_WORKER_DOCTOR_HOST_FACTS_H_
#define MILLRACE_WORKER_DOCTOR_HOST_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "fault/gpu_sign.h"
#include "worker/agent/network.h"

namespace millrace {

// A limit that is not one.
inline constexpr int64_t kUnlimited = INT64_MAX;

// Purposes of folders.
inline constexpr char kSharedMemory[] = "shared memory";
inline constexpr char kRunFolder[] = "run folder";
inline constexpr char kCheckpointFolder[] = "checkpoint folder";
inline constexpr char kTemporaryFolder[] = "temporary folder";

// A folder and the room on its disk.
struct FolderFacts {
  std::string purpose;  // One of the above.
  std::string path;
  std::string error;  // Empty if files can be written there.
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;  // 0: the file system does not say.
  // This host sees what agent 0's host wrote there, under the same path. Only
  // folders that agent 0 named are asked for.
  bool probed = false;
  bool sees_probe = false;
};

// The object by which a bucket is measured: half a piece of an upload
// (docs/checkpoint.md), large enough to tell rates.
inline constexpr int64_t kProbedObjectBytes = int64_t{8} << 20;

// A bucket of checkpoints as this host uses it (bucket_look.h).
struct BucketFacts {
  std::string path;          // s3://BUCKET/PREFIX
  std::string error;         // Why it cannot be used, and what to do; or empty.
  double request_s = 0;      // Until a small request is answered.
  double write_bytes_s = 0;  // Of one object over one connection, and back.
  double read_bytes_s = 0;
};

// Numbers that the driver does not tell are -1.
struct GpuFacts : GpuSign {
  std::string name;
  int64_t memory_bytes = -1;
  int64_t used_bytes = -1;
  int64_t temperature_c = -1;
  int64_t slowdown_c = -1;  // Where it begins to slow down.
  int64_t power_limit_mw = -1;
  int64_t default_power_limit_mw = -1;
  int64_t max_clock_mhz = -1;  // The highest that the multiprocessors may have.
  int64_t max_memory_clock_mhz = -1;
  int64_t ecc_enabled = -1;  // 0 or 1.
  int64_t max_pcie_width = -1;
  int64_t compute_mode = -1;  // 2: nobody may compute on it.
  int64_t mig = -1;           // 0 or 1.
};

struct HostFacts {
  int32_t agent_idx = 0;
  std::string host;
  // Equal for the processes of one host, whatever its name.
  std::string host_identity;

  std::string version;  // Millrace's.
  std::string build_id;
  std::string kernel;
  std::string c_library;
  std::string mpi_library;
  std::string driver;        // NVIDIA's. Empty: none.
  std::string driver_cuda;   // The CUDA that the driver knows.
  std::string runtime_cuda;  // The CUDA that libmillrace_cuda.so has.
  std::string nccl;

  // Variables of NCCL and Gloo, InfiniBand and RoCE ports with their rates, and
  // the packet sizes (MTU) of the interfaces that a job may use.
  std::string network_variables;
  std::string rdma_ports;
  std::string packet_sizes;

  std::string processor;
  int64_t cores = 0;
  int64_t memory_bytes = 0;
  int64_t available_memory_bytes = 0;

  int64_t open_files = 0;
  int64_t locked_memory_bytes = 0;
  int64_t processes = 0;

  std::vector<FolderFacts> folders;
  std::vector<BucketFacts> buckets;
  std::vector<GpuFacts> gpus;
  std::string gpu_error;  // Why GPUs cannot be examined or used.

  // With a job: devices that it gets here, its files, and how much a job of
  // these hosts may need.
  int64_t devices = 0;
  int64_t data_files = -1;  // -1: not looked at.
  int64_t data_bytes = 0;
  std::string data_names;  // A hash over names and sizes.

  // Sentences for people: a job would fail here, or be slower than it could.
  std::vector<std::string> failures;
  std::vector<std::string> warnings;

  // Where the others reach this host, and the port of its pair probe.
  std::vector<HostAddress> addresses;
  int32_t port = 0;
};

nlohmann::json ToJson(const HostFacts& facts);
// Missing values stay at their defaults. InvalidArgument if a value is of
// another kind.
absl::StatusOr<HostFacts> HostFactsFromJson(const nlohmann::json& json);

// Reads versions, processor, memory, limits and the network's settings of this
// process's host.
HostFacts ReadHostFacts();

// "eth0 1500, eth1 9000" for the interfaces of these addresses.
std::string PacketSizes(const std::vector<HostAddress>& addresses);

// The room on the disk of `path`, or of its nearest parent that is there, and
// whether this process may write.
FolderFacts ReadFolder(const std::string& purpose, const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_HOST_FACTS_H_

#include "worker/doctor/host_facts.h"

#include <gnu/libc-version.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/host_memory.h"
#include "coordinator/protocol/build_id.h"
#include "worker/doctor/json_fields.h"
#include "worker/measure/machine.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// The one list of each struct's fields, for both directions.
template <typename Facts, typename Visitor>
void VisitFolder(Facts& f, Visitor&& visit) {
  visit("purpose", f.purpose);
  visit("path", f.path);
  visit("error", f.error);
  visit("free_bytes", f.free_bytes);
  visit("total_bytes", f.total_bytes);
  visit("probed", f.probed);
  visit("sees_probe", f.sees_probe);
}

template <typename Facts, typename Visitor>
void VisitBucket(Facts& f, Visitor&& visit) {
  visit("path", f.path);
  visit("error", f.error);
  visit("request_s", f.request_s);
  visit("write_bytes_s", f.write_bytes_s);
  visit("read_bytes_s", f.read_bytes_s);
}

template <typename Facts, typename Visitor>
void VisitGpu(Facts& f, Visitor&& visit) {
  visit("name", f.name);
  visit("memory_bytes", f.memory_bytes);
  visit("used_bytes", f.used_bytes);
  visit("temperature_c", f.temperature_c);
  visit("slowdown_c", f.slowdown_c);
  visit("power_limit_mw", f.power_limit_mw);
  visit("default_power_limit_mw", f.default_power_limit_mw);
  visit("clock_mhz", f.clock_mhz);
  visit("max_clock_mhz", f.max_clock_mhz);
  visit("max_memory_clock_mhz", f.max_memory_clock_mhz);
  visit("throttle_reasons", f.throttle_reasons);
  visit("ecc_enabled", f.ecc_enabled);
  visit("corrected_errors", f.corrected_errors);
  visit("uncorrected_errors", f.uncorrected_errors);
  visit("remap_pending", f.remap_pending);
  visit("remap_failed", f.remap_failed);
  visit("nvlinks", f.nvlinks);
  visit("active_nvlinks", f.active_nvlinks);
  visit("nvlink_errors", f.nvlink_errors);
  visit("pcie_width", f.pcie_width);
  visit("max_pcie_width", f.max_pcie_width);
  visit("compute_mode", f.compute_mode);
  visit("mig", f.mig);
}

template <typename Facts, typename Visitor>
void VisitAddress(Facts& f, Visitor&& visit) {
  visit("interface", f.interface);
  visit("address", f.address);
  visit("is_ipv6", f.is_ipv6);
  visit("is_loopback", f.is_loopback);
}

template <typename Facts, typename Visitor>
void VisitHost(Facts& f, Visitor&& visit) {
  visit("agent", f.agent_idx);
  visit("host", f.host);
  visit("host_identity", f.host_identity);
  visit("version", f.version);
  visit("build_id", f.build_id);
  visit("kernel", f.kernel);
  visit("c_library", f.c_library);
  visit("mpi_library", f.mpi_library);
  visit("driver", f.driver);
  visit("driver_cuda", f.driver_cuda);
  visit("runtime_cuda", f.runtime_cuda);
  visit("nccl", f.nccl);
  visit("network_variables", f.network_variables);
  visit("rdma_ports", f.rdma_ports);
  visit("packet_sizes", f.packet_sizes);
  visit("processor", f.processor);
  visit("cores", f.cores);
  visit("memory_bytes", f.memory_bytes);
  visit("available_memory_bytes", f.available_memory_bytes);
  visit("open_files", f.open_files);
  visit("locked_memory_bytes", f.locked_memory_bytes);
  visit("processes", f.processes);
  visit("gpu_error", f.gpu_error);
  visit("devices", f.devices);
  visit("data_files", f.data_files);
  visit("data_bytes", f.data_bytes);
  visit("data_names", f.data_names);
  visit("failures", f.failures);
  visit("warnings", f.warnings);
  visit("port", f.port);
}

// More cannot be of one host.
constexpr int64_t kMostDevices = 1'000'000;
constexpr size_t kMostAddresses = 256;

int64_t SoftLimit(__rlimit_resource resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) return kUnlimited;
  if (limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return static_cast<int64_t>(
      std::min<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(kUnlimited)));
}

// Containers of one machine are hosts of their own where their networks are.
std::string HostIdentity(const std::string& host) {
  const absl::StatusOr<std::string> boot =
      ReadFile("/proc/sys/kernel/random/boot_id");
  struct stat network = {};
  const bool known = stat("/proc/self/ns/net", &network) == 0;
  return absl::StrCat(host, " ",
                      boot.ok() ? absl::StripAsciiWhitespace(*boot) : "", " ",
                      known ? static_cast<uint64_t>(network.st_ino) : 0);
}

std::string NetworkVariables() {
  std::vector<std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view variable = *entry;
    if (absl::StartsWith(variable, "NCCL_") ||
        absl::StartsWith(variable, "GLOO_")) {
      found.emplace_back(variable);
    }
  }
  std::sort(found.begin(), found.end());
  return absl::StrJoin(found, " ");
}

std::string FirstLine(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return "";
  return std::string(
      absl::StripAsciiWhitespace(text->substr(0, text->find('\n'))));
}

// "8 x ACTIVE 400 Gb/sec (4X NDR), 1 x DOWN 10 Gb/sec (4X SDR)".
std::string RdmaPorts() {
  namespace fs = std::filesystem;
  std::map<std::string, int> ports;
  std::error_code error;
  for (const auto& device :
       fs::directory_iterator("/sys/class/infiniband", error)) {
    for (const auto& port :
         fs::directory_iterator(device.path() / "ports", error)) {
      // The state is "4: ACTIVE".
      const std::string state = FirstLine((port.path() / "state").string());
      const size_t colon = state.find(": ");
      ++ports[absl::StrCat(
          colon == std::string::npos ? state : state.substr(colon + 2), " ",
          FirstLine((port.path() / "rate").string()))];
    }
  }
  return absl::StrJoin(ports, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " x ", entry.first);
  });
}

}  // namespace

std::string PacketSizes(const std::vector<HostAddress>& addresses) {
  std::map<std::string, int> sizes;
  // Not from /sys, which in a container may be another host's.
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  for (const HostAddress& address : addresses) {
    ifreq request = {};
    address.interface.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
    if (ioctl(fd, SIOCGIFMTU, &request) == 0) {
      sizes[address.interface] = request.ifr_mtu;
    }
  }
  close(fd);
  return absl::StrJoin(sizes, ", ", absl::PairFormatter(" "));
}

Json ToJson(const HostFacts& facts) {
  Json json = Json::object();
  VisitHost(facts, FieldWriter{json});
  json["folders"] =
      WriteList(facts.folders,
                [](const auto& item, FieldWriter w) { VisitFolder(item, w); });
  json["buckets"] =
      WriteList(facts.buckets,
                [](const auto& item, FieldWriter w) { VisitBucket(item, w); });
  json["gpus"] = WriteList(
      facts.gpus, [](const auto& item, FieldWriter w) { VisitGpu(item, w); });
  json["addresses"] =
      WriteList(facts.addresses,
                [](const auto& item, FieldWriter w) { VisitAddress(item, w); });
  return json;
}

absl::StatusOr<HostFacts> HostFactsFromJson(const Json& json) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError("facts of a host are no JSON object");
  }
  HostFacts facts;
  std::string wrong_key;
  VisitHost(facts, FieldReader{json, wrong_key});
  const auto list = [&](const char* key) {
    const auto found = json.find(key);
    return found == json.end() ? Json::array() : *found;
  };
  ReadList(list("folders"), "folders", &facts.folders, &wrong_key,
           [](auto& item, FieldReader r) { VisitFolder(item, r); });
  ReadList(list("buckets"), "buckets", &facts.buckets, &wrong_key,
           [](auto& item, FieldReader r) { VisitBucket(item, r); });
  ReadList(list("gpus"), "gpus", &facts.gpus, &wrong_key,
           [](auto& item, FieldReader r) { VisitGpu(item, r); });
  ReadList(list("addresses"), "addresses", &facts.addresses, &wrong_key,
           [](auto& item, FieldReader r) { VisitAddress(item, r); });
  if (facts.devices < 0 || facts.devices > kMostDevices) wrong_key = "devices";
  if (facts.port < 0 || facts.port > 65535) wrong_key = "port";
  if (facts.addresses.size() > kMostAddresses) wrong_key = "addresses";
  if (wrong_key.empty()) return facts;
  return absl::InvalidArgumentError(
      absl::StrCat("facts of a host: the value of ", wrong_key,
                   " is of the wrong kind or size"));
}

HostFacts ReadHostFacts() {
  HostFacts facts;
  char name[256] = "localhost";
  gethostname(name, sizeof(name) - 1);
  facts.host = name;
  facts.host_identity = HostIdentity(facts.host);
  facts.version = MILLRACE_VERSION;
  facts.build_id = BuildId();
  utsname system = {};
  if (uname(&system) == 0) facts.kernel = system.release;
  facts.network_variables = NetworkVariables();
  facts.rdma_ports = RdmaPorts();
  facts.c_library = absl::StrCat("glibc ", gnu_get_libc_version());
  if (const absl::StatusOr<Machine> machine = DescribeMachine(); machine.ok()) {
    facts.processor = machine->processor;
    facts.cores = machine->num_cores;
    facts.memory_bytes = machine->memory_bytes;
  } else {
    facts.failures.push_back(std::string(machine.status().message()));
  }
  facts.available_memory_bytes =
      ReadHostMemory().value_or(HostMemory{}).available;
  facts.open_files = SoftLimit(RLIMIT_NOFILE);
  facts.locked_memory_bytes = SoftLimit(RLIMIT_MEMLOCK);
  facts.processes = SoftLimit(RLIMIT_NPROC);
  return facts;
}

FolderFacts ReadFolder(const std::string& purpose, const std::string& path) {
  namespace fs = std::filesystem;
  FolderFacts facts = {.purpose = purpose, .path = path};
  std::error_code error;
  fs::path there = fs::absolute(path, error);
  while (!error && !fs::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  struct statvfs disk = {};
  if (error || statvfs(there.c_str(), &disk) != 0) {
    facts.error = error ? error.message() : strerror(errno);
    return facts;
  }
  facts.path = fs::absolute(path, error).string();
  facts.free_bytes = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  facts.total_bytes = static_cast<int64_t>(disk.f_blocks * disk.f_frsize);
  if (access(there.c_str(), W_OK | X_OK) != 0) {
    facts.error = absl::StrCat("cannot be written: ", strerror(errno));
  } else if (!fs::is_directory(there, error)) {
    facts.error = absl::StrCat(there.string(), " is not a folder");
  }
  return facts;
}

}  // namespace millrace

#include "worker/doctor/findings.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/statistics.h"
#include "base/units.h"
#include "worker/doctor/pair_findings.h"

namespace millrace {
namespace {

// In a job of 8 ranks on CPUs, a worker had 24 files open and the coordinator
// 21. Each further rank adds a socket to each group that it is in, and the
// libraries of GPUs open files of their own.
constexpr int64_t kOpenFilesAlone = 64;
constexpr int64_t kOpenFilesPerDevice = 4;
// Room without which a job fails soon.
constexpr int64_t kLeastFreeBytes = 256 * kMiB;
// NCCL and copy engines pin memory of this order for each peer.
constexpr int64_t kLittleLockedMemory = 64 * kMiB;
constexpr int64_t kLittleSharedMemory = 512 * kMiB;
// Memory of equal hosts differs by what their firmware takes.
constexpr double kMemoryTolerance = 0.1;
constexpr int64_t kNearSlowdown = 5;     // Degrees.
constexpr double kClockTolerance = 0.1;  // Seconds.
constexpr double kUsedGpuShare = 0.05;
// One object each at the same time is a rough measure.
constexpr size_t kLeastComparedBuckets = 3;
constexpr double kSlowBucketShare = 0.5;
constexpr int64_t kComputeProhibited = 2;

std::string LimitText(int64_t value) {
  return value == kUnlimited ? "unlimited" : absl::StrCat(value);
}

std::string LimitBytesText(int64_t value) {
  return value == kUnlimited ? "unlimited" : FormatBytes(value);
}

std::string RateText(double bytes_s) {
  return absl::StrCat(FormatBytes(static_cast<int64_t>(bytes_s)), "/s");
}

class FindingList {
 public:
  explicit FindingList(const ExaminationResult& result) : result_(result) {}

  void Add(Severity severity, const HostFacts& host, std::string text) {
    findings_.push_back(
        {severity, NameOf(result_.hosts, host), std::move(text)});
  }

  std::vector<Finding> Take() {
    std::vector<Finding> all = result_.failures;
    for (Finding& finding : findings_) all.push_back(std::move(finding));
    return all;
  }

 private:
  const ExaminationResult& result_;
  std::vector<Finding> findings_;
};

// Text facts that should be equal on all hosts.
// --------------------------------

struct TextFact {
  Severity severity;
  const char* name;
  std::function<std::string(const HostFacts&)> value;
  const char* advice;
};

std::string GpuKinds(const HostFacts& host) {
  std::map<std::string, int> counts;
  for (const GpuFacts& gpu : host.gpus) ++counts[gpu.name];
  std::string text;
  for (const auto& [name, count] : counts) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", count, " x ", name);
  }
  return text.empty() ? "none" : text;
}

std::string OrNone(const std::string& text) {
  return text.empty() ? "none" : text;
}

std::vector<TextFact> TextFacts(bool uses_gpus) {
  const Severity of_gpus = uses_gpus ? Severity::kFailure : Severity::kWarning;
  return {
      {Severity::kFailure, "build of millrace",
       [](const HostFacts& h) {
         return absl::StrCat(
             h.build_id.empty() ? "unknown" : h.build_id.substr(0, 12), " (",
             h.version, ")");
       },
       "put the same program on all hosts"},
      {of_gpus, "GPUs", GpuKinds,
       "a job takes GPUs of one kind: leave the host out, or choose by "
       "CUDA_VISIBLE_DEVICES"},
      {Severity::kWarning, "NVIDIA driver",
       [](const HostFacts& h) { return OrNone(h.driver); },
       "install the same driver on all hosts"},
      {of_gpus, "NCCL", [](const HostFacts& h) { return OrNone(h.nccl); },
       "NCCL refuses unlike versions: install the same on all hosts"},
      {Severity::kFailure, "data of the job",
       [](const HostFacts& h) {
         return h.data_files < 0 ? std::string("not read")
                                 : absl::StrCat(h.data_files, " files, ",
                                                FormatBytes(h.data_bytes), ", ",
                                                h.data_names.substr(0, 8));
       },
       "copy the same files to all hosts"},
      {Severity::kWarning, "NCCL's and Gloo's variables",
       [](const HostFacts& h) { return OrNone(h.network_variables); },
       "give all hosts the same (mpirun -x NAME)"},
      {Severity::kWarning, "InfiniBand and RoCE ports",
       [](const HostFacts& h) { return OrNone(h.rdma_ports); },
       "see to its cables, and to its driver by ibstat"},
      {Severity::kWarning, "packet sizes (MTU)",
       [](const HostFacts& h) { return OrNone(h.packet_sizes); },
       "set one size on all hosts of a network: larger packets get lost"},
      {Severity::kWarning, "processor",
       [](const HostFacts& h) { return h.processor; },
       "the slowest host sets the pace"},
      {Severity::kWarning, "kernel",
       [](const HostFacts& h) { return h.kernel; },
       "install the same system on all hosts"},
      {Severity::kWarning, "C library",
       [](const HostFacts& h) { return h.c_library; },
       "install the same system on all hosts"},
      {Severity::kWarning, "MPI",
       [](const HostFacts& h) { return OrNone(h.mpi_library); },
       "install the same MPI on all hosts, since unlike ones may not meet"},
  };
}

void CompareTexts(const ExaminationResult& result, FindingList* findings) {
  const std::vector<size_t> firsts = FirstAgents(result.hosts);
  for (const TextFact& fact : TextFacts(result.needs.gpus)) {
    std::vector<std::string> values;
    for (const size_t i : firsts) {
      values.push_back(fact.value(result.hosts[i]));
    }
    const std::string majority = MajorityOf(values);
    for (size_t k = 0; k < firsts.size(); ++k) {
      if (values[k] == majority) continue;
      findings->Add(fact.severity, result.hosts[firsts[k]],
                    absl::StrCat(fact.name, ": ", values[k], ", others have ",
                                 majority, "; ", fact.advice));
    }
  }
}

// Numbers of which a host should have no less than the others.
// -----------------

struct NumberFact {
  const char* name;
  std::function<int64_t(const HostFacts&)> value;
  std::function<std::string(int64_t)> text;
  double tolerance;
  bool of_process;  // Processes of one host may differ.
  const char* advice;
};

std::string CountText(int64_t value) { return absl::StrCat(value); }

const std::vector<NumberFact>& NumberFacts() {
  static const std::vector<NumberFact> facts = {
      {"cores", [](const HostFacts& h) { return h.cores; }, CountText, 0, false,
       "see how the launcher binds processes, or what the container may use"},
      {"memory", [](const HostFacts& h) { return h.memory_bytes; }, FormatBytes,
       kMemoryTolerance, false, "the smallest host bounds what fits"},
      {"open files", [](const HostFacts& h) { return h.open_files; }, LimitText,
       0, true, "raise ulimit -n (limits.conf, or LimitNOFILE of systemd)"},
      {"locked memory",
       [](const HostFacts& h) { return h.locked_memory_bytes; }, LimitBytesText,
       0, true, "raise ulimit -l (limits.conf, or LimitMEMLOCK of systemd)"},
      {"processes", [](const HostFacts& h) { return h.processes; }, LimitText,
       0.1, true, "raise ulimit -u (limits.conf, or TasksMax of systemd)"},
  };
  return facts;
}

// At least half of the hosts have so much.
int64_t UpperMedian(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool IsBelow(int64_t value, int64_t reference, double tolerance) {
  return static_cast<double>(value) <
         static_cast<double>(reference) * (1 - tolerance);
}

void CompareNumbers(const ExaminationResult& result, FindingList* findings) {
  const std::vector<size_t> firsts = FirstAgents(result.hosts);
  for (const NumberFact& fact : NumberFacts()) {
    std::vector<int64_t> values;
    for (const size_t i : firsts) values.push_back(fact.value(result.hosts[i]));
    const int64_t usual = UpperMedian(values);
    const std::set<size_t> first_set(firsts.begin(), firsts.end());
    for (size_t i = 0; i < result.hosts.size(); ++i) {
      const HostFacts& host = result.hosts[i];
      const int64_t value = fact.value(host);
      if (!fact.of_process && !first_set.contains(i)) continue;
      if (!IsBelow(value, usual, fact.tolerance)) continue;
      findings->Add(
          Severity::kWarning, host,
          absl::StrCat(fact.name, ": ", fact.text(value), ", others have ",
                       fact.text(usual), "; ", fact.advice));
    }
  }
}

// Lacks of one host, whatever the others have.
// ----------------------------------

void CheckFolders(const ExaminationResult& result, const HostFacts& host,
                  FindingList* findings) {
  for (const FolderFacts& folder : host.folders) {
    const std::string name = absl::StrCat(folder.purpose, " ", folder.path);
    const bool is_shared_memory = folder.purpose == kSharedMemory;
    if (!folder.error.empty()) {
      findings->Add(Severity::kFailure, host,
                    absl::StrCat(name, ": ", folder.error,
                                 "; a job needs to write there"));
    } else if (folder.total_bytes == 0) {
      continue;  // Unlimited or not told, as by ramfs.
    } else if (is_shared_memory) {
      if (host.gpus.empty() || folder.free_bytes >= kLittleSharedMemory) {
        continue;
      }
      findings->Add(Severity::kWarning, host,
                    absl::StrCat(name, ": ", FormatBytes(folder.free_bytes),
                                 " free; NCCL needs more between the GPUs of a "
                                 "host: mount it larger (docker run "
                                 "--shm-size)"));
    } else if (folder.free_bytes < kLeastFreeBytes) {
      findings->Add(Severity::kFailure, host,
                    absl::StrCat(name, ": ", FormatBytes(folder.free_bytes),
                                 " free of ", FormatBytes(folder.total_bytes),
                                 "; make room, or name another folder"));
    } else if (folder.purpose == kCheckpointFolder &&
               folder.free_bytes < result.needs.checkpoint_bytes) {
      findings->Add(Severity::kFailure, host,
                    absl::StrCat(name, ": ", FormatBytes(folder.free_bytes),
                                 " free, and the job's checkpoints take ",
                                 FormatBytes(result.needs.checkpoint_bytes),
                                 "; make room, or lower checkpoint.keep"));
    }
  }
}

// The others say what a host's way to the server should give.
void CheckBuckets(const ExaminationResult& result, FindingList* findings) {
  const std::vector<size_t> firsts = FirstAgents(result.hosts);
  std::vector<double> writes;
  std::vector<double> reads;
  for (const size_t i : firsts) {
    for (const BucketFacts& bucket : result.hosts[i].buckets) {
      if (!bucket.error.empty()) continue;
      writes.push_back(bucket.write_bytes_s);
      reads.push_back(bucket.read_bytes_s);
    }
  }
  const bool compares = writes.size() >= kLeastComparedBuckets;
  for (const size_t i : firsts) {
    const HostFacts& host = result.hosts[i];
    for (const BucketFacts& bucket : host.buckets) {
      const std::string name = absl::StrCat("bucket ", bucket.path, ": ");
      if (!bucket.error.empty()) {
        findings->Add(Severity::kFailure, host, name + bucket.error);
        continue;
      }
      const auto compare = [&](const char* does, double rate,
                               const std::vector<double>& all) {
        const double usual = MedianOf(all);
        if (rate >= kSlowBucketShare * usual) return;
        findings->Add(
            Severity::kWarning, host,
            absl::StrCat(name, does, " ", RateText(rate), ", others do ",
                         RateText(usual), "; see to its way to the server"));
      };
      if (!compares) continue;
      compare("writes", bucket.write_bytes_s, writes);
      compare("reads", bucket.read_bytes_s, reads);
    }
  }
}

void CheckLimits(const ExaminationResult& result, const HostFacts& host,
                 FindingList* findings) {
  int64_t devices = 0;
  for (const HostFacts& other : result.hosts) devices += other.devices;
  const int64_t files = kOpenFilesAlone + kOpenFilesPerDevice * devices;
  if (host.open_files < files) {
    findings->Add(
        Severity::kFailure, host,
        absl::StrCat("open files: ", host.open_files,
                     " are allowed, and a job of ", devices,
                     " devices may open ", files, "; raise ulimit -n"));
  }
  if (!host.gpus.empty() && host.locked_memory_bytes < kLittleLockedMemory) {
    findings->Add(
        Severity::kWarning, host,
        absl::StrCat("locked memory: ", FormatBytes(host.locked_memory_bytes),
                     " are allowed; NCCL over InfiniBand or RoCE "
                     "fails with so little: ulimit -l unlimited"));
  }
}

// GPUs.
// ------------------------------------------------------------------------

void CheckGpu(const HostFacts& host, size_t idx, bool uses_gpus,
              FindingList* findings) {
  const GpuFacts& gpu = host.gpus[idx];
  const Severity of_gpus = uses_gpus ? Severity::kFailure : Severity::kWarning;
  const auto add = [&](Severity severity, const std::string& text) {
    findings->Add(severity, host, absl::StrCat("GPU ", idx, ": ", text));
  };
  if (gpu.remap_failed > 0) {
    add(of_gpus,
        "a row of its memory failed and could not be remapped; "
        "replace the GPU");
  }
  if (gpu.remap_pending > 0) {
    add(of_gpus,
        "a row of its memory waits to be remapped; reset the GPU "
        "(nvidia-smi --gpu-reset) before a job");
  }
  if (gpu.uncorrected_errors > 0) {
    add(Severity::kWarning,
        absl::StrCat(gpu.uncorrected_errors,
                     " uncorrected memory errors since the driver was loaded; "
                     "reset the GPU, and replace it if they come again"));
  }
  if (gpu.compute_mode == kComputeProhibited) {
    add(of_gpus, "its compute mode prohibits all work; nvidia-smi -c 0");
  }
  if (gpu.mig > 0) {
    add(Severity::kWarning,
        "is cut into MIG instances, between which NCCL does not work; "
        "nvidia-smi -mig 0");
  }
  if (const std::string reasons = SlowingReasons(gpu.throttle_reasons);
      !reasons.empty()) {
    add(Severity::kWarning, absl::StrCat("is slowed down: ", reasons,
                                         "; see to cooling and power"));
  }
  if (gpu.temperature_c >= 0 && gpu.slowdown_c > 0 &&
      gpu.temperature_c >= gpu.slowdown_c - kNearSlowdown) {
    add(Severity::kWarning,
        absl::StrCat("is ", gpu.temperature_c,
                     " degrees hot and slows down at ", gpu.slowdown_c,
                     "; see to its cooling"));
  }
  if (gpu.memory_bytes > 0 &&
      static_cast<double>(gpu.used_bytes) >
          kUsedGpuShare * static_cast<double>(gpu.memory_bytes)) {
    add(Severity::kWarning,
        absl::StrCat(FormatBytes(gpu.used_bytes), " of ",
                     FormatBytes(gpu.memory_bytes),
                     " are in use; see what runs there by nvidia-smi"));
  }
  if (gpu.nvlinks > 0 && gpu.active_nvlinks < gpu.nvlinks) {
    add(Severity::kWarning,
        absl::StrCat(gpu.active_nvlinks, " of ", gpu.nvlinks,
                     " NVLinks are active; nvidia-smi nvlink --status, and see "
                     "whether the fabric manager runs"));
  }
  if (gpu.pcie_width > 0 && gpu.pcie_width < gpu.max_pcie_width) {
    add(Severity::kWarning,
        absl::StrCat("has ", gpu.pcie_width, " PCIe lanes of ",
                     gpu.max_pcie_width, "; reseat it, or try another slot"));
  }
}

struct GpuNumber {
  const char* name;
  int64_t GpuFacts::*value;
  const char* unit;
  int64_t divisor;
  const char* advice;
};

constexpr GpuNumber kGpuNumbers[] = {
    {"power limit", &GpuFacts::power_limit_mw, " W", 1000,
     "nvidia-smi --power-limit"},
    {"highest clock", &GpuFacts::max_clock_mhz, " MHz", 1,
     "nvidia-smi --reset-gpu-clocks"},
    {"highest memory clock", &GpuFacts::max_memory_clock_mhz, " MHz", 1,
     "nvidia-smi --reset-memory-clocks"},
    {"ECC", &GpuFacts::ecc_enabled, "", 1, "nvidia-smi --ecc-config=1"},
    {"NVLinks", &GpuFacts::nvlinks, "", 1, "nvidia-smi nvlink --status"},
    {"PCIe lanes", &GpuFacts::max_pcie_width, "", 1,
     "try another slot of the host"},
};

// Only GPUs of one kind are compared.
void CompareGpus(const ExaminationResult& result, FindingList* findings) {
  const std::vector<size_t> firsts = FirstAgents(result.hosts);
  for (const GpuNumber& number : kGpuNumbers) {
    std::map<std::string, std::vector<int64_t>> values;
    for (const size_t i : firsts) {
      for (const GpuFacts& gpu : result.hosts[i].gpus) {
        const int64_t value = gpu.*number.value;
        if (value >= 0) values[gpu.name].push_back(value / number.divisor);
      }
    }
    for (const size_t i : firsts) {
      const HostFacts& host = result.hosts[i];
      for (size_t k = 0; k < host.gpus.size(); ++k) {
        const GpuFacts& gpu = host.gpus[k];
        const int64_t value = gpu.*number.value / number.divisor;
        if (gpu.*number.value < 0) continue;
        const int64_t usual = UpperMedian(values[gpu.name]);
        if (value >= usual) continue;
        findings->Add(Severity::kWarning, host,
                      absl::StrCat("GPU ", k, ": ", number.name, " ", value,
                                   number.unit, ", others have ", usual,
                                   number.unit, "; ", number.advice));
      }
    }
  }
}

// Folders that agent 0's host wrote a probe into.
// ------------------------------

bool FirstHostSees(const ExaminationResult& result,
                   const std::string& purpose) {
  const std::vector<FolderFacts>& folders = result.hosts[0].folders;
  return std::any_of(folders.begin(), folders.end(), [&](const auto& folder) {
    return folder.purpose == purpose && folder.sees_probe;
  });
}

void CheckShared(const ExaminationResult& result, FindingList* findings) {
  if (result.hosts[0].agent_idx != 0) return;  // Agent 0's host did not answer.
  for (const size_t i : FirstAgents(result.hosts)) {
    const HostFacts& host = result.hosts[i];
    for (const FolderFacts& folder : host.folders) {
      if (!folder.probed || folder.sees_probe ||
          folder.purpose != kCheckpointFolder ||
          !result.needs.shared_checkpoints) {
        continue;
      }
      // A folder that agent 0's host cannot write fails by itself.
      if (!FirstHostSees(result, folder.purpose)) continue;
      findings->Add(
          Severity::kWarning, host,
          absl::StrCat("does not see the ", folder.purpose, " ", folder.path,
                       " of ", result.hosts[0].host,
                       "; it would keep its part of checkpoints on its own "
                       "disk, and a copy of the host's before it "
                       "(docs/checkpoint.md)"));
    }
  }
}

// Clocks.
// ----------------------------------------------------------------------

void CheckClocks(const ExaminationResult& result, FindingList* findings) {
  const std::map<int32_t, double> offsets = ClockOffsets(result);
  if (offsets.size() < 2) return;
  for (const HostFacts& host : result.hosts) {
    const auto own = offsets.find(host.agent_idx);
    if (own == offsets.end() || std::abs(own->second) < kClockTolerance) {
      continue;
    }
    findings->Add(
        Severity::kWarning, host,
        absl::StrCat("its clock is ", FormatSeconds(std::abs(own->second)),
                     own->second > 0 ? " fast" : " slow",
                     " against the other hosts; run chrony or another NTP "
                     "client on all hosts"));
  }
}

}  // namespace

std::vector<size_t> FirstAgents(const std::vector<HostFacts>& hosts) {
  std::vector<size_t> result;
  std::set<std::string> known;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (known.insert(hosts[i].host_identity).second) result.push_back(i);
  }
  return result;
}

std::string NameOf(const std::vector<HostFacts>& hosts,
                   const HostFacts& agent) {
  const auto others =
      std::count_if(hosts.begin(), hosts.end(),
                    [&](const HostFacts& h) { return h.host == agent.host; });
  if (others < 2) return agent.host;
  return absl::StrCat(agent.host, ", agent ", agent.agent_idx);
}

std::string MajorityOf(const std::vector<std::string>& values) {
  std::map<std::string, size_t> counts;
  for (const std::string& value : values) ++counts[value];
  size_t most = 0;
  std::string result;
  for (const std::string& value : values) {
    if (counts[value] > most) {
      most = counts[value];
      result = value;
    }
  }
  return result;
}

std::vector<Finding> FindingsOf(const ExaminationResult& result) {
  FindingList findings(result);
  if (result.hosts.empty()) return findings.Take();
  std::set<std::pair<std::string, std::string>> told;
  for (const HostFacts& host : result.hosts) {
    for (const std::string& text : host.failures) {
      // Once for all agents of a host.
      if (!told.insert({host.host_identity, text}).second) continue;
      findings.Add(Severity::kFailure, host, text);
    }
    for (const std::string& text : host.warnings) {
      if (!told.insert({host.host_identity, text}).second) continue;
      findings.Add(Severity::kWarning, host, text);
    }
    CheckLimits(result, host, &findings);
  }
  for (const size_t i : FirstAgents(result.hosts)) {
    const HostFacts& host = result.hosts[i];
    CheckFolders(result, host, &findings);
    for (size_t k = 0; k < host.gpus.size(); ++k) {
      CheckGpu(host, k, result.needs.gpus, &findings);
    }
  }
  CheckBuckets(result, &findings);
  CheckShared(result, &findings);
  CompareTexts(result, &findings);
  CompareNumbers(result, &findings);
  CompareGpus(result, &findings);
  CheckClocks(result, &findings);
  std::vector<Finding> all = findings.Take();
  for (Finding& finding : PairFindings(result)) {
    all.push_back(std::move(finding));
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.severity < b.severity;
  });
  return all;
}

}  // namespace millrace

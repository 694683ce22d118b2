#include <cstring>
#include <memory>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "coordinator/planning.h"
#include "coordinator/report/report_program.h"
#include "coordinator/write_ahead_log.h"
#include "fault/file_system.h"
#include "fault/manifest.h"
#include "fault/pickle.h"
#include "fault/safetensors.h"
#include "fault/stored_zip.h"
#include "fault/xid.h"
#include "planner/diagnose/trace_reader.h"
#include "planner/frameworks/model_folder.h"
#include "planner/frameworks/settings.h"
#include "planner/job/job_file.h"
#include "planner/profile/profile_file.h"
#include "planner/simulate/timeline.h"
#include "tests/fuzz/fuzz_targets.h"

namespace millrace {
namespace {

class BytesFile : public RandomAccessFile {
 public:
  explicit BytesFile(absl::string_view bytes) : bytes_(bytes) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status Read(int64_t offset, int64_t num_bytes,
                    void* out) const override {
    CHECK(offset >= 0 && num_bytes >= 0);
    if (offset > size() || num_bytes > size() - offset) {
      return absl::DataLossError("too short");
    }
    std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(num_bytes));
    return absl::OkStatus();
  }

 private:
  const absl::string_view bytes_;
};

constexpr const char* kPickleNames[] = {
    "collections OrderedDict", "torch Size", "torch float32",
    "torch._utils _rebuild_tensor_v2", "torch FloatStorage"};

}  // namespace

// A job that is accepted must come out as it went in.
void FuzzJob(absl::string_view bytes) {
  const auto job = ParseJob(bytes, "job.yaml");
  if (!job.ok()) return;
  const auto again = ParseJob(JobToYaml(*job), "again.yaml");
  CHECK(again.ok());
  CHECK(JobToYaml(*again) == JobToYaml(*job));
}

void FuzzProfile(absl::string_view bytes) {
  const auto profile = ParseProfile(bytes, "profile.yaml");
  static_cast<void>(profile);
}

void FuzzSettings(absl::string_view bytes) {
  for (const auto& settings :
       {ReadJsonSettings(bytes, "a.json"), ReadTomlSettings(bytes, "a.toml"),
        ReadMegatronSettings(bytes, "a.sh"),
        ReadMegatronSettings(bytes, "a.yaml"),
        ReadOverrideSettings(bytes, "a.sh")}) {
    if (settings.ok()) settings->Find("hidden-size");
  }
}

void FuzzPlan(absl::string_view bytes) {
  const auto plan = PlanRecordFromJson(std::string(bytes));
  static_cast<void>(plan);
}

void FuzzProgram(absl::string_view bytes) {
  const auto program = ParseProgramText(bytes, "stage-0.txt");
  static_cast<void>(program);
}

void FuzzTimeline(absl::string_view bytes) {
  const auto timeline = TimelineFromJson(bytes);
  static_cast<void>(timeline);
}

void FuzzStateLog(absl::string_view bytes) {
  const auto log = WriteAheadLog::Open(FuzzFile(bytes, ".log"));
  static_cast<void>(log);
}

// As it is, and with the checksum that a forger would write.
void FuzzManifest(absl::string_view bytes) {
  const auto part = ParsePart(bytes);
  static_cast<void>(part);
  constexpr absl::string_view kKey = ",\"checksum\":\"";
  const std::string body(bytes.substr(0, bytes.rfind(kKey)));
  const auto manifest = ParseManifest(
      absl::StrCat(
          body, kKey,
          absl::StrFormat("%016x", Checksum(body.data(),
                                            static_cast<int64_t>(body.size()))),
          "\"}\n"),
      "manifest.json");
  static_cast<void>(manifest);
}

// As it is, and with the length that a forger would write.
void FuzzSafetensors(absl::string_view bytes) {
  const auto header = ReadSafetensorsHeader(BytesFile(bytes), "a.safetensors");
  if (header.ok() || bytes.size() < 8) return;
  std::string forged(bytes);
  const size_t end = forged.rfind('}');
  const uint64_t length = end == std::string::npos || end < 8 ? 0 : end - 7;
  std::memcpy(forged.data(), &length, sizeof(length));
  const auto again = ReadSafetensorsHeader(BytesFile(forged), "a.safetensors");
  static_cast<void>(again);
}

void FuzzPickle(absl::string_view bytes) {
  const auto pickle = Pickle::Parse(std::string(bytes), "a.pkl", kPickleNames);
  if (pickle.ok()) pickle->root().Find("key");
}

void FuzzZip(absl::string_view bytes) {
  const BytesFile file(bytes);
  const auto members = ReadStoredZip(file, "a.pt", 0, file.size());
  if (!members.ok()) return;
  for (const StoredMember& member : *members) {
    CHECK(member.offset >= 0 && member.num_bytes >= 0);
    CHECK(member.offset + member.num_bytes <= file.size());
  }
}

void FuzzModelConfig(absl::string_view bytes) {
  const auto naming = NamingOfConfig(bytes, "config.json");
  const auto changed = ChangeConfigType(bytes, "config.json", "bfloat16");
  if (changed.ok()) CHECK(ChangeConfigType(*changed, "c", "bfloat16").ok());
}

void FuzzTrace(absl::string_view bytes) {
  std::istringstream input{std::string(bytes)};
  const auto trace = ReadTrace(input, "trace.json");
  static_cast<void>(trace);
}

void FuzzKernelLog(absl::string_view bytes) {
  const std::optional<Xid> xid = ParseXid(bytes);
  if (!xid.has_value()) return;
  CHECK(xid->number > 0);
  CHECK(!XidSentence({&xid->number, 1}).empty());
}

}  // namespace millrace

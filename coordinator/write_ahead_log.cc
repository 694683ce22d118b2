#include "coordinator/write_ahead_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

absl::Status SystemError(const std::string& what, const std::string& path) {
  return absl::InternalError(
      absl::StrCat(path, ": ", what, ": ", std::strerror(errno)));
}

std::string CommittedRecord(int64_t step, const std::string& path) {
  return JsonText(
      Json{{"record", "committed"}, {"step", step}, {"path", path}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<WriteAheadLog>> WriteAheadLog::Open(
    const std::string& path) {
  std::string content;
  if (FileExists(path)) {
    ASSIGN_OR_RETURN(content, ReadFile(path, kMaxRecordBytes));
  }
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return SystemError("cannot open", path);
  std::unique_ptr<WriteAheadLog> log(new WriteAheadLog(fd, path));
  size_t begin = 0;
  for (int line_number = 1; begin < content.size(); ++line_number) {
    const size_t end = content.find('\n', begin);
    const std::string line = content.substr(begin, end - begin);
    const bool is_last = end == std::string::npos || end + 1 == content.size();
    const absl::StatusOr<std::string> record = RecordOfLine(line);
    if (end == std::string::npos || !record.ok()) {
      if (is_last) break;  // Torn; cut off below.
      return absl::DataLossError(
          absl::StrCat(path, ":", line_number, ": damaged record"));
    }
    RETURN_IF_ERROR(log->Apply(*record));
    begin = end + 1;
  }
  if (ftruncate(fd, static_cast<off_t>(begin)) != 0 ||
      lseek(fd, 0, SEEK_END) < 0) {
    return SystemError("cannot cut off a torn record", path);
  }
  return log;
}

WriteAheadLog::~WriteAheadLog() { close(fd_); }

absl::Status WriteAheadLog::Apply(const std::string& record) {
  const absl::StatusOr<Json> parsed = ParseJson(record);
  if (!parsed.ok()) {
    return absl::DataLossError(absl::StrCat(path_, ": record ", record, ": ",
                                            parsed.status().message()));
  }
  const Json& json = *parsed;
  try {
    const std::string kind = json.at("record");
    if (kind == "started") {
      job_.started_unix_s = json.at("unix_s");
    } else if (kind == "generation") {
      job_.generation = Generation{json.at("generation").get<int64_t>()};
    } else if (kind == "plan") {
      job_.plan_json = json.at("plan");
    } else if (kind == "committed") {
      job_.committed_step = json.at("step");
      job_.committed_path = json.at("path");
    } else if (kind == "left_out") {
      const int64_t last = json.at("last");
      for (int64_t step = json.at("first"); step <= last; ++step) {
        job_.left_out_steps.insert(step);
      }
    } else if (kind == "distrusted") {
      job_.distrusted_memory = Generation{json.at("generation").get<int64_t>()};
      job_.trusted_step = json.value("trusted_step", int64_t{-1});
    } else if (kind == "profile") {
      job_.profile_yaml = json.at("profile");
    } else if (kind == "keepers") {
      ASSIGN_OR_RETURN(job_.keepers, KeepersIn({record}));
    } else if (kind == "ended") {
      job_.ended = true;
      job_.exit_code = json.at("exit_code");
      job_.end_message = json.at("message");
    } else {
      return absl::DataLossError(
          absl::StrCat(path_, ": unknown record '", kind, "'"));
    }
  } catch (const Json::exception& error) {
    return absl::DataLossError(
        absl::StrCat(path_, ": record ", record, ": ", error.what()));
  }
  records_.push_back(record);
  return absl::OkStatus();
}

absl::Status WriteAheadLog::Append(const std::string& record) {
  RETURN_IF_ERROR(Write(record));
  return Apply(record);
}

absl::Status WriteAheadLog::Write(const std::string& record) {
  const std::lock_guard<std::mutex> lock(writing_);
  const std::string line = LogLine(record);
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count =
        write(fd_, line.data() + written, line.size() - written);
    if (count < 0) {
      if (errno == EINTR) continue;
      const absl::Status error = SystemError("cannot append", path_);
      // What is there of the line would damage the next one.
      const off_t end = lseek(fd_, 0, SEEK_CUR);
      if (end < 0 || ftruncate(fd_, end - static_cast<off_t>(written)) != 0 ||
          lseek(fd_, 0, SEEK_END) < 0) {
        return SystemError("cannot cut off a torn record", path_);
      }
      return error;
    }
    written += static_cast<size_t>(count);
  }
  if (fdatasync(fd_) != 0) return SystemError("cannot make durable", path_);
  return copies_ == nullptr ? absl::OkStatus() : copies_->Append(record);
}

absl::Status WriteAheadLog::KeepCopies(std::unique_ptr<LogCopies> copies,
                                       const std::vector<Keeper>& keepers) {
  // The copies have this record already.
  if (job_.keepers != keepers) RETURN_IF_ERROR(Append(KeepersRecord(keepers)));
  const std::lock_guard<std::mutex> lock(writing_);
  copies_ = std::move(copies);
  return absl::OkStatus();
}

absl::Status WriteAheadLog::Confirm() {
  return copies_ == nullptr ? absl::OkStatus() : copies_->Confirm();
}

absl::Status WriteAheadLog::Started(double unix_s) {
  return Append(JsonText(Json{{"record", "started"}, {"unix_s", unix_s}}));
}
absl::Status WriteAheadLog::GenerationRaised(Generation generation) {
  return Append(JsonText(
      Json{{"record", "generation"}, {"generation", ToInt(generation)}}));
}
absl::Status WriteAheadLog::PlanChosen(const std::string& plan_json) {
  return Append(JsonText(Json{{"record", "plan"}, {"plan", plan_json}}));
}
absl::Status WriteAheadLog::ProfileChosen(const std::string& profile_yaml) {
  return Append(
      JsonText(Json{{"record", "profile"}, {"profile", profile_yaml}}));
}
absl::Status WriteAheadLog::CheckpointCommitted(int64_t step,
                                                const std::string& path) {
  return Append(CommittedRecord(step, path));
}
absl::Status WriteAheadLog::WriteCheckpointCommitted(int64_t step,
                                                     const std::string& path) {
  return Write(CommittedRecord(step, path));
}
absl::Status WriteAheadLog::CountCheckpointCommitted(int64_t step,
                                                     const std::string& path) {
  return Apply(CommittedRecord(step, path));
}
absl::Status WriteAheadLog::StepsLeftOut(int64_t first, int64_t last) {
  return Append(
      JsonText(Json{{"record", "left_out"}, {"first", first}, {"last", last}}));
}
absl::Status WriteAheadLog::MemoryDistrusted(Generation generation,
                                             int64_t trusted_step) {
  return Append(JsonText(Json{{"record", "distrusted"},
                              {"generation", ToInt(generation)},
                              {"trusted_step", trusted_step}}));
}
absl::Status WriteAheadLog::Ended(int exit_code, const std::string& message) {
  return Append(JsonText(Json{
      {"record", "ended"}, {"exit_code", exit_code}, {"message", message}}));
}

}  // namespace millrace

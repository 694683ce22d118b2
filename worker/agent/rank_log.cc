#include "worker/agent/rank_log.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file_piece.h"
#include "base/files.h"

namespace millrace {
namespace {

constexpr int64_t kLogEndBytes = 8 << 10;
constexpr int64_t kLogPieceBytes = 64 << 10;

}  // namespace

std::string RankLogPath(const std::string& run_directory, int32_t rank) {
  return absl::StrFormat("%s/logs/worker-%04d.log", run_directory, rank);
}

std::string EndOfLog(const std::string& path) {
  absl::StatusOr<std::string> end = ReadEndOfFile(path, kLogEndBytes);
  return end.ok() ? *std::move(end) : std::string(end.status().message());
}

protocol::LogText PieceOfLog(const std::string& run_directory,
                             const std::string& host,
                             const protocol::LogRequest& request) {
  protocol::LogText answer;
  answer.set_number(request.number());
  absl::StatusOr<std::string> piece =
      ReadPiece(RankLogPath(run_directory, request.rank()), request.offset(),
                kLogPieceBytes);
  if (piece.ok()) {
    answer.set_text(*std::move(piece));
  } else {
    answer.set_error(absl::StrCat(host, ": ", piece.status().message()));
  }
  return answer;
}

}  // namespace millrace

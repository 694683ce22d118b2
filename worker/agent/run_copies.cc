#include "worker/agent/run_copies.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {

namespace fs = std::filesystem;

absl::Status RunCopies::Take(int64_t term, const protocol::RunFile& piece) {
  const fs::path name = piece.name();
  for (const fs::path& part : name) {
    if (name.is_absolute() || part == "..") {
      return absl::InvalidArgumentError(
          absl::StrCat("'", piece.name(), "' leads out of the run directory"));
    }
  }
  if (term != term_) bytes_.clear();
  term_ = term;
  const std::string path = absl::StrCat(run_directory_, "/", piece.name());
  const int64_t there = bytes_[piece.name()];
  if (piece.offset() == 0) {
    RETURN_IF_ERROR(MakeDirectories(fs::path(path).parent_path().string()));
    RETURN_IF_ERROR(WriteFileAtomically(path, piece.data()));
  } else if (piece.offset() == there) {
    std::ofstream file(path, std::ios::app | std::ios::binary);
    if (!(file << piece.data() << std::flush)) {
      return absl::InternalError(absl::StrCat("cannot append to ", path));
    }
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", there, " bytes, and the next piece begins ",
                     "at ", piece.offset()));
  }
  bytes_[piece.name()] =
      piece.offset() + static_cast<int64_t>(piece.data().size());
  return absl::OkStatus();
}

void RunCopies::AddTo(protocol::AgentHello* hello) const {
  hello->set_copies_term(term_);
  for (const auto& [name, bytes] : bytes_) {
    protocol::RunFileCopy* copy = hello->add_copies();
    copy->set_name(name);
    copy->set_bytes(bytes);
  }
}

}  // namespace millrace

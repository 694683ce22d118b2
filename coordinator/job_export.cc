// Exports of weights during training; see job_runner.h.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "coordinator/job_runner.h"
#include "fault/file_system.h"

namespace millrace {

void JobRunner::ExportStep(int64_t step, const std::string& checkpoint) {
  if (!IsExported(job_, step)) return;
  if (exporter_ == nullptr) {
    const std::string& directory = job_.exports.directory;
    // Hosts that come later are not asked: parts are on two hosts.
    export_files_ = checkpoint_folders_.readers;
    exporter_ = std::make_unique<PeriodicExport>(
        export_files_ == nullptr ? static_cast<FileSystem&>(*stored_files_)
                                 : *export_files_,
        PeriodicExportOptions{
            .directory = directory.empty()
                             ? absl::StrCat(options_.run_directory, "/exports")
                             : directory,
            .keep = job_.exports.keep,
            .on_end = [this](const ExportOutcome& outcome) {
              server_->Post([this, outcome] { OnExported(outcome); });
            }});
  }
  ++num_exports_;
  exporter_->Add(step, checkpoint);
}

void JobRunner::OnExported(const ExportOutcome& outcome) {
  --num_exports_;
  if (export_files_ != nullptr) {
    ReportDamagedCopies(export_files_->TakeDamagedCopies());
  }
  if (exit_code_.has_value()) return;
  const bool ok = outcome.status.ok();
  output_->Event(
      {.event = ok ? "exported" : "export_failed",
       .generation = ToInt(state_->generation()),
       .step = outcome.step,
       .detail = ok ? outcome.folder : std::string(outcome.status.message())});
  if (ok) {
    progress_->Line(absl::StrCat("exported the weights of step ", outcome.step,
                                 " to ", outcome.folder, " in ",
                                 FormatSeconds(outcome.seconds)));
  } else {
    progress_->Line(absl::StrCat("warning: no export of step ", outcome.step,
                                 ": ", outcome.status.message(),
                                 "; training goes on"));
  }
  if (!outcome.removal.ok()) {
    progress_->Line(absl::StrCat("warning: an old export stays: ",
                                 outcome.removal.message()));
  }
  if (end_after_exports_.has_value() && num_exports_ == 0) {
    End(*std::exchange(end_after_exports_, std::nullopt));
  }
}

std::optional<int64_t> JobRunner::OldestToExport() const {
  return exporter_ == nullptr ? std::nullopt : exporter_->oldest_step();
}

}  // namespace millrace

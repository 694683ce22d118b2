#include "coordinator/cli/batch_script.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "coordinator/protocol/exit_codes.h"
#include "coordinator/protocol/secret.h"

namespace millrace {
namespace {

absl::Status CheckOneLine(const char* what, const std::string& text) {
  const bool one_line =
      std::none_of(text.begin(), text.end(), absl::ascii_iscntrl);
  if (one_line) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what,
      " holds a line break or another control character, which cannot "
      "stand in a batch script"));
}

// One word of the shell.
std::string QuotedForShell(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", R"('\'')"}}), "'");
}

// One of sbatch's forms: minutes, minutes:seconds, hours:minutes:seconds,
// days-hours, days-hours:minutes, days-hours:minutes:seconds. Infinite for
// other words, which sbatch judges.
absl::Duration TimeLimit(absl::string_view text) {
  int64_t days = 0;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '-');
  const bool has_days = parts.size() == 2;
  if (has_days && !absl::SimpleAtoi(parts[0], &days)) {
    return absl::InfiniteDuration();
  }
  std::vector<int64_t> numbers;
  for (absl::string_view word : absl::StrSplit(parts.back(), ':')) {
    if (!absl::SimpleAtoi(word, &numbers.emplace_back())) {
      return absl::InfiniteDuration();
    }
  }
  // Hours, minutes, seconds.
  if (!has_days && numbers.size() < 3) numbers.insert(numbers.begin(), 0);
  numbers.resize(3);
  return absl::Hours(24 * days + numbers[0]) + absl::Minutes(numbers[1]) +
         absl::Seconds(numbers[2]);
}

}  // namespace

absl::StatusOr<std::string> WriteBatchScript(
    const BatchScriptOptions& options) {
  RETURN_IF_ERROR(CheckOneLine("the path of millrace", options.program));
  RETURN_IF_ERROR(CheckOneLine("the path of the job", options.job_file));
  RETURN_IF_ERROR(CheckOneLine("the current directory", options.directory));
  RETURN_IF_ERROR(CheckOneLine("--time", options.time_limit));
  if (options.requeue && !options.time_limit.empty() &&
      TimeLimit(options.time_limit) <= options.warning) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--time ", options.time_limit, " leaves no time to train: Slurm warns ",
        absl::FormatDuration(options.warning),
        " before it, and the job ends then; give a longer --time or a smaller "
        "--warn-seconds"));
  }
  for (const std::string& option : options.sbatch_options) {
    RETURN_IF_ERROR(CheckOneLine("--sbatch", option));
    if (!absl::StartsWith(option, "-")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--sbatch ", option,
          " is no option of sbatch; write it as --sbatch=--partition=gpu"));
    }
  }
  std::string script = absl::StrCat(
      "#!/bin/bash\n"
      "# Made by millrace submit; docs/cluster.md explains it.\n"
      "#SBATCH --job-name=",
      options.job_name, "\n#SBATCH --nodes=", options.num_nodes,
      "\n#SBATCH --ntasks-per-node=1\n"
      "#SBATCH --exclusive\n"
      "#SBATCH --output=",
      options.job_name,
      "-%j.out\n"
      "#SBATCH --open-mode=append\n");
  if (options.gpus_per_node > 0) {
    absl::StrAppend(&script, "#SBATCH --gpus-per-node=", options.gpus_per_node,
                    "\n");
  }
  if (!options.time_limit.empty()) {
    absl::StrAppend(&script, "#SBATCH --time=", options.time_limit, "\n");
  }
  if (options.requeue) {
    absl::StrAppend(&script,
                    "#SBATCH --requeue\n"
                    "#SBATCH --signal=USR1@",
                    absl::ToInt64Seconds(options.warning), "\n");
  } else {
    // It would begin again at its first step.
    absl::StrAppend(&script, "#SBATCH --no-requeue\n");
  }
  for (const std::string& option : options.sbatch_options) {
    absl::StrAppend(&script, "#SBATCH ", option, "\n");
  }
  absl::StrAppend(
      &script, "\ncd ", QuotedForShell(options.directory),
      " || exit 1\n"
      "# Agents that srun starts without PMIx know each other by it.\n"
      "export ",
      kSecretVariable,
      "=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')\n"
      "srun --cpu-bind=none --kill-on-bad-exit=0 ",
      QuotedForShell(options.program), " agent ",
      QuotedForShell(options.job_file), "\n");
  if (options.requeue) {
    absl::StrAppend(&script,
                    "code=$?\n"
                    "# Slurm's warning came first: there is a checkpoint, and "
                    "more to train.\n"
                    "if [ $code = ",
                    kRequeueExitCode,
                    " ]; then scontrol requeue \"$SLURM_JOB_ID\"; fi\n"
                    "exit $code\n");
  }
  return script;
}

}  // namespace millrace

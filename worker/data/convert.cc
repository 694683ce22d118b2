#include "worker/data/convert.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file_lock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/data/converted_shard.h"
#include "worker/data/encode_records.h"
#include "worker/data/hasher.h"
#include "worker/data/sample_batches.h"

namespace millrace {
namespace {

constexpr int64_t kShardBytes = 64 * kMiB;
// More files would be mapped than a kernel allows a process by default.
constexpr int64_t kMaxShards = 1024;

struct Shard {
  std::vector<RecordPart> parts;
  int64_t num_bytes = 0;
};

struct ShardPlan {
  std::vector<Shard> shards;
  TextSkips skips;  // Files without a record.
};

std::string ShardPrefix(const std::string& folder, size_t shard_idx) {
  return absl::StrFormat("%s/tokens-%05d", folder, shard_idx);
}

std::string SummaryPath(const std::string& folder) {
  return absl::StrCat(folder, "/prepared.json");
}

// The same in every process.
absl::StatusOr<ShardPlan> PlanShards(const DataSource& source,
                                     const ConvertOptions& options) {
  const int64_t shard_bytes =
      options.shard_bytes > 0
          ? options.shard_bytes
          : std::max(kShardBytes, source.num_bytes() / kMaxShards + 1);
  ShardPlan plan;
  for (const SourceFile& file : source.files) {
    ASSIGN_OR_RETURN(std::vector<RecordPart> parts,
                     CutIntoParts(file.file, file.format, shard_bytes));
    if (parts.empty()) {
      CountSkip(TextVerdict::kEmpty, file.file.path, &plan.skips);
    }
    for (RecordPart& part : parts) {
      if (plan.shards.empty() ||
          plan.shards.back().num_bytes + part.num_bytes > shard_bytes) {
        plan.shards.emplace_back();
      }
      plan.shards.back().num_bytes += part.num_bytes;
      plan.shards.back().parts.push_back(std::move(part));
    }
  }
  return plan;
}

// Removes the files that a killed process left of a shard. The caller holds the
// shard's lock.
void RemoveLeftOvers(const std::string& prefix) {
  const std::filesystem::path path(prefix);
  const std::string name = path.filename().string();
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(path.parent_path(), error)) {
    const std::string found = entry.path().filename().string();
    if (absl::StartsWith(found, name + ".bin.tmp.") ||
        absl::StartsWith(found, TrainedPrefix(name) + ".bin.tmp.")) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}

void AddSkips(const TextSkips& skips, TextSkips* total) {
  total->unreadable += skips.unreadable;
  total->binary += skips.binary;
  total->invalid_utf8 += skips.invalid_utf8;
  total->empty += skips.empty;
  if (total->example.empty()) total->example = skips.example;
}

void AddShard(const std::string& prefix, const ConvertedShard& shard,
              Converted* total) {
  total->prefixes.push_back(prefix);
  total->num_tokens += shard.num_tokens;
  total->num_documents += shard.num_documents;
  total->num_empty += shard.num_empty;
  if (shard.num_trained_tokens.has_value()) {
    total->num_trained_tokens =
        total->num_trained_tokens.value_or(0) + *shard.num_trained_tokens;
  }
  AddSkips(shard.skips, &total->skips);
  if (total->broken.count == 0) {
    total->broken = shard.broken;
  } else {
    total->broken.count += shard.broken.count;
  }
}

absl::Status NothingUsable(const DataSource& source,
                           const Converted& converted) {
  std::vector<std::string> reasons;
  if (converted.skips.total() > 0) {
    reasons.push_back(DescribeSkips(converted.skips));
  }
  if (converted.num_empty > 0) {
    reasons.push_back(absl::StrCat(converted.num_empty, " empty records"));
  }
  if (converted.broken.count > 0) {
    reasons.push_back(DescribeBroken(converted.broken));
  }
  const size_t num_files = source.files.size();
  const bool is_text = std::ranges::all_of(source.files, [](const auto& file) {
    return file.format == RecordFormat::kText;
  });
  return absl::InvalidArgumentError(absl::StrCat(
      source.key, ": ", num_files, num_files == 1 ? " file" : " files",
      " matched, ",
      is_text ? "none of them usable text" : "without a single usable record",
      reasons.empty() ? "" : ": ", absl::StrJoin(reasons, "; "),
      is_text ? "" : "; name others, or remove the source"));
}

absl::Status NothingTrained(const DataSource& source,
                            const Converted& converted) {
  return absl::InvalidArgumentError(absl::StrCat(
      source.key, ": 0 trained tokens in ", converted.num_documents,
      " samples of ", source.name, ", with train_on: ", source.train_on,
      source.train_on == "completion"
          ? "; conversations that end with another role than assistant train "
            "nothing then: take assistant, or mend the data"
          : "; no record has a message of the role assistant: mend the roles, "
            "or take train_on: all"));
}

// Converts those shards of a source that nobody else converts.
class Converter {
 public:
  Converter(const DataSource& source, const RecordEncoder& encoder,
            const ConvertOptions& options)
      : source_(source), encoder_(encoder), options_(options) {}

  absl::StatusOr<Converted> Run() {
    RETURN_IF_ERROR(MakeDirectories(options_.folder));
    ASSIGN_OR_RETURN(const ShardPlan plan, PlanShards(source_, options_));
    std::vector<std::optional<ConvertedShard>> done(plan.shards.size());
    for (size_t i = 0; i < plan.shards.size(); ++i) {
      absl::StatusOr<ConvertedShard> made =
          LoadShard(ShardPrefix(options_.folder, i));
      if (!made.ok()) continue;
      RETURN_IF_ERROR(Count(plan.shards[i], *made));
      done[i] = *std::move(made);
    }
    Report(0);
    // First all that is free, then what others have not finished: they may have
    // been killed meanwhile.
    for (const bool waits : {false, true}) {
      for (size_t i = 0; i < plan.shards.size(); ++i) {
        if (done[i].has_value()) continue;
        ASSIGN_OR_RETURN(done[i], Obtain(i, plan.shards[i], waits));
        if (!done[i].has_value()) continue;
        RETURN_IF_ERROR(Count(plan.shards[i], *done[i]));
        Report(0);
      }
    }
    Converted total{.skips = plan.skips};
    Hasher hasher;
    for (size_t i = 0; i < done.size(); ++i) {
      AddShard(ShardPrefix(options_.folder, i), *done[i], &total);
      hasher.AddNumber(static_cast<int64_t>(done[i]->fingerprint));
    }
    total.fingerprint = hasher.Digest();
    if (total.num_documents == 0) return NothingUsable(source_, total);
    if (total.num_trained_tokens == 0) return NothingTrained(source_, total);
    total.num_shards_made = num_made_;
    RETURN_IF_ERROR(WriteShared(options_.folder, SummaryPath(options_.folder),
                                ConvertedToText(total)));
    RemoveLocks(done.size());
    return total;
  }

 private:
  void Report(int64_t bytes_of_shard) const {
    if (options_.progress) options_.progress(done_bytes_ + bytes_of_shard);
  }

  absl::Status Count(const Shard& shard, const ConvertedShard& made) {
    done_bytes_ += shard.num_bytes;
    num_broken_ += made.broken.count;
    if (num_broken_ <= options_.max_broken) return absl::OkStatus();
    return TooManyBroken(source_.key, made.broken, num_broken_,
                         options_.max_broken);
  }

  // The shard, made here unless it is there already; nullopt if another process
  // is making it and this one is not to wait.
  absl::StatusOr<std::optional<ConvertedShard>> Obtain(size_t shard_idx,
                                                       const Shard& shard,
                                                       bool waits) {
    const std::string prefix = ShardPrefix(options_.folder, shard_idx);
    absl::StatusOr<ConvertedShard> made = LoadShard(prefix);
    if (made.ok()) return *std::move(made);
    const std::string lock_path = absl::StrCat(prefix, ".lock");
    absl::StatusOr<FileLock> lock =
        FileLock::Acquire(lock_path, absl::ZeroDuration());
    if (absl::IsDeadlineExceeded(lock.status())) {
      if (!waits) return std::nullopt;
      if (options_.waiting) options_.waiting();
      lock = FileLock::Acquire(lock_path, absl::InfiniteDuration());
    }
    RETURN_IF_ERROR(lock.status());
    made = LoadShard(prefix);  // Another may have made it meanwhile.
    if (made.ok()) return *std::move(made);
    RemoveLeftOvers(prefix);
    ++num_made_;
    ASSIGN_OR_RETURN(ConvertedShard converted,
                     EncodeRecords(shard.parts, encoder_,
                                   {.prefix = prefix,
                                    .source_key = source_.key,
                                    .vocab_size = options_.vocab_size,
                                    .num_threads = options_.num_threads,
                                    .num_broken_before = num_broken_,
                                    .max_broken = options_.max_broken,
                                    .progress = [&](int64_t bytes) {
                                      Report(std::min(bytes, shard.num_bytes));
                                    }}));
    RETURN_IF_ERROR(SaveShard(prefix, converted));
    return converted;
  }

  // Nobody needs the locks of shards that are there. A process that waits for
  // one finds the shard when it gets it.
  void RemoveLocks(size_t num_shards) const {
    std::error_code ignored;
    for (size_t i = 0; i < num_shards; ++i) {
      std::filesystem::remove(
          absl::StrCat(ShardPrefix(options_.folder, i), ".lock"), ignored);
    }
  }

  const DataSource& source_;
  const RecordEncoder& encoder_;
  const ConvertOptions& options_;
  int64_t done_bytes_ = 0;
  int64_t num_broken_ = 0;
  int64_t num_made_ = 0;
};

}  // namespace

std::string DescribeBroken(const BrokenRecords& broken) {
  if (broken.count == 0) return "";
  return absl::StrCat(
      broken.count, " broken record", broken.count == 1 ? "" : "s",
      " left out (first: ", DescribePlace(broken.first), ": ", broken.why, ")");
}

absl::Status TooManyBroken(const std::string& source_key,
                           const BrokenRecords& example, int64_t count,
                           int64_t max_broken) {
  return absl::InvalidArgumentError(
      absl::StrCat(source_key, ": ", count, " broken record",
                   count == 1 ? "" : "s", ", and data.broken_records allows ",
                   max_broken, "; mend the data or allow more. The first: ",
                   DescribePlace(example.first), ": ", example.why));
}

absl::Status WriteShared(const std::string& folder, const std::string& path,
                         absl::string_view content) {
  ASSIGN_OR_RETURN(const FileLock lock,
                   FileLock::Acquire(absl::StrCat(folder, "/write.lock"),
                                     absl::InfiniteDuration()));
  return WriteFileAtomically(path, content);
}

absl::StatusOr<Converted> LoadConverted(const std::string& folder) {
  const std::string path = SummaryPath(folder);
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  ASSIGN_OR_RETURN(Converted converted, ConvertedFromText(path, text));
  int64_t num_tokens = 0;
  for (const std::string& prefix : converted.prefixes) {
    ASSIGN_OR_RETURN(const ConvertedShard shard, LoadShard(prefix));
    num_tokens += shard.num_tokens;
  }
  if (num_tokens != converted.num_tokens) {
    return absl::DataLossError(
        absl::StrCat(path, ": does not fit the files beside it"));
  }
  return converted;
}

absl::StatusOr<Converted> ConvertSource(const DataSource& source,
                                        const RecordEncoder& encoder,
                                        const ConvertOptions& options) {
  return Converter(source, encoder, options).Run();
}

}  // namespace millrace

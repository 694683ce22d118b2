#include "worker/train/references.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/job/job_file.h"
#include "worker/data/hasher.h"
#include "worker/train/starting_weights.h"

namespace millrace {
namespace {

constexpr int64_t kAnswers = 2;  // In a pair.
// Changes with the meaning of the numbers.
constexpr absl::string_view kReferencesVersion = "references 2";
constexpr int64_t kMaxReferencesBytes = int64_t{1} << 34;

// Names, sizes and times of the folder's files of weights. The fingerprint
// follows from names, sizes and headers, which all exports of one model share.
std::string WeightFilesOf(const std::string& folder) {
  std::vector<std::string> files;
  namespace fs = std::filesystem;
  std::error_code error, no_figure;
  for (fs::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() != ".safetensors") continue;
    files.push_back(absl::StrCat(
        at->path().filename().string(), " ", at->file_size(no_figure), " ",
        at->last_write_time(no_figure).time_since_epoch().count()));
  }
  std::sort(files.begin(), files.end());
  return absl::StrJoin(files, "\n");
}

// A text that decides the weights that training starts from.
std::string StartingWeightsKey(const JobSpec& job) {
  if (!job.model_from.empty()) {
    return absl::StrCat(job.model_fingerprint, "\n",
                        WeightFilesOf(job.model_from));
  }
  JobSpec model;
  model.model = job.model;
  model.training.seed = job.training.seed;
  return JobToYaml(model);
}

uint64_t ChecksumOf(const std::vector<float>& references) {
  Hasher hasher;
  hasher.Add(references.data(), references.size() * sizeof(float));
  return hasher.Digest();
}

// Runs over all pairs of a source.
absl::StatusOr<std::vector<float>> ComputeReferences(const JobSpec& job,
                                                     const Layout& layout,
                                                     Trainer& trainer,
                                                     PairSource& pairs) {
  const int64_t length = job.model.sequence_length;
  const int64_t of_pass = int64_t{layout.micro_batch} * layout.data;
  const int64_t num_sequences = pairs.num_pair_sequences();
  std::vector<float> references(
      static_cast<size_t>(kAnswers * pairs.num_pairs()));
  for (int64_t first = 0; first < num_sequences; first += of_pass) {
    ASSIGN_OR_RETURN(const AnswerPass pass,
                     trainer.RunAnswerPass(first / of_pass + 1,
                                           /*vote=*/false));
    if (pass.log_probabilities.empty()) continue;  // Another stage has them.
    const int64_t end = std::min(first + of_pass, num_sequences);
    for (int64_t number = first; number < end; ++number) {
      const float* const of_sequence =
          pass.log_probabilities.data() + (number - first) * length;
      for (const PairSource::Place& place : pairs.PlacesOf(number)) {
        float* const of_pair = references.data() + kAnswers * place.pair_idx;
        of_pair[0] = of_sequence[place.chosen_begin];
        of_pair[1] = of_sequence[place.rejected_begin];
        if (std::isfinite(of_pair[0]) && std::isfinite(of_pair[1])) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "an answer of pair ", place.pair_idx + 1, " of ",
            pairs.pair_prefixes().front(),
            " has no finite log-probability under the weights that training "
            "starts from; look at model.from"));
      }
    }
  }
  return references;
}

}  // namespace

std::string ReferencePath(const JobSpec& job, const PairSource& pairs) {
  Hasher hasher;
  hasher.AddString(kReferencesVersion);
  hasher.AddString(StartingWeightsKey(job));
  hasher.AddString(job.training.precision);
  hasher.AddNumber(job.model.sequence_length);
  hasher.AddNumber(pairs.num_pairs());
  for (const std::string& prefix : pairs.pair_prefixes()) {
    hasher.AddString(prefix);
  }
  const std::filesystem::path first(pairs.pair_prefixes().front());
  return absl::StrFormat(
      "%s/references-%016x",
      first.parent_path().empty() ? "." : first.parent_path().string(),
      hasher.Digest());
}

absl::Status WriteReferences(const std::string& path, int32_t writer,
                             const std::vector<float>& references) {
  const uint64_t checksum = ChecksumOf(references);
  std::string content(reinterpret_cast<const char*>(&checksum),
                      sizeof(checksum));
  content.append(reinterpret_cast<const char*>(references.data()),
                 references.size() * sizeof(float));
  // Processes of several hosts may have one number.
  const std::string own = absl::StrCat(path, ".rank", writer);
  RETURN_IF_ERROR(WriteFileAtomically(own, content));
  std::error_code error;
  std::filesystem::rename(own, path, error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cannot rename ", own, " to ", path, ": ", error.message()));
}

absl::StatusOr<std::vector<float>> ReadReferences(const std::string& path,
                                                  int64_t num_pairs) {
  ASSIGN_OR_RETURN(const std::string content,
                   ReadFile(path, kMaxReferencesBytes));
  uint64_t checksum = 0;
  std::vector<float> references(static_cast<size_t>(kAnswers * num_pairs));
  const size_t num_bytes = references.size() * sizeof(float);
  if (content.size() == sizeof(checksum) + num_bytes) {
    std::memcpy(&checksum, content.data(), sizeof(checksum));
    std::memcpy(references.data(), content.data() + sizeof(checksum),
                num_bytes);
    if (checksum == ChecksumOf(references)) return references;
  }
  return absl::DataLossError(absl::StrCat(
      path, ": not the references of ", num_pairs, " pairs; it is made anew"));
}

absl::StatusOr<bool> PrepareReferences(const JobSpec& job, const Layout& layout,
                                       Rank rank, Trainer& trainer,
                                       EvaluationBatches& batches) {
  const MeshCoordinates place = CoordinatesOf(layout, rank);
  const bool writes =
      place.pipeline == layout.pipeline - 1 && place.tensor == 0;
  bool has_starting_weights = false;
  for (PairSource* const pairs : batches.PairSources()) {
    const std::string path = ReferencePath(job, *pairs);
    absl::StatusOr<std::vector<float>> references =
        ReadReferences(path, pairs->num_pairs());
    if (absl::IsDataLoss(references.status())) {
      std::cerr << references.status().message() << std::endl;
    }
    // The pass carries the vote alone, so any weights will do.
    batches.SelectPairs(*pairs);
    absl::StatusOr<AnswerPass> votes =
        trainer.RunAnswerPass(1, /*vote=*/!references.ok());
    if (votes.ok() && votes->vote) {
      const double began_s = MonotonicSeconds();
      if (!has_starting_weights) {
        RETURN_IF_ERROR(LoadStartingWeights(job, &trainer));
        has_starting_weights = true;
      }
      references = ComputeReferences(job, layout, trainer, *pairs);
      if (references.ok() && writes) {
        const absl::Status written =
            WriteReferences(path, ToInt(rank), *references);
        if (!written.ok()) {
          std::cerr << "log-probabilities are not kept, so a restart computes "
                       "them again: "
                    << written.message() << std::endl;
        }
      }
      if (references.ok() && writes && place.data == 0) {
        std::cerr << absl::StrFormat(
                         "log-probabilities of %d pairs under the starting "
                         "weights computed in %.1f s: %s",
                         pairs->num_pairs(), MonotonicSeconds() - began_s, path)
                  << std::endl;
      }
    }
    batches.SelectValidation();
    RETURN_IF_ERROR(votes.status());
    RETURN_IF_ERROR(references.status());
    pairs->SetReferences(*std::move(references));
  }
  return has_starting_weights;
}

}  // namespace millrace

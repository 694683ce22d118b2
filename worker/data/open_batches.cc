#include "worker/data/open_batches.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/data/mixed_batches.h"
#include "worker/data/open_samples.h"
#include "worker/data/random_batches.h"

namespace millrace {
namespace {

// Where the order of sources begins, for validation: the same for every seed.
constexpr uint64_t kValidationKey = 0;

std::string SourceKey(const JobSpec& job, size_t source_idx) {
  if (!job.data.text.empty()) return "data.text";
  if (!job.data.indexed.empty()) return "data.indexed";
  return absl::StrCat("data.sources[", source_idx, "]");
}

std::vector<double> WeightsOf(const JobSpec& job) {
  std::vector<double> weights;
  for (const DataSourceSpec& source : job.data.sources) {
    weights.push_back(source.weight);
  }
  if (weights.empty()) weights.push_back(1);
  return weights;
}

absl::StatusOr<Mixture> TrainingMixture(const JobSpec& job) {
  // Seeds that follow each other begin far from each other.
  return Mixture::Make(WeightsOf(job), job.training.seed * 0x9E3779B97F4A7C15);
}

absl::StatusOr<std::vector<std::unique_ptr<SampleDataset>>> OpenSources(
    const JobSpec& job,
    const std::vector<std::vector<std::string>>& prefixes_by_source) {
  std::vector<std::unique_ptr<SampleDataset>> datasets;
  for (size_t i = 0; i < prefixes_by_source.size(); ++i) {
    absl::StatusOr<std::unique_ptr<SampleDataset>> dataset = OpenSamples(
        job, {.prefixes = prefixes_by_source[i],
              .source = i < job.data.sources.size() ? job.data.sources[i]
                                                    : DataSourceSpec(),
              .validation_fraction = job.data.validation_fraction,
              .seed = job.training.seed});
    if (!dataset.ok() && prefixes_by_source.size() > 1) {
      return absl::Status(
          dataset.status().code(),
          absl::StrCat(SourceKey(job, i), ": ", dataset.status().message()));
    }
    RETURN_IF_ERROR(dataset.status());
    datasets.push_back(*std::move(dataset));
  }
  return datasets;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchSource>> OpenBatches(
    const JobSpec& job,
    const std::vector<std::vector<std::string>>& prefixes_by_source) {
  if (job.data.synthetic) {
    return std::make_unique<RandomBatches>(
        RandomBatchesOptions{.vocab_size = job.model.vocab_size,
                             .sequence_length = job.model.sequence_length,
                             .seed = job.training.seed});
  }
  const std::vector<double> weights = WeightsOf(job);
  if (prefixes_by_source.size() != weights.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job has ", weights.size(), " sources of data, but token files of ",
        prefixes_by_source.size(), " are given"));
  }
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<SampleDataset>> datasets,
                   OpenSources(job, prefixes_by_source));
  if (datasets.size() == 1) return std::move(datasets.front());
  ASSIGN_OR_RETURN(Mixture training, TrainingMixture(job));
  ASSIGN_OR_RETURN(Mixture validation, Mixture::Make(weights, kValidationKey));
  std::vector<MixedSource> sources;
  for (size_t i = 0; i < datasets.size(); ++i) {
    std::vector<PairSource*> pairs = datasets[i]->PairSources();
    sources.push_back(
        {SourceKey(job, i), std::move(datasets[i]), std::move(pairs)});
  }
  return std::make_unique<MixedBatches>(std::move(sources), std::move(training),
                                        std::move(validation),
                                        job.model.sequence_length);
}

absl::StatusOr<std::unique_ptr<BatchSource>> PrepareAndOpenBatches(
    const JobSpec& job, int32_t num_threads) {
  ASSIGN_OR_RETURN(const PreparedData data,
                   PrepareData({.data = job.data,
                                .vocab_size = job.model.vocab_size,
                                .num_threads = num_threads}));
  return OpenBatches(job, PrefixesBySource(data));
}

absl::StatusOr<std::string> DescribeEpochs(const JobSpec& job,
                                           const PreparedData& data) {
  ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<SampleDataset>> datasets,
                   OpenSources(job, PrefixesBySource(data)));
  ASSIGN_OR_RETURN(const Mixture mixture, TrainingMixture(job));
  const int64_t total = job.training.num_steps * job.training.global_batch;
  size_t width = 6;
  double sum = 0;
  for (const PreparedSource& source : data.sources) {
    width = std::max(width, source.name.size());
    sum += source.weight;
  }
  std::string table = absl::StrFormat(
      "%-*s  %9s  %9s  %7s  %9s  %7s\n", static_cast<int>(width), "source",
      "records", "tokens", "weight", "samples", "epochs");
  for (size_t i = 0; i < data.sources.size(); ++i) {
    const PreparedSource& source = data.sources[i];
    const int64_t num_drawn = mixture.NumBefore(i, total);
    const auto count = [](int64_t value) {
      return FormatCount(static_cast<double>(value));
    };
    absl::StrAppendFormat(
        &table, "%-*s  %9s  %9s  %5.1f %%  %9s  %7.3g\n",
        static_cast<int>(width), source.name, count(source.num_documents),
        count(source.num_tokens), 100 * source.weight / sum, count(num_drawn),
        static_cast<double>(num_drawn) /
            static_cast<double>(
                datasets[i]->num_samples(DataSplit::kTraining)));
  }
  for (size_t i = 0; i < data.sources.size(); ++i) {
    const std::string samples = datasets[i]->Describe();
    if (samples.empty()) continue;
    absl::StrAppend(&table, data.sources[i].name, ": ", samples, "\n");
  }
  return table;
}

std::vector<std::string> PrefixesToArguments(
    const std::vector<std::vector<std::string>>& prefixes_by_source) {
  std::vector<std::string> arguments;
  for (size_t i = 0; i < prefixes_by_source.size(); ++i) {
    for (const std::string& prefix : prefixes_by_source[i]) {
      arguments.push_back(absl::StrCat(i, ":", prefix));
    }
  }
  return arguments;
}

absl::StatusOr<std::vector<std::vector<std::string>>> PrefixesFromArguments(
    const std::vector<std::string>& arguments) {
  std::vector<std::vector<std::string>> prefixes;
  for (const std::string& argument : arguments) {
    const size_t colon = argument.find(':');
    size_t source_idx = 0;
    // Sources come in their order, so each argument belongs to the last source
    // or begins the next one.
    if (colon == argument.npos ||
        !absl::SimpleAtoi(argument.substr(0, colon), &source_idx) ||
        (source_idx + 1 != prefixes.size() && source_idx != prefixes.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--data-prefix ", argument,
                       ": expected SOURCE:PREFIX, sources in their order"));
    }
    prefixes.resize(source_idx + 1);
    prefixes.back().push_back(argument.substr(colon + 1));
  }
  return prefixes;
}

}  // namespace millrace

#include "worker/data/encode_records.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/data/hasher.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/sample_batches.h"

namespace millrace {
namespace {

// Records in memory at once, for each thread: a third of a second's work. Two
// windows are there at a time.
constexpr int64_t kWindowBytes = 4 * kMiB;

// Writes documents, and which of their tokens are trained where the encoder
// marks it.
class DocumentWriter {
 public:
  static absl::StatusOr<DocumentWriter> Create(const std::string& prefix,
                                               int64_t vocab_size,
                                               bool marks_trained) {
    DocumentWriter writer;
    if (marks_trained) {
      ASSIGN_OR_RETURN(SampleWriter samples,
                       SampleWriter::Create(prefix, vocab_size));
      writer.samples_.emplace(std::move(samples));
    } else {
      ASSIGN_OR_RETURN(
          IndexedDatasetWriter texts,
          IndexedDatasetWriter::Create(prefix, NarrowestTokenType(vocab_size)));
      writer.texts_.emplace(std::move(texts));
    }
    return writer;
  }

  absl::Status Add(const EncodedRecord& record) {
    if (record.num_chosen_tokens > 0) {
      const size_t num_chosen = record.num_chosen_tokens;
      const auto tokens = absl::MakeConstSpan(record.tokens);
      const auto trained = absl::MakeConstSpan(record.trained);
      RETURN_IF_ERROR(
          samples_->Add(tokens.first(num_chosen), trained.first(num_chosen)));
      return samples_->Add(tokens.subspan(num_chosen),
                           trained.subspan(num_chosen));
    }
    return samples_.has_value() ? samples_->Add(record.tokens, record.trained)
                                : texts_->AddDocument(record.tokens);
  }
  absl::Status Finish() {
    return samples_.has_value() ? samples_->Finish() : texts_->Finish();
  }

 private:
  std::optional<IndexedDatasetWriter> texts_;
  std::optional<SampleWriter> samples_;
};

// The records of several parts, one part after the other.
class PartsReader {
 public:
  PartsReader(const std::vector<RecordPart>& parts,
              std::vector<std::string> columns)
      : parts_(parts), columns_(std::move(columns)) {}

  // Records of about `num_bytes`; none at the end.
  absl::StatusOr<std::vector<Record>> ReadWindow(int64_t num_bytes) {
    std::vector<Record> window;
    while (num_bytes > 0) {
      if (reader_ == nullptr) {
        if (part_idx_ == parts_.size()) break;
        ASSIGN_OR_RETURN(reader_, OpenRecords(parts_[part_idx_++], columns_));
      }
      ASSIGN_OR_RETURN(std::optional<Record> record, reader_->Next());
      if (!record.has_value()) {
        reader_ = nullptr;
        continue;
      }
      // A record costs something besides its text.
      num_bytes -= record->num_bytes() + int64_t{sizeof(Record)};
      window.push_back(*std::move(record));
    }
    return window;
  }

 private:
  const std::vector<RecordPart>& parts_;
  const std::vector<std::string> columns_;
  size_t part_idx_ = 0;
  std::unique_ptr<RecordReader> reader_;
};

class ShardEncoder {
 public:
  ShardEncoder(const RecordEncoder& encoder, const EncodeOptions& options)
      : encoder_(encoder), options_(options) {
    if (encoder.marks_trained()) shard_.num_trained_tokens = 0;
  }

  absl::StatusOr<ConvertedShard> Run(const std::vector<RecordPart>& parts) {
    ASSIGN_OR_RETURN(
        DocumentWriter writer,
        DocumentWriter::Create(options_.prefix, options_.vocab_size,
                               encoder_.marks_trained()));
    PartsReader reader(parts, encoder_.columns());
    const int64_t window_bytes = kWindowBytes * options_.num_threads;
    const auto read = [&] { return reader.ReadWindow(window_bytes); };
    ASSIGN_OR_RETURN(std::vector<Record> window, read());
    while (!window.empty()) {
      auto next = std::async(std::launch::async, read);
      std::vector<EncodedRecord> encoded(window.size());
      EncodeWindow(&window, &encoded);
      absl::Status written = WriteWindow(window, encoded, &writer);
      absl::StatusOr<std::vector<Record>> following = next.get();
      RETURN_IF_ERROR(written);
      RETURN_IF_ERROR(following.status());
      window = *std::move(following);
    }
    RETURN_IF_ERROR(writer.Finish());
    shard_.fingerprint = hasher_.Digest();
    return std::move(shard_);
  }

 private:
  void EncodeWindow(std::vector<Record>* window,
                    std::vector<EncodedRecord>* encoded) {
    std::atomic<size_t> next = 0;
    const auto work = [&](bool reports) {
      for (size_t i = next++; i < window->size(); i = next++) {
        EncodeOne(&(*window)[i], &(*encoded)[i]);
        done_bytes_ += (*window)[i].num_bytes();
        if (reports && options_.progress) options_.progress(done_bytes_);
      }
    };
    std::vector<std::thread> helpers;
    for (int32_t i = 1; i < options_.num_threads; ++i) {
      helpers.emplace_back(work, false);
    }
    work(true);
    for (std::thread& helper : helpers) helper.join();
  }

  void EncodeOne(Record* record, EncodedRecord* encoded) const {
    encoded->verdict = record->verdict();
    if (encoded->verdict == TextVerdict::kText) {
      encoder_.Encode(record, encoded);
    }
  }

  absl::Status WriteWindow(const std::vector<Record>& window,
                           const std::vector<EncodedRecord>& encoded,
                           DocumentWriter* writer) {
    for (size_t i = 0; i < window.size(); ++i) {
      const EncodedRecord& one = encoded[i];
      const RecordPlace& place = window[i].place();
      if (!one.status.ok()) {
        return absl::Status(
            one.status.code(),
            absl::StrCat(DescribePlace(place), ": ", one.status.message()));
      }
      CountSkip(one.verdict, place.path, &shard_.skips);
      if (one.verdict != TextVerdict::kText) continue;
      if (one.is_empty) {
        ++shard_.num_empty;
        continue;
      }
      if (!one.broken.empty()) {
        RETURN_IF_ERROR(CountBroken(place, one.broken));
        continue;
      }
      RETURN_IF_ERROR(writer->Add(one));
      hasher_.Add(one.tokens.data(), one.tokens.size() * sizeof(int32_t));
      if (encoder_.makes_pairs()) {
        hasher_.AddNumber(static_cast<int64_t>(one.num_chosen_tokens));
      }
      if (encoder_.marks_trained()) {
        hasher_.Add(one.trained.data(), one.trained.size());
        *shard_.num_trained_tokens +=
            std::count(one.trained.begin(), one.trained.end(), 1);
      }
      shard_.num_tokens += static_cast<int64_t>(one.tokens.size());
      ++shard_.num_documents;
    }
    return absl::OkStatus();
  }

  absl::Status CountBroken(const RecordPlace& place, const std::string& why) {
    BrokenRecords& broken = shard_.broken;
    if (broken.count++ == 0) {
      broken.first = place;
      broken.why = why;
    }
    const int64_t total = options_.num_broken_before + broken.count;
    if (total <= options_.max_broken) return absl::OkStatus();
    return TooManyBroken(options_.source_key, broken, total,
                         options_.max_broken);
  }

  const RecordEncoder& encoder_;
  const EncodeOptions& options_;
  std::atomic<int64_t> done_bytes_ = 0;
  ConvertedShard shard_;
  Hasher hasher_;
};

}  // namespace

absl::StatusOr<ConvertedShard> EncodeRecords(
    const std::vector<RecordPart>& parts, const RecordEncoder& encoder,
    const EncodeOptions& options) {
  return ShardEncoder(encoder, options).Run(parts);
}

}  // namespace millrace

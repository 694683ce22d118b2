#include "worker/data/sentencepiece_door.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <exception>
#include <unordered_map>

namespace millrace {
namespace {

class SentenceList : public sentencepiece::SentenceIterator {
 public:
  explicit SentenceList(const std::vector<std::string>& sentences)
      : sentences_(sentences) {}
  bool done() const override { return idx_ >= sentences_.size(); }
  void Next() override { ++idx_; }
  const std::string& value() const override { return sentences_[idx_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& sentences_;
  size_t idx_ = 0;
};

// Calls `call`, which returns a SentencePiece status.
template <typename Call>
std::string MessageOf(const Call& call) {
  try {
    const sentencepiece::util::Status status = call();
    if (status.ok()) return "";
    const std::string message = status.message();
    return message.empty() ? "unknown error" : message;
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

std::string TrainSentencePiece(
    const std::vector<std::string>& sentences,
    const std::map<std::string, std::string>& options, std::string* model) {
  std::unordered_map<std::string, std::string> arguments(options.begin(),
                                                         options.end());
  // Three is above every level the library logs at. Its errors come back as a
  // status all the same.
  arguments.emplace("minloglevel", "3");
  SentenceList list(sentences);
  return MessageOf([&] {
    return sentencepiece::SentencePieceTrainer::Train(arguments, &list, model);
  });
}

class SentencePieceDoor::Impl {
 public:
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceDoor::SentencePieceDoor() : impl_(std::make_unique<Impl>()) {}
SentencePieceDoor::~SentencePieceDoor() = default;

std::string SentencePieceDoor::Load(const std::string& model) {
  return MessageOf(
      [&] { return impl_->processor.LoadFromSerializedProto(model); });
}

int SentencePieceDoor::num_pieces() const {
  return impl_->processor.GetPieceSize();
}

int SentencePieceDoor::end_of_sentence() const {
  return impl_->processor.eos_id();
}

std::string SentencePieceDoor::Piece(int id) const {
  return impl_->processor.IdToPiece(id);
}

std::string SentencePieceDoor::Encode(const char* text, size_t num_bytes,
                                      std::vector<int32_t>* ids) const {
  std::vector<int> encoded;
  const std::string error = MessageOf([&] {
    return impl_->processor.Encode(absl::string_view(text, num_bytes),
                                   &encoded);
  });
  ids->insert(ids->end(), encoded.begin(), encoded.end());
  return error;
}

std::string SentencePieceDoor::Decode(const std::vector<int32_t>& ids,
                                      std::string* text) const {
  return MessageOf([&] {
    return impl_->processor.Decode(std::vector<int>(ids.begin(), ids.end()),
                                   text);
  });
}

}  // namespace millrace

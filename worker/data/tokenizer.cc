#include "worker/data/tokenizer.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/data/sentencepiece_door.h"

namespace millrace {
namespace {

// Sentences longer than this are dropped by the trainer.
constexpr size_t kMaxSentenceBytes = 64 << 10;
// Encoding works on a priority queue over all characters of its input, so long
// documents are cut at line ends into chunks that stay in cache.
constexpr size_t kChunkBytes = 16 << 10;
// Three control pieces and 256 bytes come before any piece of text.
constexpr int64_t kReservedPieces = 3 + 256;

// SentencePiece reports the largest vocabulary in the text of its error only.
absl::Status TrainingError(const std::string& message, int64_t vocab_size,
                           int64_t sample_bytes) {
  constexpr absl::string_view kLimit = "value <= ";
  const size_t at = message.find(kLimit.data(), 0, kLimit.size());
  int64_t largest = 0;
  if (at != std::string::npos) {
    const size_t begin = at + kLimit.size();
    const size_t end = message.find_first_not_of("0123456789", begin);
    if (absl::SimpleAtoi(absl::string_view(message).substr(begin, end - begin),
                         &largest)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "model.vocab_size is ", vocab_size, ", but ", sample_bytes,
          " bytes of text give a tokenizer of at most ", largest,
          " pieces: lower model.vocab_size to ", largest,
          " or less, or give more text in data.text"));
    }
  }
  if (absl::StrContains(message, "smaller than required_chars")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.vocab_size is ", vocab_size, ", less than the ", kReservedPieces,
        " reserved pieces and the text's characters need: raise it (", message,
        ")"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("SentencePiece cannot train a tokenizer of ", vocab_size,
                   " pieces on ", sample_bytes, " bytes of text: ", message));
}

std::map<std::string, std::string> TrainerArguments(int64_t vocab_size) {
  return {
      {"model_type", "bpe"},
      {"vocab_size", absl::StrCat(vocab_size)},
      {"byte_fallback", "true"},
      {"character_coverage", "0.9995"},
      // Text is data: nothing is rewritten, stripped or put before it.
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      // Indentation is a large part of code.
      {"allow_whitespace_only_pieces", "true"},
      {"max_sentence_length", absl::StrCat(kMaxSentenceBytes)},
      {"pad_id", "-1"},
      {"num_threads", "1"},
  };
}

}  // namespace

absl::StatusOr<std::string> TrainTokenizer(
    const std::vector<std::string>& sample, int64_t vocab_size) {
  int64_t sample_bytes = 0;
  for (const std::string& sentence : sample) {
    sample_bytes += static_cast<int64_t>(sentence.size());
  }
  if (sample_bytes == 0) {
    return absl::InvalidArgumentError(
        "there is no text to train a tokenizer on: data.text must match files "
        "that hold UTF-8 text");
  }
  if (vocab_size <= kReservedPieces) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.vocab_size is ", vocab_size,
                     ", but a tokenizer needs ", kReservedPieces,
                     " reserved pieces (256 bytes and 3 marks) and room "
                     "for text: raise it to 512 or more"));
  }
  std::string model;
  const std::string error =
      TrainSentencePiece(sample, TrainerArguments(vocab_size), &model);
  if (!error.empty()) return TrainingError(error, vocab_size, sample_bytes);
  return model;
}

size_t FirstChunkBytes(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text.size();
  const size_t line_end = text.rfind('\n', max_bytes - 1);
  if (line_end != absl::string_view::npos) return line_end + 1;
  size_t size = max_bytes;
  while (size > 1 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) {
    --size;
  }
  return size;
}

Tokenizer::~Tokenizer() = default;

namespace {

// The id of the piece that ends documents, or -1.
int32_t EndPieceOf(const SentencePieceDoor& door, const std::string& name) {
  if (name.empty()) return door.end_of_sentence();
  for (int id = 0; id < door.num_pieces(); ++id) {
    if (door.Piece(id) == name) return id;
  }
  return -1;
}

absl::Status TooManyPieces(const std::string& name, int64_t num_pieces,
                           int64_t vocab_size) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": the tokenizer has ", num_pieces,
                   " pieces, but model.vocab_size is ", vocab_size,
                   ": raise model.vocab_size to ", num_pieces, " or more"));
}

absl::Status NoSuchEnd(const TokenizerFiles& files) {
  return absl::InvalidArgumentError(absl::StrCat(
      files.name, ": the tokenizer has no token `", files.end_of_document,
      "`, which is to end each document: give one that it has in "
      "data.end_of_document"));
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceDoor> door,
                         int32_t end_of_document)
      : Tokenizer(end_of_document), door_(std::move(door)) {
    std::vector<int32_t> ids;
    std::string decoded;
    const std::string probe = "a\n  b \n";
    can_cut_ = door_->Encode(probe.data(), probe.size(), &ids).empty() &&
               door_->Decode(ids, &decoded).empty() && decoded == probe &&
               door_->Piece(ids[0])[0] == 'a';
  }

  int64_t num_pieces() const override { return door_->num_pieces(); }

  absl::Status EncodeDocument(absl::string_view text,
                              std::vector<int32_t>* tokens) const override {
    while (!text.empty()) {
      const size_t size =
          can_cut_ ? FirstChunkBytes(text, kChunkBytes) : text.size();
      const std::string error = door_->Encode(text.data(), size, tokens);
      if (!error.empty()) {
        return absl::InternalError(
            absl::StrCat("SentencePiece cannot encode: ", error));
      }
      text.remove_prefix(size);
    }
    tokens->push_back(end_of_document());
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Decode(
      const std::vector<int32_t>& tokens) const override {
    for (const int32_t token : tokens) {
      if (token < 0 || token >= num_pieces()) {
        return absl::InvalidArgumentError(
            absl::StrCat("token id ", token, " is outside the tokenizer's ",
                         num_pieces(), " pieces"));
      }
    }
    std::string text;
    const std::string error = door_->Decode(tokens, &text);
    if (!error.empty()) {
      return absl::InternalError(
          absl::StrCat("SentencePiece cannot decode: ", error));
    }
    return text;
  }

 private:
  std::unique_ptr<SentencePieceDoor> door_;
  // Encoding the parts of a text gives the same text as encoding the whole: not
  // so for models that put a space first or drop spaces.
  bool can_cut_;
};

class HuggingFaceTokenizer : public Tokenizer {
 public:
  HuggingFaceTokenizer(std::unique_ptr<JsonTokenizer> tokenizer,
                       int32_t end_of_document)
      : Tokenizer(end_of_document), tokenizer_(std::move(tokenizer)) {}

  int64_t num_pieces() const override { return tokenizer_->num_tokens(); }

  absl::Status EncodeDocument(absl::string_view text,
                              std::vector<int32_t>* tokens) const override {
    RETURN_IF_ERROR(
        tokenizer_->Encode(text, /*add_special_tokens=*/false, tokens));
    tokens->push_back(end_of_document());
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Decode(
      const std::vector<int32_t>& tokens) const override {
    for (const int32_t token : tokens) {
      if (token < 0 || token >= tokenizer_->id_limit()) {
        return absl::InvalidArgumentError(
            absl::StrCat("token id ", token, " is outside the tokenizer's ",
                         tokenizer_->id_limit(), " ids"));
      }
    }
    return tokenizer_->Decode(tokens);
  }

  const JsonTokenizer* json_tokenizer() const override {
    return tokenizer_.get();
  }

 private:
  std::unique_ptr<JsonTokenizer> tokenizer_;
};

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSentencePiece(
    const TokenizerFiles& files, int64_t vocab_size) {
  auto door = std::make_unique<SentencePieceDoor>();
  const std::string error = door->Load(files.content);
  if (!error.empty() || door->num_pieces() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        files.name, ": not a SentencePiece model (", error,
        ") and not a tokenizer.json; data.tokenizer must be `auto`, the path "
        "of a .model or tokenizer.json file, or of a folder with the latter"));
  }
  if (door->num_pieces() > vocab_size) {
    return TooManyPieces(files.name, door->num_pieces(), vocab_size);
  }
  const int32_t end = EndPieceOf(*door, files.end_of_document);
  if (end < 0 && !files.end_of_document.empty()) return NoSuchEnd(files);
  if (end < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        files.name,
        ": the tokenizer has no end-of-sentence piece (eos_id), which "
        "separates documents: train it with one, or name another in "
        "data.end_of_document"));
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(door), end);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeHuggingFace(
    const TokenizerFiles& files, int64_t vocab_size) {
  absl::StatusOr<std::unique_ptr<JsonTokenizer>> tokenizer =
      JsonTokenizer::Make(files.content);
  if (!tokenizer.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.name, ": ", tokenizer.status().message()));
  }
  if ((*tokenizer)->id_limit() > vocab_size) {
    return TooManyPieces(files.name, (*tokenizer)->id_limit(), vocab_size);
  }
  const int32_t end = (*tokenizer)->FindToken(files.end_of_document);
  if (end < 0) return NoSuchEnd(files);
  return std::make_unique<HuggingFaceTokenizer>(*std::move(tokenizer), end);
}

}  // namespace

bool IsTokenizerJson(absl::string_view content) {
  const size_t first = content.find_first_not_of(" \t\r\n");
  return first != content.npos && content[first] == '{';
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromFiles(
    const TokenizerFiles& files, int64_t vocab_size) {
  return IsTokenizerJson(files.content) ? MakeHuggingFace(files, vocab_size)
                                        : MakeSentencePiece(files, vocab_size);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromModel(
    absl::string_view model, const std::string& name, int64_t vocab_size) {
  return MakeSentencePiece({.name = name, .content = std::string(model)},
                           vocab_size);
}

}  // namespace millrace

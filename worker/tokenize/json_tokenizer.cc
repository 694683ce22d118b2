#include "worker/tokenize/json_tokenizer.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "worker/tokenize/added_tokens.h"
#include "worker/tokenize/byte_pairs.h"
#include "worker/tokenize/decoder.h"
#include "worker/tokenize/read_tokenizer.h"
#include "worker/tokenize/text_steps.h"
#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

// The state that one thread needs to encode.
struct EncodeScratch {
  RegexCursor cursor;
  BytePairScratch words;
  std::string normalized;
};

// The tokens to look for before normalizing, or after it in their normalized
// form. The last of several entries of one id counts.
absl::StatusOr<std::vector<AddedToken>> SearchedTokens(
    const TokenizerSpec& spec, const Normalizer& normalizer, bool normalized) {
  RegexCursor cursor;
  std::string storage;
  std::vector<AddedToken> searched;
  absl::flat_hash_set<int32_t> ids;
  absl::flat_hash_set<std::string> contents;
  for (auto token = spec.added_tokens.rbegin();
       token != spec.added_tokens.rend(); ++token) {
    if (!ids.insert(token->id).second || token->normalized != normalized) {
      continue;
    }
    searched.push_back(*token);
    if (!normalized) continue;
    ASSIGN_OR_RETURN(const absl::string_view content,
                     normalizer.Normalize(token->content, &cursor, &storage));
    searched.back().content = std::string(content);
    if (content.empty() || !contents.emplace(content).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "added_tokens: `", token->content, "` (id ", token->id, ") becomes `",
          content, "` when it is normalized, which is ",
          content.empty() ? "no text" : "another added token too"));
    }
  }
  return searched;
}

}  // namespace

class JsonTokenizer::Impl {
 public:
  Impl(TokenizerSpec spec, Normalizer normalizer, PreTokenizer pre_tokenizer,
       BytePairs pairs, Decoder decoder, std::vector<AddedToken> before,
       std::vector<AddedToken> after)
      : prefix_(std::move(spec.prefix)),
        suffix_(std::move(spec.suffix)),
        has_decoder_(spec.has_decoder),
        normalizer_(std::move(normalizer)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        pairs_(std::move(pairs)),
        decoder_(std::move(decoder)),
        before_(std::move(before)),
        after_(after) {
    for (auto& [piece, id] : spec.model.pieces) Register(piece, id);
    for (const AddedToken& token : spec.added_tokens) {
      Register(token.content, token.id);
    }
    for (const AddedToken& token : after) token_of_[token.id] = token.content;
  }

  int64_t num_tokens() const { return static_cast<int64_t>(token_of_.size()); }
  int64_t id_limit() const { return id_limit_; }
  int32_t FindToken(absl::string_view content) const {
    const auto found = id_of_.find(content);
    return found == id_of_.end() ? -1 : found->second;
  }

  // InvalidArgument for an id of the template that is no token's.
  absl::Status CheckTemplate() const {
    for (const std::vector<int32_t>& side : {prefix_, suffix_}) {
      for (const int32_t id : side) {
        if (!token_of_.contains(id)) {
          return absl::InvalidArgumentError(
              absl::StrCat("post_processor.special_tokens: the id ", id,
                           " is neither a piece's nor an added token's"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Encode(absl::string_view text, bool add_special_tokens,
                      std::vector<int32_t>* ids) {
    if (text.size() >= kMaxTextBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the text has ", text.size(), " bytes; one of ",
                       kMaxTextBytes, " or more cannot be encoded whole"));
    }
    std::unique_ptr<EncodeScratch> scratch = TakeScratch();
    absl::Status status;
    if (add_special_tokens) {
      ids->insert(ids->end(), prefix_.begin(), prefix_.end());
    }
    if (IsUtf8(text)) {
      status = EncodeText(text, scratch.get(), ids);
    } else {
      status = EncodeText(RepairUtf8(text), scratch.get(), ids);
    }
    if (add_special_tokens) {
      ids->insert(ids->end(), suffix_.begin(), suffix_.end());
    }
    GiveScratchBack(std::move(scratch));
    return status;
  }

  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids) const {
    std::vector<std::string> tokens;
    for (const int32_t id : ids) {
      const auto found = token_of_.find(id);
      if (found != token_of_.end()) tokens.push_back(found->second);
    }
    if (!has_decoder_) return absl::StrJoin(tokens, " ");
    return decoder_.Decode(std::move(tokens));
  }

 private:
  void Register(const std::string& content, int32_t id) {
    id_of_[content] = id;
    token_of_[id] = content;
    id_limit_ = std::max<int64_t>(id_limit_, int64_t{id} + 1);
  }

  absl::Status EncodeText(absl::string_view text, EncodeScratch* scratch,
                          std::vector<int32_t>* ids) const {
    absl::Status status;
    const auto add_id = [ids](int32_t id) {
      ids->push_back(id);
      return true;
    };
    before_.Split(
        text,
        [&](size_t begin, size_t end) {
          status = EncodeBetween(text.substr(begin, end - begin), begin == 0,
                                 scratch, ids);
          return status.ok();
        },
        add_id);
    return status;
  }

  // Text between those tokens that are looked for before normalizing.
  absl::Status EncodeBetween(absl::string_view text, bool at_begin,
                             EncodeScratch* scratch,
                             std::vector<int32_t>* ids) const {
    ASSIGN_OR_RETURN(
        const absl::string_view normal,
        normalizer_.Normalize(text, &scratch->cursor, &scratch->normalized));
    absl::Status status;
    after_.Split(
        normal,
        [&](size_t begin, size_t end) {
          status = pre_tokenizer_.Split(
              normal.substr(begin, end - begin), at_begin && begin == 0,
              &scratch->cursor, [&](absl::string_view word) {
                pairs_.Encode(word, &scratch->words, ids);
                return absl::OkStatus();
              });
          return status.ok();
        },
        [ids](int32_t id) {
          ids->push_back(id);
          return true;
        });
    return status;
  }

  std::unique_ptr<EncodeScratch> TakeScratch() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return std::make_unique<EncodeScratch>();
    std::unique_ptr<EncodeScratch> scratch = std::move(idle_.back());
    idle_.pop_back();
    return scratch;
  }
  void GiveScratchBack(std::unique_ptr<EncodeScratch> scratch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

  std::vector<int32_t> prefix_;
  std::vector<int32_t> suffix_;
  bool has_decoder_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  BytePairs pairs_;
  Decoder decoder_;
  AddedTokenFinder before_;
  AddedTokenFinder after_;
  absl::flat_hash_map<std::string, int32_t> id_of_;
  absl::flat_hash_map<int32_t, std::string> token_of_;
  int64_t id_limit_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> idle_;  // Guarded by mutex_.
};

JsonTokenizer::JsonTokenizer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
JsonTokenizer::~JsonTokenizer() = default;

absl::StatusOr<std::unique_ptr<JsonTokenizer>> JsonTokenizer::Make(
    absl::string_view json) {
  ASSIGN_OR_RETURN(TokenizerSpec spec, ReadTokenizerSpec(json));
  const auto in_part = [](const char* part, const absl::Status& status) {
    return absl::InvalidArgumentError(
        absl::StrCat(part, ".", status.message()));
  };
  absl::StatusOr<Normalizer> normalizer = Normalizer::Make(spec.normalizer);
  if (!normalizer.ok()) return in_part("normalizer", normalizer.status());
  absl::StatusOr<PreTokenizer> pre_tokenizer =
      PreTokenizer::Make(spec.pre_tokenizer);
  if (!pre_tokenizer.ok()) {
    return in_part("pre_tokenizer", pre_tokenizer.status());
  }
  absl::StatusOr<Decoder> decoder = Decoder::Make(spec.decoder);
  if (!decoder.ok()) return in_part("decoder", decoder.status());
  ASSIGN_OR_RETURN(BytePairs pairs,
                   BytePairs::Make(spec.model, spec.byte_level));
  ASSIGN_OR_RETURN(std::vector<AddedToken> before,
                   SearchedTokens(spec, *normalizer, false));
  ASSIGN_OR_RETURN(std::vector<AddedToken> after,
                   SearchedTokens(spec, *normalizer, true));
  auto impl = std::make_unique<Impl>(std::move(spec), *std::move(normalizer),
                                     *std::move(pre_tokenizer),
                                     std::move(pairs), *std::move(decoder),
                                     std::move(before), std::move(after));
  RETURN_IF_ERROR(impl->CheckTemplate());
  return std::unique_ptr<JsonTokenizer>(new JsonTokenizer(std::move(impl)));
}

int64_t JsonTokenizer::num_tokens() const { return impl_->num_tokens(); }
int64_t JsonTokenizer::id_limit() const { return impl_->id_limit(); }
int32_t JsonTokenizer::FindToken(absl::string_view content) const {
  return impl_->FindToken(content);
}

absl::Status JsonTokenizer::Encode(absl::string_view text,
                                   bool add_special_tokens,
                                   std::vector<int32_t>* ids) const {
  return impl_->Encode(text, add_special_tokens, ids);
}

absl::StatusOr<std::string> JsonTokenizer::Decode(
    const std::vector<int32_t>& ids) const {
  return impl_->Decode(ids);
}

}  // namespace millrace

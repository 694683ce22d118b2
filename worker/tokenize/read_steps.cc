#include "worker/tokenize/read_steps.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

// A chain is worked off by recursion.
constexpr size_t kMaxSteps = 64;
// The pattern of ByteLevel, which is GPT-2's.
constexpr char kByteLevelPattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Flattens a part that may be a Sequence, whose steps are under `list_key`.
absl::Status CollectSteps(const JsonValue& part, const std::string& list_key,
                          std::vector<JsonValue>* steps) {
  ASSIGN_OR_RETURN(const std::string type, part.Text("type"));
  if (type != "Sequence") {
    if (steps->size() == kMaxSteps) {
      return part.Refused(absl::StrCat("is one step too many: at most ",
                                       kMaxSteps, " are supported"));
    }
    steps->push_back(part);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(part.CheckKeys({"type", list_key}));
  ASSIGN_OR_RETURN(const std::vector<JsonValue> children, part.List(list_key));
  for (const JsonValue& child : children) {
    RETURN_IF_ERROR(CollectSteps(child, list_key, steps));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<JsonValue>> StepsOf(const JsonValue& file,
                                               const std::string& key,
                                               const std::string& list_key) {
  std::vector<JsonValue> steps;
  if (!file.Has(key)) return steps;
  ASSIGN_OR_RETURN(const JsonValue part, file.Get(key));
  RETURN_IF_ERROR(CollectSteps(part, list_key, &steps));
  return steps;
}

absl::Status UnknownType(const JsonValue& step, absl::string_view known) {
  ASSIGN_OR_RETURN(const JsonValue type, step.Get("type"));
  return type.Refused(
      absl::StrCat("is not supported; known here: ", known, ", Sequence"));
}

// {"String": TEXT} or {"Regex": TEXT}.
absl::StatusOr<TextPattern> ReadPattern(const JsonValue& step) {
  ASSIGN_OR_RETURN(const JsonValue value, step.Get("pattern"));
  RETURN_IF_ERROR(value.CheckKeys({"String", "Regex"}));
  if (value.json().size() != 1) {
    return value.Refused("is not one of {\"String\": ...}, {\"Regex\": ...}");
  }
  TextPattern pattern;
  pattern.is_regex = value.json().contains("Regex");
  ASSIGN_OR_RETURN(pattern.text,
                   value.Text(pattern.is_regex ? "Regex" : "String"));
  if (pattern.text.empty()) return value.Refused("is empty");
  return pattern;
}

// The key's text, which must be one character.
absl::StatusOr<std::string> ReadCharacter(const JsonValue& step,
                                          const std::string& key) {
  ASSIGN_OR_RETURN(const JsonValue value, step.Get(key));
  ASSIGN_OR_RETURN(std::string text, value.AsText());
  size_t end = 0;
  if (!text.empty()) NextCodePoint(text, &end);
  if (text.empty() || end != text.size()) {
    return value.Refused("is not one character");
  }
  return text;
}

absl::StatusOr<PrependScheme> ReadPrependScheme(const JsonValue& step) {
  PrependScheme scheme = PrependScheme::kAlways;
  if (step.Has("prepend_scheme")) {
    ASSIGN_OR_RETURN(const JsonValue value, step.Get("prepend_scheme"));
    ASSIGN_OR_RETURN(const std::string name, value.AsText());
    if (name == "never") {
      scheme = PrependScheme::kNever;
    } else if (name == "first") {
      scheme = PrependScheme::kFirst;
    } else if (name != "always") {
      return value.Refused("is not one of always, first, never");
    }
  }
  // The older key for the same.
  ASSIGN_OR_RETURN(const bool adds, step.BoolOr("add_prefix_space", true));
  if (!adds && scheme != PrependScheme::kNever) {
    ASSIGN_OR_RETURN(const JsonValue value, step.Get("add_prefix_space"));
    return value.Refused("contradicts prepend_scheme, which is not \"never\"");
  }
  return scheme;
}

absl::StatusOr<NormalizeStep> ReadNormalizeStep(const JsonValue& step) {
  ASSIGN_OR_RETURN(const std::string type, step.Text("type"));
  NormalizeStep read{};
  if (type == "Replace") {
    RETURN_IF_ERROR(step.CheckKeys({"type", "pattern", "content"}));
    read.kind = NormalizeKind::kReplace;
    ASSIGN_OR_RETURN(read.pattern, ReadPattern(step));
    ASSIGN_OR_RETURN(read.content, step.Text("content"));
    return read;
  }
  if (type == "Prepend") {
    RETURN_IF_ERROR(step.CheckKeys({"type", "prepend"}));
    read.kind = NormalizeKind::kPrepend;
    ASSIGN_OR_RETURN(read.content, step.Text("prepend"));
    return read;
  }
  if (type == "Strip") {
    RETURN_IF_ERROR(step.CheckKeys({"type", "strip_left", "strip_right"}));
    read.kind = NormalizeKind::kStrip;
    ASSIGN_OR_RETURN(read.left, step.Bool("strip_left"));
    ASSIGN_OR_RETURN(read.right, step.Bool("strip_right"));
    return read;
  }
  if (type == "NFC") {
    read.kind = NormalizeKind::kNfc;
  } else if (type == "NFD") {
    read.kind = NormalizeKind::kNfd;
  } else if (type == "NFKC") {
    read.kind = NormalizeKind::kNfkc;
  } else if (type == "NFKD") {
    read.kind = NormalizeKind::kNfkd;
  } else if (type == "Lowercase") {
    read.kind = NormalizeKind::kLowercase;
  } else {
    return UnknownType(step,
                       "NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, "
                       "Strip");
  }
  RETURN_IF_ERROR(step.CheckKeys({"type"}));
  return read;
}

absl::StatusOr<PreTokenizeStep> ReadSplit(const JsonValue& step) {
  RETURN_IF_ERROR(step.CheckKeys({"type", "pattern", "behavior", "invert"}));
  PreTokenizeStep read{PreTokenizeKind::kSplit};
  ASSIGN_OR_RETURN(read.pattern, ReadPattern(step));
  ASSIGN_OR_RETURN(read.invert, step.Bool("invert"));
  ASSIGN_OR_RETURN(const JsonValue value, step.Get("behavior"));
  ASSIGN_OR_RETURN(const std::string behavior, value.AsText());
  if (behavior == "Removed") {
    read.behavior = SplitBehavior::kRemoved;
  } else if (behavior == "Isolated") {
    read.behavior = SplitBehavior::kIsolated;
  } else if (behavior == "MergedWithPrevious") {
    read.behavior = SplitBehavior::kMergedWithPrevious;
  } else if (behavior == "MergedWithNext") {
    read.behavior = SplitBehavior::kMergedWithNext;
  } else if (behavior == "Contiguous") {
    read.behavior = SplitBehavior::kContiguous;
  } else {
    return value.Refused(
        "is not one of Removed, Isolated, MergedWithPrevious, MergedWithNext, "
        "Contiguous");
  }
  return read;
}

absl::Status ReadMetaspace(const JsonValue& step, TokenizerSpec* spec) {
  RETURN_IF_ERROR(step.CheckKeys({"type", "replacement", "prepend_scheme",
                                  "split", "add_prefix_space", "str_rep"}));
  PreTokenizeStep read{PreTokenizeKind::kMetaspace};
  ASSIGN_OR_RETURN(read.replacement, ReadCharacter(step, "replacement"));
  ASSIGN_OR_RETURN(read.scheme, ReadPrependScheme(step));
  if (read.scheme == PrependScheme::kFirst) {
    // "First" is the piece at the text's begin, before it was normalized.
    const bool may_move =
        std::any_of(spec->normalizer.begin(), spec->normalizer.end(),
                    [](const NormalizeStep& normalize) {
                      return normalize.kind == NormalizeKind::kStrip ||
                             (normalize.kind == NormalizeKind::kReplace &&
                              normalize.content.empty());
                    });
    const bool splits_normalized =
        !spec->normalizer.empty() &&
        std::any_of(spec->added_tokens.begin(), spec->added_tokens.end(),
                    [](const AddedToken& token) { return token.normalized; });
    if (may_move || splits_normalized || !spec->pre_tokenizer.empty()) {
      ASSIGN_OR_RETURN(const JsonValue value, step.Get("prepend_scheme"));
      return value.Refused(
          "is not supported together with other pre-tokenizers before it, "
          "with normalizers that remove text or with added tokens that are "
          "normalized");
    }
  }
  ASSIGN_OR_RETURN(const bool splits, step.BoolOr("split", true));
  const std::string replacement = read.replacement;
  spec->pre_tokenizer.push_back(std::move(read));
  if (splits) {
    PreTokenizeStep split{PreTokenizeKind::kSplit};
    split.pattern.text = replacement;
    split.behavior = SplitBehavior::kMergedWithNext;
    spec->pre_tokenizer.push_back(std::move(split));
  }
  return absl::OkStatus();
}

absl::Status ReadByteLevel(const JsonValue& step, TokenizerSpec* spec) {
  RETURN_IF_ERROR(step.CheckKeys(
      {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  ASSIGN_OR_RETURN(const bool adds_space, step.Bool("add_prefix_space"));
  ASSIGN_OR_RETURN(const bool uses_regex, step.BoolOr("use_regex", true));
  if (adds_space) {
    spec->pre_tokenizer.push_back({PreTokenizeKind::kPrefixSpace});
  }
  if (uses_regex) {
    PreTokenizeStep split{PreTokenizeKind::kSplit};
    split.pattern = {.text = kByteLevelPattern, .is_regex = true};
    spec->pre_tokenizer.push_back(std::move(split));
  }
  spec->byte_level = true;
  return absl::OkStatus();
}

absl::Status ReadPreTokenizeStep(const JsonValue& step, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::string type, step.Text("type"));
  if (spec->byte_level) {
    return step.Refused("comes after ByteLevel, which must be the last");
  }
  if (type == "Split") {
    ASSIGN_OR_RETURN(PreTokenizeStep split, ReadSplit(step));
    spec->pre_tokenizer.push_back(std::move(split));
    return absl::OkStatus();
  }
  if (type == "Digits") {
    RETURN_IF_ERROR(step.CheckKeys({"type", "individual_digits"}));
    ASSIGN_OR_RETURN(const bool each, step.Bool("individual_digits"));
    PreTokenizeStep split{PreTokenizeKind::kSplit};
    split.pattern = {.text = R"(\p{N})", .is_regex = true};
    split.behavior =
        each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    spec->pre_tokenizer.push_back(std::move(split));
    return absl::OkStatus();
  }
  if (type == "Metaspace") return ReadMetaspace(step, spec);
  if (type == "ByteLevel") return ReadByteLevel(step, spec);
  return UnknownType(step, "Split, Digits, Metaspace, ByteLevel");
}

absl::StatusOr<std::vector<int32_t>> ReadSpecialIds(const JsonValue& step,
                                                    const std::string& name) {
  ASSIGN_OR_RETURN(const JsonValue tokens, step.Get("special_tokens"));
  ASSIGN_OR_RETURN(const JsonValue token, tokens.Get(name));
  ASSIGN_OR_RETURN(const std::vector<JsonValue> list, token.List("ids"));
  std::vector<int32_t> ids;
  for (const JsonValue& value : list) {
    ASSIGN_OR_RETURN(const int64_t id,
                     value.AsWhole(std::numeric_limits<int32_t>::max()));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// The template of a single text: special tokens around $A.
absl::Status ReadTemplate(const JsonValue& step, TokenizerSpec* spec) {
  RETURN_IF_ERROR(step.CheckKeys({"type", "single", "pair", "special_tokens"}));
  ASSIGN_OR_RETURN(const std::vector<JsonValue> pieces, step.List("single"));
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  int num_texts = 0;
  for (const JsonValue& piece : pieces) {
    RETURN_IF_ERROR(piece.CheckKeys({"Sequence", "SpecialToken"}));
    if (piece.Has("Sequence")) {
      ASSIGN_OR_RETURN(const JsonValue sequence, piece.Get("Sequence"));
      ASSIGN_OR_RETURN(const std::string id, sequence.Text("id"));
      if (id != "A" || ++num_texts > 1) {
        return piece.Refused("is not supported: a single text is one $A");
      }
      continue;
    }
    ASSIGN_OR_RETURN(const JsonValue special, piece.Get("SpecialToken"));
    ASSIGN_OR_RETURN(const std::string name, special.Text("id"));
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                     ReadSpecialIds(step, name));
    std::vector<int32_t>& side = num_texts == 0 ? before : after;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (num_texts == 0) return step.Refused("has no $A in `single`");
  spec->prefix.insert(spec->prefix.begin(), before.begin(), before.end());
  spec->suffix.insert(spec->suffix.end(), after.begin(), after.end());
  return absl::OkStatus();
}

absl::StatusOr<DecodeStep> ReadDecodeStep(const JsonValue& step) {
  constexpr int64_t kMaxStrip = int64_t{1} << 30;
  ASSIGN_OR_RETURN(const std::string type, step.Text("type"));
  DecodeStep read{};
  if (type == "Replace") {
    RETURN_IF_ERROR(step.CheckKeys({"type", "pattern", "content"}));
    read.kind = DecodeKind::kReplace;
    ASSIGN_OR_RETURN(read.pattern, ReadPattern(step));
    ASSIGN_OR_RETURN(read.content, step.Text("content"));
    return read;
  }
  if (type == "Strip") {
    RETURN_IF_ERROR(step.CheckKeys({"type", "content", "start", "stop"}));
    read.kind = DecodeKind::kStrip;
    ASSIGN_OR_RETURN(read.content, ReadCharacter(step, "content"));
    ASSIGN_OR_RETURN(read.start, step.Whole("start", kMaxStrip));
    ASSIGN_OR_RETURN(read.stop, step.Whole("stop", kMaxStrip));
    return read;
  }
  if (type == "Metaspace") {
    RETURN_IF_ERROR(step.CheckKeys({"type", "replacement", "prepend_scheme",
                                    "split", "add_prefix_space", "str_rep"}));
    read.kind = DecodeKind::kMetaspace;
    ASSIGN_OR_RETURN(read.content, ReadCharacter(step, "replacement"));
    ASSIGN_OR_RETURN(const PrependScheme scheme, ReadPrependScheme(step));
    read.drops_first = scheme != PrependScheme::kNever;
    return read;
  }
  if (type == "ByteLevel") {
    RETURN_IF_ERROR(step.CheckKeys(
        {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    read.kind = DecodeKind::kByteLevel;
    return read;
  }
  if (type == "ByteFallback") {
    read.kind = DecodeKind::kByteFallback;
  } else if (type == "Fuse") {
    read.kind = DecodeKind::kFuse;
  } else {
    return UnknownType(
        step, "ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace");
  }
  RETURN_IF_ERROR(step.CheckKeys({"type"}));
  return read;
}

}  // namespace

absl::Status ReadNormalizer(const JsonValue& file, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::vector<JsonValue> steps,
                   StepsOf(file, "normalizer", "normalizers"));
  for (const JsonValue& step : steps) {
    ASSIGN_OR_RETURN(NormalizeStep read, ReadNormalizeStep(step));
    spec->normalizer.push_back(std::move(read));
  }
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const JsonValue& file, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::vector<JsonValue> steps,
                   StepsOf(file, "pre_tokenizer", "pretokenizers"));
  for (const JsonValue& step : steps) {
    RETURN_IF_ERROR(ReadPreTokenizeStep(step, spec));
  }
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const JsonValue& file, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::vector<JsonValue> steps,
                   StepsOf(file, "post_processor", "processors"));
  for (const JsonValue& step : steps) {
    ASSIGN_OR_RETURN(const std::string type, step.Text("type"));
    if (type == "TemplateProcessing") {
      RETURN_IF_ERROR(ReadTemplate(step, spec));
    } else if (type == "ByteLevel") {  // Moves offsets, which are not ids.
      RETURN_IF_ERROR(step.CheckKeys(
          {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    } else {
      return UnknownType(step, "TemplateProcessing, ByteLevel");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadDecoder(const JsonValue& file, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::vector<JsonValue> steps,
                   StepsOf(file, "decoder", "decoders"));
  spec->has_decoder = file.Has("decoder");
  for (const JsonValue& step : steps) {
    ASSIGN_OR_RETURN(DecodeStep read, ReadDecodeStep(step));
    spec->decoder.push_back(std::move(read));
  }
  return absl::OkStatus();
}

}  // namespace millrace

#include "worker/tokenize/decoder.h"

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "worker/tokenize/byte_letters.h"
#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

std::vector<std::string> DecodeByteLevel(
    const std::vector<std::string>& tokens) {
  std::string text;
  std::string bytes;
  for (const std::string& token : tokens) {
    text += BytesOfLetters(token, &bytes) ? bytes : token;
  }
  return {RepairUtf8(text)};
}

// True for <0x00> to <0xFF>.
bool IsFallbackPiece(const std::string& token) {
  return token.size() == 6 && absl::StartsWith(token, "<0x") &&
         absl::ascii_isxdigit(token[3]) && absl::ascii_isxdigit(token[4]) &&
         token[5] == '>';
}

// Each run of bytes is its text, or if that is no text, U+FFFD for each byte.
std::vector<std::string> DecodeFallback(std::vector<std::string> tokens) {
  std::vector<std::string> decoded;
  std::string run;
  const auto end_run = [&] {
    if (run.empty()) return;
    if (IsUtf8(run)) {
      decoded.push_back(run);
    } else {
      decoded.insert(decoded.end(), run.size(), "\xEF\xBF\xBD");
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    if (IsFallbackPiece(token)) {
      run.push_back(static_cast<char>(
          std::strtol(token.substr(3, 2).c_str(), nullptr, 16)));
      continue;
    }
    end_run();
    decoded.push_back(std::move(token));
  }
  end_run();
  return decoded;
}

void StripToken(const DecodeStep& step, std::string* token) {
  absl::string_view rest = *token;
  for (int64_t i = 0; i < step.start; ++i) {
    if (!absl::ConsumePrefix(&rest, step.content)) break;
  }
  for (int64_t i = 0; i < step.stop; ++i) {
    if (!absl::ConsumeSuffix(&rest, step.content)) break;
  }
  *token = std::string(rest);
}

}  // namespace

absl::StatusOr<Decoder> Decoder::Make(const std::vector<DecodeStep>& steps) {
  Decoder decoder;
  decoder.steps_ = steps;
  for (const DecodeStep& step : steps) {
    ASSIGN_OR_RETURN(Matcher matcher, Matcher::Make(step.pattern));
    decoder.matchers_.push_back(std::move(matcher));
  }
  return decoder;
}

absl::StatusOr<std::string> Decoder::Decode(
    std::vector<std::string> tokens) const {
  RegexCursor cursor;
  for (size_t i = 0; i < steps_.size(); ++i) {
    RETURN_IF_ERROR(Apply(i, &cursor, &tokens));
  }
  return absl::StrJoin(tokens, "");
}

absl::Status Decoder::Apply(size_t step_idx, RegexCursor* cursor,
                            std::vector<std::string>* tokens) const {
  const DecodeStep& step = steps_[step_idx];
  switch (step.kind) {
    case DecodeKind::kByteLevel:
      *tokens = DecodeByteLevel(*tokens);
      return absl::OkStatus();
    case DecodeKind::kByteFallback:
      *tokens = DecodeFallback(std::move(*tokens));
      return absl::OkStatus();
    case DecodeKind::kFuse:
      *tokens = {absl::StrJoin(*tokens, "")};
      return absl::OkStatus();
    case DecodeKind::kStrip:
      for (std::string& token : *tokens) StripToken(step, &token);
      return absl::OkStatus();
    case DecodeKind::kReplace:
      for (std::string& token : *tokens) {
        ASSIGN_OR_RETURN(
            token, matchers_[step_idx].Replace(token, step.content, cursor));
      }
      return absl::OkStatus();
    case DecodeKind::kMetaspace:
      for (size_t i = 0; i < tokens->size(); ++i) {
        const bool drops = i == 0 && step.drops_first;
        absl::StrReplaceAll({{step.content, drops ? "" : " "}}, &(*tokens)[i]);
      }
      return absl::OkStatus();
  }
  CHECK(false) << "unknown step";
}

}  // namespace millrace

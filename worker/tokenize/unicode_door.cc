#include "worker/tokenize/unicode_door.h"

#include <unicode/bytestream.h>
#include <unicode/casemap.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "base/check.h"
#include "worker/tokenize/unicode_16.h"

namespace millrace {
namespace {

constexpr int32_t kReplacement = 0xFFFD;

icu::UnicodeSet UnicodeSetOf(const std::string& pattern) {
  UErrorCode error = U_ZERO_ERROR;
  icu::UnicodeSet set(icu::UnicodeString::fromUTF8(pattern), error);
  CHECK(U_SUCCESS(error) != 0) << u_errorName(error);
  return set;
}

const icu::Normalizer2* PlainNormalizer(NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case NormalForm::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(error);
      break;
    case NormalForm::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(error);
      break;
    case NormalForm::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(error);
      break;
    case NormalForm::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(error);
      break;
  }
  CHECK(U_SUCCESS(error) != 0) << u_errorName(error);
  return normalizer;
}

// A normalizer that leaves alone what Unicode 9 did not have.
const icu::Normalizer2& NormalizerOf(NormalForm form) {
  static const auto* const known = [] {
    auto* set = new icu::UnicodeSet(UnicodeSetOf("[:age=9.0:]"));
    set->freeze();
    return set;
  }();
  static const icu::FilteredNormalizer2* const normalizers[] = {
      new icu::FilteredNormalizer2(*PlainNormalizer(NormalForm::kNfc), *known),
      new icu::FilteredNormalizer2(*PlainNormalizer(NormalForm::kNfd), *known),
      new icu::FilteredNormalizer2(*PlainNormalizer(NormalForm::kNfkc), *known),
      new icu::FilteredNormalizer2(*PlainNormalizer(NormalForm::kNfkd),
                                   *known)};
  return *normalizers[static_cast<size_t>(form)];
}

icu::StringPiece PieceOf(absl::string_view text) {
  return {text.data(), static_cast<int32_t>(text.size())};
}

void AppendLowercase(int32_t code_point, std::string* text) {
  if (code_point == 0x130) {  // The one letter whose lower case is two.
    *text += "i\xCC\x87";
    return;
  }
  for (const LowercaseRange& range : kNewLowercase) {
    if (code_point >= range.first && code_point <= range.last) {
      AppendUtf8(code_point + range.offset, text);
      return;
    }
  }
  AppendUtf8(u_tolower(code_point), text);
}

}  // namespace

bool IsNormal(NormalForm form, absl::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x80;
      })) {
    return true;
  }
  UErrorCode error = U_ZERO_ERROR;
  return NormalizerOf(form).isNormalizedUTF8(PieceOf(text), error) != 0 &&
         U_SUCCESS(error) != 0;
}

std::string Normalize(NormalForm form, absl::string_view text) {
  std::string normal;
  normal.reserve(text.size());
  icu::StringByteSink<std::string> sink(&normal);
  UErrorCode error = U_ZERO_ERROR;
  NormalizerOf(form).normalizeUTF8(0, PieceOf(text), sink, nullptr, error);
  CHECK(U_SUCCESS(error) != 0) << u_errorName(error);
  return normal;
}

std::string Lowercase(absl::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    AppendLowercase(NextCodePoint(text, &at), &lower);
  }
  return lower;
}

std::string LowerText(absl::string_view text) {
  std::string lower;
  UErrorCode error = U_ZERO_ERROR;
  icu::StringByteSink<std::string> sink(&lower);
  icu::CaseMap::utf8ToLower("", 0, PieceOf(text), sink, nullptr, error);
  CHECK(U_SUCCESS(error) != 0);
  return lower;
}

std::string UpperText(absl::string_view text) {
  std::string upper;
  UErrorCode error = U_ZERO_ERROR;
  icu::StringByteSink<std::string> sink(&upper);
  icu::CaseMap::utf8ToUpper("", 0, PieceOf(text), sink, nullptr, error);
  CHECK(U_SUCCESS(error) != 0);
  return upper;
}

int32_t NextCodePoint(absl::string_view text, size_t* position) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  int32_t code_point = 0;
  U8_NEXT_UNSAFE(bytes, *position, code_point);
  return code_point;
}

int32_t LastCodePoint(absl::string_view text, size_t end) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  int32_t code_point = 0;
  U8_PREV_UNSAFE(bytes, end, code_point);
  return code_point;
}

void AppendUtf8(int32_t code_point, std::string* text) {
  uint8_t bytes[U8_MAX_LENGTH];
  int32_t size = 0;
  U8_APPEND_UNSAFE(bytes, size, code_point);
  text->append(reinterpret_cast<const char*>(bytes), size);
}

bool IsWhiteSpace(int32_t code_point) {
  return u_isUWhiteSpace(code_point) != 0;
}

bool IsWordCharacter(int32_t code_point) {
  const bool is_joiner = code_point == 0x200C || code_point == 0x200D;
  constexpr uint32_t kMarksDigitsConnectors =
      U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  if (is_joiner || u_isUAlphabetic(code_point) != 0 ||
      (U_GET_GC_MASK(code_point) & kMarksDigitsConnectors) != 0) {
    return true;
  }
  return std::any_of(
      std::begin(kUnicode16Categories), std::end(kUnicode16Categories),
      [code_point](const CategoryRange& range) {
        const std::string category = range.category;
        return code_point >= range.first && code_point <= range.last &&
               (category[0] == 'L' || category[0] == 'M' || category == "Nd");
      });
}

std::vector<uint32_t> CategoryRanges(const char* category) {
  icu::UnicodeSet set = UnicodeSetOf(std::string("[:") + category + ":]");
  const std::string wanted = category;
  for (const CategoryRange& range : kUnicode16Categories) {
    if (std::string(range.category).compare(0, wanted.size(), wanted) == 0) {
      set.add(range.first, range.last);
    } else {
      set.remove(range.first, range.last);
    }
  }
  std::vector<uint32_t> ranges;
  for (int32_t i = 0; i < set.getRangeCount(); ++i) {
    ranges.push_back(static_cast<uint32_t>(set.getRangeStart(i)));
    ranges.push_back(static_cast<uint32_t>(set.getRangeEnd(i)));
  }
  return ranges;
}

std::string RepairUtf8(absl::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int64_t>(text.size());
  std::string repaired;
  repaired.reserve(text.size());
  for (int64_t at = 0; at < size;) {
    int32_t code_point = 0;
    U8_NEXT(bytes, at, size, code_point);
    AppendUtf8(code_point < 0 ? kReplacement : code_point, &repaired);
  }
  return repaired;
}

}  // namespace millrace

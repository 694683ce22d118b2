#include "fault/xid.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace millrace {
namespace {

// The first number of a record holds the level in these bits and the facility
// above them. The kernel's facility is 0, which programs cannot have.
constexpr uint32_t kLevelBits = 3;
constexpr size_t kMaxHexDigits = 8;
constexpr int32_t kMaxXid = 9999;
constexpr size_t kMostTold = 5;

struct XidWords {
  int32_t number;
  const char* words;
};
constexpr XidWords kKnown[] = {
    {13, "a kernel's instruction or address was bad"},
    {31, "a kernel touched memory that is not mapped"},
    {43, "a program's error stopped its work on the GPU"},
    {45, "the driver removed a program's work, after a kill or another error"},
    {48, "an uncorrectable memory error"},
    {62, "its micro-controller stopped"},
    {63, "a row of memory is to be remapped, or a page retired"},
    {64, "a row of memory could not be remapped, or a page retired"},
    {74, "an NVLink error"},
    {79, "it fell off the bus"},
    {92, "many corrected memory errors"},
    {94, "an uncorrectable memory error that one program met"},
    {95, "an uncorrectable memory error that any program may have met"},
    {109, "a switch between programs timed out"},
    {119, "its system processor (GSP) does not answer"},
    {120, "its system processor (GSP) failed"},
    {140, "an uncorrectable memory error"},
    {154, "it needs a reset or its host a restart"},
};

// Takes hexadecimal digits from the front of `text`.
std::optional<uint32_t> TakeHex(absl::string_view* text) {
  size_t digits = 0;
  while (digits < text->size() && absl::ascii_isxdigit((*text)[digits])) {
    ++digits;
  }
  uint32_t value = 0;
  if (digits == 0 || digits > kMaxHexDigits ||
      !absl::SimpleHexAtoi(text->substr(0, digits), &value)) {
    return std::nullopt;
  }
  text->remove_prefix(digits);
  return value;
}

// Takes "0000:1b:00" from the front of `text`.
std::optional<PciAddress> TakePciAddress(absl::string_view* text) {
  const std::optional<uint32_t> domain = TakeHex(text);
  if (!domain.has_value() || !absl::ConsumePrefix(text, ":")) {
    return std::nullopt;
  }
  const std::optional<uint32_t> bus = TakeHex(text);
  if (!bus.has_value() || !absl::ConsumePrefix(text, ":")) return std::nullopt;
  const std::optional<uint32_t> device = TakeHex(text);
  if (!device.has_value()) return std::nullopt;
  return PciAddress{.domain = *domain, .bus = *bus, .device = *device};
}

const char* WordsOf(int32_t number) {
  for (const XidWords& known : kKnown) {
    if (known.number == number) return known.words;
  }
  return nullptr;
}

}  // namespace

std::optional<PciAddress> ParsePciAddress(absl::string_view text) {
  const std::optional<PciAddress> address = TakePciAddress(&text);
  if (!address.has_value()) return std::nullopt;
  if (absl::ConsumePrefix(&text, ".") && !TakeHex(&text).has_value()) {
    return std::nullopt;
  }
  return text.empty() ? address : std::nullopt;
}

std::optional<Xid> ParseXid(absl::string_view record) {
  const size_t fields_end = record.find(';');
  if (fields_end == absl::string_view::npos) return std::nullopt;
  const absl::string_view fields = record.substr(0, fields_end);
  uint32_t facility_and_level = 0;
  if (!absl::SimpleAtoi(fields.substr(0, fields.find(',')),
                        &facility_and_level) ||
      facility_and_level >> kLevelBits != 0) {
    return std::nullopt;
  }
  absl::string_view message = record.substr(fields_end + 1);
  if (!absl::ConsumePrefix(&message, "NVRM: Xid (")) return std::nullopt;
  absl::ConsumePrefix(&message, "PCI:");  // Old drivers leave it out.
  const std::optional<PciAddress> gpu = TakePciAddress(&message);
  if (!gpu.has_value()) return std::nullopt;
  // A part of a GPU that is cut into instances follows: " GPU-I:05".
  const size_t closing = message.find("): ");
  if (closing == absl::string_view::npos ||
      message.substr(0, closing).find('\n') != absl::string_view::npos) {
    return std::nullopt;
  }
  message.remove_prefix(closing + 3);
  size_t digits = 0;
  while (digits < message.size() && absl::ascii_isdigit(message[digits])) {
    ++digits;
  }
  Xid xid = {.gpu = *gpu};
  if (!absl::SimpleAtoi(message.substr(0, digits), &xid.number) ||
      xid.number < 1 || xid.number > kMaxXid) {
    return std::nullopt;
  }
  return xid;
}

std::string XidSentence(std::span<const int32_t> numbers) {
  std::vector<int32_t> told;
  for (const int32_t number : numbers) {
    if (std::ranges::find(told, number) == told.end()) told.push_back(number);
  }
  if (told.empty()) return "";
  std::string text = "its GPU reported XID ";
  for (size_t i = 0; i < std::min(told.size(), kMostTold); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", told[i]);
    const char* const words = WordsOf(told[i]);
    if (words != nullptr) absl::StrAppend(&text, " (", words, ")");
  }
  if (told.size() > kMostTold) {
    absl::StrAppend(&text, " and ", told.size() - kMostTold, " other numbers");
  }
  return text;
}

}  // namespace millrace

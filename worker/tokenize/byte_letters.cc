#include "worker/tokenize/byte_letters.h"

#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

// Above every letter.
constexpr int32_t kLettersEnd = 0x100 + 68;

bool IsItsOwnLetter(int32_t byte) {
  return (byte >= '!' && byte <= '~') ||
         (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

const std::array<int32_t, kLettersEnd>& LetterBytes() {
  static const auto bytes = [] {
    std::array<int32_t, kLettersEnd> made;
    made.fill(-1);
    for (int32_t byte = 0; byte < 256; ++byte) made[ByteLetters()[byte]] = byte;
    return made;
  }();
  return bytes;
}

}  // namespace

const std::array<int32_t, 256>& ByteLetters() {
  static const auto letters = [] {
    std::array<int32_t, 256> made{};
    int32_t next = 0x100;
    for (int32_t byte = 0; byte < 256; ++byte) {
      made[byte] = IsItsOwnLetter(byte) ? byte : next++;
    }
    return made;
  }();
  return letters;
}

bool BytesOfLetters(absl::string_view letters, std::string* bytes) {
  bytes->clear();
  for (size_t at = 0; at < letters.size();) {
    const int32_t letter = NextCodePoint(letters, &at);
    if (letter >= kLettersEnd || LetterBytes()[letter] < 0) return false;
    bytes->push_back(static_cast<char>(LetterBytes()[letter]));
  }
  return true;
}

}  // namespace millrace

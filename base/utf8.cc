#include "base/utf8.h"

#include <cstdint>

namespace millrace {

bool IsUtf8(absl::string_view text) {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const auto* end = at + text.size();
  while (at < end) {
    const unsigned char lead = *at++;
    if (lead < 0x80) continue;
    int num_more = 0;
    uint32_t smallest = 0;  // Below it the form is overlong.
    uint32_t code = 0;
    if (lead >= 0xC2 && lead <= 0xDF) {
      num_more = 1, smallest = 0x80, code = lead & 0x1F;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      num_more = 2, smallest = 0x800, code = lead & 0x0F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      num_more = 3, smallest = 0x10000, code = lead & 0x07;
    } else {
      return false;
    }
    if (end - at < num_more) return false;
    for (int i = 0; i < num_more; ++i) {
      const unsigned char next = *at++;
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3F);
    }
    const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
    if (code < smallest || code > 0x10FFFF || is_surrogate) return false;
  }
  return true;
}

}  // namespace millrace

#include "coordinator/protocol/framing.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {
namespace {

void PutLittleEndian32(uint32_t value, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) {
    out.push_back(static_cast<char>((value >> shift) & 0xff));
  }
}

uint32_t GetLittleEndian32(const char* bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    value |= uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

}  // namespace

std::string EncodeFrame(absl::string_view payload) {
  CHECK(static_cast<int64_t>(payload.size()) <= kMaxFrameBytes);
  std::string frame;
  frame.reserve(kFrameHeaderBytes + payload.size());
  PutLittleEndian32(static_cast<uint32_t>(payload.size()), frame);
  frame.append(payload.data(), payload.size());
  return frame;
}

void FrameDecoder::Append(absl::string_view bytes) {
  if (consumed_ > 0) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  buffer_.append(bytes.data(), bytes.size());
}

absl::StatusOr<std::optional<std::string>> FrameDecoder::Next() {
  const size_t available = buffer_.size() - consumed_;
  if (available < static_cast<size_t>(kFrameHeaderBytes)) return std::nullopt;
  const char* header = buffer_.data() + consumed_;
  const uint32_t size = GetLittleEndian32(header);
  if (size > kMaxFrameBytes) {
    return absl::DataLossError(absl::StrCat(
        "a frame of ", size, " bytes; the limit is ", kMaxFrameBytes));
  }
  if (available < static_cast<size_t>(kFrameHeaderBytes) + size)
    return std::nullopt;
  const char* payload = header + kFrameHeaderBytes;
  consumed_ += kFrameHeaderBytes + size;
  return std::string(payload, size);
}

}  // namespace millrace

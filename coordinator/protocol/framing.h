// Frames on a byte stream: 4 bytes of length, little-endian, then that many
// bytes of one serialized message. TLS below them notices damage.

#ifndef MILLRACE_COORDINATOR_PROTOCOL_FRAMING_H_
#define MILLRACE_COORDINATOR_PROTOCOL_FRAMING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

inline constexpr int64_t kFrameHeaderBytes = 4;
// A larger length is taken for garbage. The largest real messages are measured
// timelines and profiles, well below one MiB.
inline constexpr int64_t kMaxFrameBytes = int64_t{64} << 20;

// Header and payload. `payload` is at most kMaxFrameBytes.
std::string EncodeFrame(absl::string_view payload);

// Cuts a stream that arrives in pieces into payloads.
class FrameDecoder {
 public:
  void Append(absl::string_view bytes);
  // The next whole payload; nothing if more bytes are needed. DataLoss if the
  // length is beyond the limit: the stream is useless from there on.
  absl::StatusOr<std::optional<std::string>> Next();

 private:
  std::string buffer_;
  size_t consumed_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROTOCOL_FRAMING_H_

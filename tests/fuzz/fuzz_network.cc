#include <google/protobuf/stubs/logging.h>

#include <cstring>

#include "base/check.h"
#include "coordinator/protocol/convert.h"
#include "coordinator/protocol/framing.h"
#include "coordinator/protocol/millrace.pb.h"
#include "coordinator/protocol/tls.h"
#include "tests/fuzz/fuzz_targets.h"

namespace millrace {
namespace {

void ReadMessage(const std::string& payload) {
  protocol::ToCoordinator to;
  if (to.ParseFromString(payload)) {
    TimelineOf(to.step_done(), Rank{0});
    FromMessage(to.step_done().breakdown());
    to.SerializeAsString();
  }
  protocol::FromCoordinator from;
  if (from.ParseFromString(payload)) {
    FromMessage(from.start_generation().layout());
    FromMessage(from.start_generation().tuning());
    from.SerializeAsString();
  }
}

}  // namespace

// As a stream that arrives in pieces, and as the content of a frame that is
// whole: few inputs get so far by themselves.
void FuzzFrames(absl::string_view bytes) {
  // Protobuf says on standard error what it refuses.
  static auto* const previous = google::protobuf::SetLogHandler(nullptr);
  static_cast<void>(previous);
  ReadMessage(std::string(bytes));
  FrameDecoder decoder;
  size_t num_taken = 0;
  size_t piece = 1;
  while (num_taken < bytes.size()) {
    decoder.Append(bytes.substr(num_taken, piece));
    num_taken += piece;
    piece = piece * 2 + 1;
    while (true) {
      const auto payload = decoder.Next();
      if (!payload.ok()) return;
      if (!payload->has_value()) break;
      ReadMessage(**payload);
    }
  }
}

// What a stranger may send to either end before he is believed.
void FuzzHandshake(absl::string_view bytes) {
  static const auto* const server =
      new TlsContext(*MakeTlsContext(TlsEnd::kCoordinator, "the secret"));
  static const auto* const client =
      new TlsContext(*MakeTlsContext(TlsEnd::kPeer, "the secret"));
  for (const TlsEnd end : {TlsEnd::kCoordinator, TlsEnd::kPeer}) {
    absl::string_view rest = bytes;
    const auto shaken =
        Shake(end, (end == TlsEnd::kPeer ? client : server)->get(),
              {.read = [&rest](std::string* out) -> absl::Status {
                 if (rest.size() < out->size()) {
                   return absl::UnavailableError("the end");
                 }
                 std::memcpy(out->data(), rest.data(), out->size());
                 rest.remove_prefix(out->size());
                 return absl::OkStatus();
               },
               .write = [](absl::string_view) { return absl::OkStatus(); }},
              "");
    CHECK(!shaken.ok());
  }
}

}  // namespace millrace

#include <google/protobuf/stubs/logging.h>

#include <cstring>

#include "absl/strings/match.h"
#include "base/check.h"
#include "coordinator/files/served_files.h"
#include "coordinator/objects/xml_leaves.h"
#include "coordinator/protocol/convert.h"
#include "coordinator/protocol/framing.h"
#include "coordinator/protocol/millrace.pb.h"
#include "coordinator/protocol/tls.h"
#include "fault/faulty_file_system.h"
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

// Bytes that a stranger may send to either end before he is believed.
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

// Calls on the files that a host serves to the others, one behind the other:
// four bytes of length and a message each. Whatever is asked, nothing outside
// of the served folder is touched.
void FuzzFileCalls(absl::string_view bytes) {
  static auto* const previous = google::protobuf::SetLogHandler(nullptr);
  static_cast<void>(previous);
  FaultyFileSystem files;
  const auto write = [&files](const std::string& path) {
    const auto file = files.Create(path);
    CHECK(file.ok() && (*file)->Append("content", 7).ok());
  };
  CHECK(files.MakeDirectories("served/step").ok());
  write("served/step/part");
  write("secret");
  ServedFiles served;
  served.Serve("checkpoints", "served", /*writable=*/true);
  served.Serve("data/0", "served/step/part", /*writable=*/false);
  FileCalls calls(served, files);
  FrameDecoder decoder;
  decoder.Append(bytes);
  while (true) {
    const auto payload = decoder.Next();
    if (!payload.ok() || !payload->has_value()) break;
    protocol::FileRequest request;
    if (!request.ParseFromString(**payload)) continue;
    calls.Answer(request).SerializeAsString();
    const auto path = served.PathOf(request.name(), /*changes=*/false);
    CHECK(!path.ok() || *path == "served" ||
          (absl::StartsWith(*path, "served/") &&
           !absl::StrContains(*path + "/", "/../")));
  }
  CHECK(files.Exists("secret"));
}

// An answer of a server with buckets, and the reading of what a listing has.
void FuzzXml(absl::string_view bytes) {
  const absl::StatusOr<XmlLeaves> answer = XmlLeaves::Parse(bytes);
  if (!answer.ok()) return;
  answer->First("Code");
  answer->All("Contents/Key");
}

}  // namespace millrace

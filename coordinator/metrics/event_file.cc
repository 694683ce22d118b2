#include "coordinator/metrics/event_file.h"

#include <unistd.h>

#include <array>
#include <boost/crc.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/metrics/tensorboard.pb.h"

namespace millrace {
namespace {

constexpr uint32_t kCastagnoli = 0x1EDC6F41;

// A CRC of data that holds CRCs is weak, so TFRecord files hold them rotated
// and shifted.
uint32_t MaskedCrc(absl::string_view bytes) {
  boost::crc_optimal<32, kCastagnoli, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const uint32_t value = crc.checksum();
  return ((value >> 15) | (value << 17)) + 0xA282EAD8;
}

template <typename Integer>
std::string LittleEndian(Integer value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(value); ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i)));
  }
  return bytes;
}

std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

std::string EventBytes(const tensorboard::Event& event) {
  return EventFrame(event.SerializeAsString());
}

}  // namespace

std::string EventFrame(absl::string_view bytes) {
  const std::string length = LittleEndian<uint64_t>(bytes.size());
  return absl::StrCat(length, LittleEndian(MaskedCrc(length)), bytes,
                      LittleEndian(MaskedCrc(bytes)));
}

EventFile::EventFile(AppendFile file) : file_(std::move(file)) {}

absl::StatusOr<EventFile> EventFile::Open(const std::string& folder) {
  const double now_s = UnixNow();
  // Readers take the files of a folder in the order of their names.
  ASSIGN_OR_RETURN(AppendFile file,
                   AppendFile::Open(absl::StrFormat(
                       "%s/events.out.tfevents.%010d.%s.%d.0", folder,
                       static_cast<int64_t>(now_s), HostName(), getpid())));
  tensorboard::Event event;
  event.set_wall_time(now_s);
  event.set_file_version("brain.Event:2");
  RETURN_IF_ERROR(file.Append(EventBytes(event)));
  return EventFile(std::move(file));
}

absl::Status EventFile::Add(const StepRecord& record, double unix_s) {
  std::string frames;
  if (record.step <= last_step_ || last_step_ < 0) {
    tensorboard::Event start;
    start.set_wall_time(unix_s);
    start.set_step(record.step);
    start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
    frames = EventBytes(start);
  }
  tensorboard::Event event;
  event.set_wall_time(unix_s);
  event.set_step(record.step);
  for (const auto& [tag, number] : TaggedValues(record)) {
    tensorboard::Summary::Value* value = event.mutable_summary()->add_value();
    value->set_tag(tag);
    value->set_simple_value(static_cast<float>(number));
  }
  RETURN_IF_ERROR(file_.Append(frames + EventBytes(event)));
  last_step_ = record.step;
  return absl::OkStatus();
}

}  // namespace millrace

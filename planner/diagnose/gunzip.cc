// Only this file includes zlib.

#include "planner/diagnose/gunzip.h"

#include <zlib.h>

#include <array>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

constexpr size_t kPackedBytes = size_t{64} << 10;
constexpr size_t kPlainBytes = size_t{256} << 10;
// The largest window; 16 more asks for gzip's header.
constexpr int kWindowBits = 15 + 16;

}  // namespace

struct GunzipBuffer::State {
  std::istream& input;
  z_stream stream{};
  std::array<char, kPackedBytes> packed;
  std::array<char, kPlainBytes> plain;
  bool is_between_parts = false;  // One member ended, no other began.
};

GunzipBuffer::GunzipBuffer(std::istream& packed)
    : state_(new State{.input = packed}) {
  if (inflateInit2(&state_->stream, kWindowBits) != Z_OK) {
    error_ = "no memory to unpack the gzip data";
  }
}

GunzipBuffer::~GunzipBuffer() { inflateEnd(&state_->stream); }

GunzipBuffer::int_type GunzipBuffer::underflow() {
  z_stream& stream = state_->stream;
  char* const plain = state_->plain.data();
  stream.next_out = reinterpret_cast<Bytef*>(plain);
  stream.avail_out = kPlainBytes;
  while (stream.avail_out == kPlainBytes && error_.empty()) {
    if (stream.avail_in == 0) {
      state_->input.read(state_->packed.data(), kPackedBytes);
      stream.next_in = reinterpret_cast<Bytef*>(state_->packed.data());
      stream.avail_in = static_cast<uInt>(state_->input.gcount());
    }
    if (stream.avail_in == 0) {
      if (!state_->is_between_parts) error_ = "the gzip data end early";
      break;
    }
    state_->is_between_parts = false;
    const int status = inflate(&stream, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
      state_->is_between_parts = true;
      inflateReset(&stream);
    } else if (status != Z_OK) {
      error_ =
          absl::StrCat("the gzip data are damaged (",
                       stream.msg == nullptr ? "unknown" : stream.msg, ")");
    }
  }
  const size_t size = kPlainBytes - stream.avail_out;
  setg(plain, plain, plain + size);
  return size == 0 ? traits_type::eof() : traits_type::to_int_type(*plain);
}

}  // namespace millrace

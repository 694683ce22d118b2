// Only this file includes zlib, zstd and snappy.

#include "worker/records/packed_file.h"

#include <snappy.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 18;
// The largest window; 16 more asks for gzip's header.
constexpr int kWindowBits = 15 + 16;
// Unpacking needs a window of that many bytes: what `zstd --ultra --long=27`
// writes still fits.
constexpr int kZstdWindowLog = 27;

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(
      path, ": ", what,
      ": the file was damaged or cut; copy it again from where it came"));
}

// A file descriptor that ends with its owner.
class InputFile {
 public:
  static absl::StatusOr<InputFile> Open(const std::string& path) {
    ASSIGN_OR_RETURN(const int file, OpenRegularFile(path));
    return InputFile(path, file);
  }
  InputFile(InputFile&& other) noexcept
      : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile() {
    if (file_ >= 0) close(file_);
  }

  const std::string& path() const { return path_; }
  absl::StatusOr<size_t> Read(char* out, size_t size) {
    while (true) {
      const ssize_t count = read(file_, out, size);
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR) {
        return absl::InternalError(
            absl::StrCat("failed to read ", path_, ": ", strerror(errno)));
      }
    }
  }
  absl::Status Seek(int64_t position) {
    if (lseek(file_, position, SEEK_SET) == position) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("failed to read ", path_, ": ", strerror(errno)));
  }

 private:
  InputFile(std::string path, int file) : path_(std::move(path)), file_(file) {}
  std::string path_;
  int file_;
};

class PlainFile : public PackedFile {
 public:
  explicit PlainFile(InputFile file) : file_(std::move(file)) {}
  Packing packing() const override { return Packing::kNone; }
  absl::Status Seek(int64_t position) override { return file_.Seek(position); }
  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    return file_.Read(out, size);
  }

 private:
  InputFile file_;
};

// The part that both libraries share: a block of packed bytes to take from.
class UnpackedFile : public PackedFile {
 public:
  explicit UnpackedFile(InputFile file)
      : file_(std::move(file)), block_(kBlockBytes) {}
  absl::Status Seek(int64_t) override {
    return absl::UnimplementedError("a packed file is read from its beginning");
  }

 protected:
  const std::string& path() const { return file_.path(); }
  // The packed bytes that were read and not used yet. Empty at the end.
  absl::StatusOr<absl::string_view> Packed() {
    if (used_ == filled_) {
      used_ = 0;
      ASSIGN_OR_RETURN(filled_, file_.Read(block_.data(), block_.size()));
    }
    return absl::string_view(block_.data() + used_, filled_ - used_);
  }
  void Use(size_t num_bytes) { used_ += num_bytes; }

 private:
  InputFile file_;
  std::vector<char> block_;
  size_t filled_ = 0;
  size_t used_ = 0;
};

class GzipFile : public UnpackedFile {
 public:
  explicit GzipFile(InputFile file) : UnpackedFile(std::move(file)) {
    is_ready_ = inflateInit2(&stream_, kWindowBits) == Z_OK;
  }
  ~GzipFile() override { inflateEnd(&stream_); }
  Packing packing() const override { return Packing::kGzip; }

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    if (!is_ready_) return absl::ResourceExhaustedError("no memory for zlib");
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out == size) {
      ASSIGN_OR_RETURN(const absl::string_view packed, Packed());
      if (packed.empty()) {
        if (is_between_members_) return 0;
        return Damaged(path(), "ends within its gzip data");
      }
      is_between_members_ = false;
      stream_.next_in =
          reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
      stream_.avail_in = static_cast<uInt>(packed.size());
      const int status = inflate(&stream_, Z_NO_FLUSH);
      Use(packed.size() - stream_.avail_in);
      if (status == Z_STREAM_END) {
        is_between_members_ = true;
        inflateReset(&stream_);
      } else if (status != Z_OK) {
        return Damaged(
            path(), absl::StrCat(
                        "the gzip data are wrong (",
                        stream_.msg == nullptr ? "unknown" : stream_.msg, ")"));
      }
    }
    return size - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  bool is_ready_ = false;
  bool is_between_members_ = false;  // One ended, no other began.
};

class ZstdFile : public UnpackedFile {
 public:
  explicit ZstdFile(InputFile file)
      : UnpackedFile(std::move(file)), context_(ZSTD_createDCtx()) {
    if (context_ != nullptr) {
      ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kZstdWindowLog);
    }
  }
  ~ZstdFile() override { ZSTD_freeDCtx(context_); }
  Packing packing() const override { return Packing::kZstd; }

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    if (context_ == nullptr) {
      return absl::ResourceExhaustedError("no memory for zstd");
    }
    ZSTD_outBuffer output = {out, size, 0};
    while (output.pos == 0) {
      ASSIGN_OR_RETURN(const absl::string_view packed, Packed());
      if (packed.empty() && is_between_frames_) return 0;
      ZSTD_inBuffer input = {packed.data(), packed.size(), 0};
      const size_t hint = ZSTD_decompressStream(context_, &output, &input);
      Use(input.pos);
      if (ZSTD_isError(hint)) {
        return Damaged(path(), absl::StrCat("the zstd data are wrong (",
                                            ZSTD_getErrorName(hint), ")"));
      }
      is_between_frames_ = hint == 0;
      if (packed.empty() && output.pos == 0 && !is_between_frames_) {
        return Damaged(path(), "ends within its zstd data");
      }
    }
    return output.pos;
  }

 private:
  ZSTD_DCtx* context_;
  bool is_between_frames_ = false;
};

bool HasName(const std::string& path, absl::string_view ending) {
  return absl::EndsWithIgnoreCase(path, ending);
}

absl::Status WrongName(const std::string& path, absl::string_view packing) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": the name promises ", packing,
      " data, but the file does not begin like that; copy it again, or give it "
      "the ending of what it holds"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedFile>> PackedFile::Open(
    const std::string& path) {
  ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  char begin[4] = {};
  ASSIGN_OR_RETURN(const size_t size, file.Read(begin, sizeof(begin)));
  RETURN_IF_ERROR(file.Seek(0));
  const absl::string_view magic(begin, size);
  std::unique_ptr<PackedFile> opened;
  if (absl::StartsWith(magic, "\x1f\x8b")) {
    opened = std::make_unique<GzipFile>(std::move(file));
  } else if (magic == "\x28\xb5\x2f\xfd") {
    opened = std::make_unique<ZstdFile>(std::move(file));
  } else if (HasName(path, ".gz")) {
    return WrongName(path, "gzip");
  } else if (HasName(path, ".zst")) {
    return WrongName(path, "zstd");
  } else {
    opened = std::make_unique<PlainFile>(std::move(file));
  }
  return opened;
}

bool UnpackSnappy(absl::string_view packed, int64_t num_bytes,
                  std::string* plain) {
  size_t size = 0;
  if (!snappy::GetUncompressedLength(packed.data(), packed.size(), &size) ||
      size != static_cast<size_t>(num_bytes)) {
    return false;
  }
  plain->resize(size);
  return snappy::RawUncompress(packed.data(), packed.size(), plain->data());
}

bool UnpackGzip(absl::string_view packed, int64_t num_bytes,
                std::string* plain) {
  z_stream stream{};
  if (inflateInit2(&stream, kWindowBits) != Z_OK) return false;
  plain->resize(static_cast<size_t>(num_bytes));
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(plain->data());
  stream.avail_out = static_cast<uInt>(plain->size());
  const int status = inflate(&stream, Z_FINISH);
  const bool is_whole = status == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  return is_whole;
}

bool UnpackZstd(absl::string_view packed, int64_t num_bytes,
                std::string* plain) {
  plain->resize(static_cast<size_t>(num_bytes));
  return ZSTD_decompress(plain->data(), plain->size(), packed.data(),
                         packed.size()) == plain->size();
}

}  // namespace millrace

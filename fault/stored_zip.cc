#include "fault/stored_zip.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kEntrySignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kLargeEndSignature = 0x06064b50;
constexpr uint32_t kLargeLocatorSignature = 0x07064b50;
constexpr int64_t kLocalBytes = 30;
constexpr int64_t kEntryBytes = 46;
constexpr int64_t kEndBytes = 22;
constexpr int64_t kLargeEndBytes = 56;
constexpr int64_t kLargeLocatorBytes = 20;
// Marks a number that the large fields have instead.
constexpr uint32_t kIsLarge = 0xffffffff;
constexpr uint16_t kManyMembers = 0xffff;
constexpr uint16_t kLargeFieldTag = 1;
// Sizes follow the data as well; names are UTF-8. Both change nothing here.
constexpr uint16_t kHarmlessFlags = 0x0808;
// PyTorch writes seven members with short names.
constexpr uint64_t kMaxMembers = 256;
constexpr uint64_t kMaxDirectoryBytes = 1 << 20;

template <typename T>
T ZipNumber(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Reads one archive; offsets within it count from `begin_`.
class ZipReader {
 public:
  ZipReader(const RandomAccessFile& file, const std::string& path,
            int64_t begin, int64_t end)
      : file_(file), path_(path), begin_(begin), size_(end - begin) {}

  absl::StatusOr<std::vector<StoredMember>> Read() {
    RETURN_IF_ERROR(FindDirectory());
    std::string directory(directory_bytes_, '\0');
    RETURN_IF_ERROR(
        ReadAt(directory_begin_, directory.size(), directory.data()));
    std::vector<StoredMember> members;
    size_t at = 0;
    for (uint64_t i = 0; i < num_members_; ++i) {
      ASSIGN_OR_RETURN(StoredMember member, ReadEntry(directory, &at));
      members.push_back(std::move(member));
    }
    if (at != directory.size()) {
      return Wrong(directory_begin_ + static_cast<int64_t>(at),
                   "the directory is longer than its members");
    }
    RETURN_IF_ERROR(CheckApart(members));
    return members;
  }

 private:
  absl::Status Wrong(int64_t at, absl::string_view found) const {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": byte ", begin_ + at, ": ", found,
        "; the file is damaged or was not written by torch.save, so copy it "
        "again, or save the checkpoint again"));
  }

  absl::Status ReadAt(int64_t at, size_t num_bytes, char* out) const {
    return file_.Read(begin_ + at, static_cast<int64_t>(num_bytes), out);
  }

  absl::Status FindDirectory() {
    if (size_ < kEndBytes) return Wrong(0, "too short for a zip archive");
    char end[kEndBytes];
    const int64_t end_at = size_ - kEndBytes;
    RETURN_IF_ERROR(ReadAt(end_at, sizeof(end), end));
    if (ZipNumber<uint32_t>(end) != kEndSignature) {
      return Wrong(end_at, "no end of a zip archive where it should be");
    }
    const uint64_t num_members = ZipNumber<uint16_t>(end + 10);
    const uint64_t directory_bytes = ZipNumber<uint32_t>(end + 12);
    const uint64_t directory_begin = ZipNumber<uint32_t>(end + 16);
    num_members_ = num_members;
    directory_bytes_ = directory_bytes;
    uint64_t begin = directory_begin;
    int64_t limit = end_at;
    RETURN_IF_ERROR(ReadLargeEnd(end_at, &begin, &limit));
    if ((num_members != kManyMembers && num_members != num_members_) ||
        (directory_bytes != kIsLarge && directory_bytes != directory_bytes_) ||
        (directory_begin != kIsLarge && directory_begin != begin)) {
      return Wrong(limit, "the two ends of a large zip archive differ");
    }
    if (num_members_ > kMaxMembers || directory_bytes_ > kMaxDirectoryBytes) {
      return Wrong(end_at,
                   absl::StrCat("a directory of ", num_members_, " members in ",
                                directory_bytes_, " bytes"));
    }
    if (begin > static_cast<uint64_t>(limit) ||
        directory_bytes_ != static_cast<uint64_t>(limit) - begin) {
      return Wrong(end_at, absl::StrCat("a directory of ", directory_bytes_,
                                        " bytes at ", begin,
                                        ", expected it to end at ", limit));
    }
    directory_begin_ = static_cast<int64_t>(begin);
    return absl::OkStatus();
  }

  // The end of archives of 4 GiB and more, which PyTorch writes for all.
  absl::Status ReadLargeEnd(int64_t end_at, uint64_t* begin, int64_t* limit) {
    const int64_t locator_at = end_at - kLargeLocatorBytes;
    const int64_t large_at = locator_at - kLargeEndBytes;
    if (large_at < 0) return absl::OkStatus();
    char large[kLargeEndBytes + kLargeLocatorBytes];
    RETURN_IF_ERROR(ReadAt(large_at, sizeof(large), large));
    const char* locator = large + kLargeEndBytes;
    if (ZipNumber<uint32_t>(locator) != kLargeLocatorSignature) {
      return absl::OkStatus();
    }
    if (ZipNumber<uint32_t>(large) != kLargeEndSignature ||
        ZipNumber<uint64_t>(locator + 8) != static_cast<uint64_t>(large_at)) {
      return Wrong(large_at,
                   "no end of a large zip archive where it should be");
    }
    num_members_ = ZipNumber<uint64_t>(large + 32);
    directory_bytes_ = ZipNumber<uint64_t>(large + 40);
    *begin = ZipNumber<uint64_t>(large + 48);
    *limit = large_at;
    return absl::OkStatus();
  }

  // The next entry of the directory and its member's own header.
  absl::StatusOr<StoredMember> ReadEntry(const std::string& directory,
                                         size_t* at) const {
    const int64_t where = directory_begin_ + static_cast<int64_t>(*at);
    const char* entry = directory.data() + *at;
    const size_t left = directory.size() - *at;
    if (left < kEntryBytes || ZipNumber<uint32_t>(entry) != kEntrySignature) {
      return Wrong(where, "no entry of the directory where one should be");
    }
    const size_t name_bytes = ZipNumber<uint16_t>(entry + 28);
    const size_t extra_bytes = ZipNumber<uint16_t>(entry + 30);
    const size_t comment_bytes = ZipNumber<uint16_t>(entry + 32);
    const size_t entry_bytes =
        kEntryBytes + name_bytes + extra_bytes + comment_bytes;
    if (left < entry_bytes) {
      return Wrong(where, "an entry beyond the end of the directory");
    }
    StoredMember member;
    member.name.assign(entry + kEntryBytes, name_bytes);
    const uint16_t flags = ZipNumber<uint16_t>(entry + 8);
    const uint16_t method = ZipNumber<uint16_t>(entry + 10);
    if (method != 0 || (flags & ~kHarmlessFlags) != 0) {
      return Wrong(where, absl::StrCat("a member that is compressed or "
                                       "encrypted (method ",
                                       method, ", flags ", flags,
                                       "), expected it as it is"));
    }
    uint64_t packed_bytes = ZipNumber<uint32_t>(entry + 20);
    uint64_t num_bytes = ZipNumber<uint32_t>(entry + 24);
    uint64_t header_at = ZipNumber<uint32_t>(entry + 42);
    const absl::string_view extra(entry + kEntryBytes + name_bytes,
                                  extra_bytes);
    RETURN_IF_ERROR(
        TakeLargeFields(where, extra, {&num_bytes, &packed_bytes, &header_at}));
    const auto limit = static_cast<uint64_t>(directory_begin_);
    if (packed_bytes != num_bytes || num_bytes > limit || header_at > limit ||
        limit - header_at < static_cast<uint64_t>(kLocalBytes)) {
      return Wrong(where, absl::StrCat("a member of ", num_bytes, " bytes at ",
                                       header_at, " in an archive of ", limit));
    }
    RETURN_IF_ERROR(ReadLocalHeader(static_cast<int64_t>(header_at),
                                    static_cast<int64_t>(num_bytes), &member));
    *at += entry_bytes;
    return member;
  }

  // Numbers that do not fit 32 bits follow each other in an extra field.
  absl::Status TakeLargeFields(int64_t where, absl::string_view extra,
                               std::vector<uint64_t*> numbers) const {
    std::erase_if(numbers, [](const uint64_t* n) { return *n != kIsLarge; });
    if (numbers.empty()) return absl::OkStatus();
    while (extra.size() >= 4) {
      const uint16_t tag = ZipNumber<uint16_t>(extra.data());
      const size_t bytes = ZipNumber<uint16_t>(extra.data() + 2);
      extra.remove_prefix(4);
      if (bytes > extra.size()) break;
      if (tag == kLargeFieldTag && bytes >= 8 * numbers.size()) {
        for (size_t i = 0; i < numbers.size(); ++i) {
          *numbers[i] = ZipNumber<uint64_t>(extra.data() + 8 * i);
        }
        return absl::OkStatus();
      }
      extra.remove_prefix(bytes);
    }
    return Wrong(where, "large fields that are missing");
  }

  absl::Status ReadLocalHeader(int64_t header_at, int64_t num_bytes,
                               StoredMember* member) const {
    char header[kLocalBytes];
    RETURN_IF_ERROR(ReadAt(header_at, sizeof(header), header));
    const size_t name_bytes = ZipNumber<uint16_t>(header + 26);
    const int64_t data_at = header_at + kLocalBytes +
                            static_cast<int64_t>(name_bytes) +
                            ZipNumber<uint16_t>(header + 28);
    if (ZipNumber<uint32_t>(header) != kLocalSignature ||
        ZipNumber<uint16_t>(header + 8) != 0 ||
        name_bytes != member->name.size() ||
        data_at > directory_begin_ - num_bytes) {
      return Wrong(header_at,
                   "the header of a member that its entry in the "
                   "directory contradicts");
    }
    std::string name(name_bytes, '\0');
    RETURN_IF_ERROR(ReadAt(header_at + kLocalBytes, name_bytes, name.data()));
    if (name != member->name) {
      return Wrong(header_at, "a member with two names");
    }
    member->offset = begin_ + data_at;
    member->num_bytes = num_bytes;
    return absl::OkStatus();
  }

  absl::Status CheckApart(std::vector<StoredMember> members) const {
    std::ranges::sort(members, {}, &StoredMember::offset);
    for (size_t i = 0; i + 1 < members.size(); ++i) {
      if (members[i].offset + members[i].num_bytes > members[i + 1].offset) {
        return Wrong(members[i + 1].offset - begin_,
                     "a member that overlaps the one before");
      }
    }
    return absl::OkStatus();
  }

  const RandomAccessFile& file_;
  const std::string& path_;
  const int64_t begin_;
  const int64_t size_;
  uint64_t num_members_ = 0;
  uint64_t directory_bytes_ = 0;
  int64_t directory_begin_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<StoredMember>> ReadStoredZip(
    const RandomAccessFile& file, const std::string& path, int64_t begin,
    int64_t end) {
  return ZipReader(file, path, begin, end).Read();
}

}  // namespace millrace

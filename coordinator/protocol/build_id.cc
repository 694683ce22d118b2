#include "coordinator/protocol/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

// With the zero at its end, as a note has it.
constexpr absl::string_view kGnuNote("GNU", 4);

// A note: header, name and content, each padded to four bytes.
constexpr size_t Padded(size_t num_bytes) {
  return (num_bytes + 3) & ~size_t{3};
}

std::string FindBuildId(absl::string_view notes) {
  ElfW(Nhdr) header;
  while (notes.size() >= sizeof(header)) {
    std::memcpy(&header, notes.data(), sizeof(header));
    const size_t name_end = sizeof(header) + Padded(header.n_namesz);
    const size_t end = name_end + Padded(header.n_descsz);
    if (end > notes.size()) break;
    // Other makers of notes use the same number for other things.
    const absl::string_view name =
        notes.substr(sizeof(header), header.n_namesz);
    if (name == kGnuNote && header.n_type == NT_GNU_BUILD_ID) {
      return absl::BytesToHexString(notes.substr(name_end, header.n_descsz));
    }
    notes.remove_prefix(end);
  }
  return "";
}

int ReadFirstObject(dl_phdr_info* info, size_t, void* result) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const std::string found = FindBuildId(
        {reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr),
         segment.p_memsz});
    if (!found.empty()) *static_cast<std::string*>(result) = found;
  }
  return 1;  // The first object is the program itself; libraries follow.
}

}  // namespace

std::string BuildId() {
  std::string result;
  dl_iterate_phdr(ReadFirstObject, &result);
  return result;
}

}  // namespace millrace

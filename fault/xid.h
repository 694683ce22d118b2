// XID messages: the numbers by which NVIDIA's driver reports a GPU's errors in
// the kernel's log, as in "NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, ...". The
// numbers are those of NVIDIA's "XID Errors" and its catalog
// (docs.nvidia.com/deploy/xid-errors). Pure.

#ifndef MILLRACE_FAULT_XID_H_
#define MILLRACE_FAULT_XID_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// Where a GPU is on the PCI bus. The function is left out: it is 0.
struct PciAddress {
  uint32_t domain = 0;
  uint32_t bus = 0;
  uint32_t device = 0;

  bool operator==(const PciAddress&) const = default;
};

// Reads "0000:1b:00" or "0000:1B:00.0", with a domain of up to eight digits.
std::optional<PciAddress> ParsePciAddress(absl::string_view text);

struct Xid {
  PciAddress gpu;
  int32_t number = 0;
};

// Reads one record of /dev/kmsg ("6,40938,82473232641,-;NVRM: Xid ...").
// Nothing if it is another message, or one that a program wrote and not the
// kernel: such records have another facility in their first number.
std::optional<Xid> ParseXid(absl::string_view record);

// "its GPU reported XID 48 (an uncorrectable memory error), 79 (it fell off the
// bus)". Numbers are told once, in order; empty if there are none. Numbers that
// are not well known stand alone.
std::string XidSentence(std::span<const int32_t> numbers);

}  // namespace millrace

#endif  // MILLRACE_FAULT_XID_H_

#include "fault/xid.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

// Goal: addresses as CUDA, NVML and the driver's messages write them are the
// same; other texts are none.
TEST(XidTest, ReadsPciAddresses) {
  const PciAddress expected = {.domain = 1, .bus = 0x1b, .device = 0x1f};
  for (const char* text :
       {"0001:1b:1f", "0001:1B:1F.0", "00000001:1B:1F.0", "1:1b:1f.0"}) {
    EXPECT_EQ(ParsePciAddress(text), expected) << text;
  }
  for (const char* text :
       {"", "1b:00.0", "0000:1b", "0000:1b:", "0000:1b:00.", "0000:1b:00.0x",
        "0000:1b:00 ", ":1b:00", "000000001:1b:00", "0000-1b-00", "GPU-0"}) {
    EXPECT_FALSE(ParsePciAddress(text).has_value()) << text;
  }
}

// Goal: messages as old and new drivers write them are read, those of a part of
// a GPU too.
TEST(XidTest, ReadsMessagesOfDrivers) {
  for (const char* record :
       {"4,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', "
        "name=<unknown>, GPU has fallen off the bus.\n SUBSYSTEM=pci\n",
        "3,4,5,c;NVRM: Xid (0000:1b:00): 79, Ch 0000000b",
        "6,1,2,-,caller=T7;NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 79, pid=4",
        "4,1,2,-;NVRM: Xid (PCI:0000:1B:00): 79"}) {
    const std::optional<Xid> xid = ParseXid(record);
    ASSERT_TRUE(xid.has_value()) << record;
    EXPECT_EQ(xid->number, 79) << record;
    EXPECT_EQ(xid->gpu, (PciAddress{.bus = 0x1b})) << record;
  }
}

// Goal: nobody but the kernel makes a GPU look bad: programs may write to the
// log with other facilities (12 is "user", 4), and may have names that other
// messages quote. Broken records are none. No record is read beyond its end.
TEST(XidTest, RefusesOtherMessages) {
  const std::string good = "4,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1";
  ASSERT_TRUE(ParseXid(good).has_value());
  for (const char* record :
       {"", ";", "4,1,2,-;", "NVRM: Xid (PCI:0000:1b:00): 79",
        "12,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1",
        "-4,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1",
        "x,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1",
        "4,1,2,-;segfault in NVRM: Xid (PCI:0000:1b:00): 79, pid=1",
        "4,1,2,-;eth0: up\n NAME=NVRM: Xid (PCI:0000:1b:00): 79, pid=1",
        "4,1,2,-;NVRM: GPU at PCI:0000:1b:00: GPU-b850f46d",
        "4,1,2,-;NVRM: Xid (PCI:0000:1b:00)",
        "4,1,2,-;NVRM: Xid (PCI:0000:1b:00\n): 79, pid=1",
        "4,1,2,-;NVRM: Xid (PCI:0000:1b:00): ",
        "4,1,2,-;NVRM: Xid (PCI:0000:1b:00): -79, pid=1",
        "4,1,2,-;NVRM: Xid (PCI:0000:1b:00): 0, pid=1",
        "4,1,2,-;NVRM: Xid (PCI:0000:1b:00): 99999999999999999999, pid=1",
        "4,1,2,-;NVRM: Xid (PCI:fffffffff:1b:00): 79, pid=1",
        "4,1,2,-;NVRM: Xid (): 79, pid=1"}) {
    EXPECT_FALSE(ParseXid(record).has_value()) << record;
  }
  for (size_t size = 0; size <= good.size(); ++size) {
    const std::optional<Xid> xid = ParseXid(good.substr(0, size));
    EXPECT_TRUE(!xid.has_value() || xid->number == 7 || xid->number == 79);
  }
  const std::string nul("4,1,2,-;NVRM: Xid (PCI:\0", 24);
  EXPECT_FALSE(ParseXid(nul).has_value());
}

TEST(XidTest, NamesNumbersOnceInOrder) {
  EXPECT_EQ(XidSentence({}), "");
  const std::vector<int32_t> off_bus = {79, 79};
  EXPECT_EQ(XidSentence(off_bus),
            "its GPU reported XID 79 (it fell off the bus)");
  const std::vector<int32_t> many = {4711, 74, 4711, 1, 2, 3, 4, 5};
  EXPECT_EQ(XidSentence(many),
            "its GPU reported XID 4711, 74 (an NVLink error), 1, 2, 3 and 2 "
            "other numbers");
}

}  // namespace
}  // namespace millrace

#include "base/host_memory.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Goal: the figures are read and make sense. Method: this machine's own.
TEST(HostMemoryTest, IsRead) {
  const std::optional<HostMemory> memory = ReadHostMemory();
  ASSERT_TRUE(memory.has_value());
  EXPECT_GT(memory->available, 0);
  EXPECT_LT(memory->available, memory->total);
}

}  // namespace
}  // namespace millrace

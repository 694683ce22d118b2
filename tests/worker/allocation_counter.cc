#include "tests/worker/allocation_counter.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> own{0};
std::atomic<int64_t> library{0};

bool IsLibrary(const char* path) {
  for (const char* name : {"libgloo", "libgomp"}) {
    if (std::strstr(path, name) != nullptr) return true;
  }
  return false;
}

// A library's call stack may end in our callback and go on into operator new;
// none does here, so any frame of a library makes it the library's.
void Count() {
  thread_local bool inside = false;
  if (inside || !counting.load(std::memory_order_relaxed)) return;
  inside = true;
  void* frames[32];
  const int num_frames = backtrace(frames, 32);
  bool from_library = false;
  for (int i = 0; i < num_frames && !from_library; ++i) {
    Dl_info info;
    from_library = dladdr(frames[i], &info) != 0 && info.dli_fname != nullptr &&
                   IsLibrary(info.dli_fname);
  }
  (from_library ? library : own).fetch_add(1, std::memory_order_relaxed);
  inside = false;
}

// Null when there is no memory.
void* AllocateOrNull(std::size_t bytes, std::size_t alignment) noexcept {
  Count();
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) {
    return nullptr;
  }
  return memory;
}

void* Allocate(std::size_t bytes, std::size_t alignment) {
  void* memory = AllocateOrNull(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return Allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<std::size_t>(alignment));
}
// std::stable_sort takes its buffer through this one.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return AllocateOrNull(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace millrace {

void StartCountingAllocations() {
  void* frames[1];
  backtrace(frames, 1);  // Loads what it needs now.
  own = 0;
  library = 0;
  counting = true;
}

AllocationCounts StopCountingAllocations() {
  counting = false;
  return {.own = own, .library = library};
}

}  // namespace millrace

// Work that may wait for disks or for other hosts, beside a thread that must
// not wait: done on a thread of its own, one piece after another, and its
// results handed back.

#ifndef MILLRACE_COORDINATOR_SIDE_WORK_H_
#define MILLRACE_COORDINATOR_SIDE_WORK_H_

#include <deque>
#include <functional>
#include <thread>
#include <utility>

namespace millrace {

// All but the work itself happens on the owner's thread.
class SideWork {
 public:
  // The consequence of a piece of work, for the owner's thread.
  using Then = std::function<void()>;
  using Work = std::function<Then()>;
  // `post` runs a function on the owner's thread, later. Thread-safe.
  using Post = std::function<void(std::function<void()>)>;

  explicit SideWork(Post post) : post_(std::move(post)) {}
  // Waits for the work under way; what follows from it, and the work that has
  // not begun, is dropped.
  ~SideWork();
  SideWork(const SideWork&) = delete;
  SideWork& operator=(const SideWork&) = delete;

  // Once all that was added before is done, and what follows from it, calls
  // `begin`, which returns the work; an empty function: there is nothing to do.
  void Add(std::function<Work()> begin);

 private:
  void BeginNext();

  const Post post_;
  std::deque<std::function<Work()>> waiting_;
  bool is_busy_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_SIDE_WORK_H_

#include "coordinator/side_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace millrace {
namespace {

using testing::ElementsAre;

// The owner's thread: carries out what is posted when it is asked to.
class Posted {
 public:
  void Post(std::function<void()> work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  void RunNext() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !work_.empty(); });
    const std::function<void()> next = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    next();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
};

// Goal: pieces of work are done one after another, each on another thread and
// begun only once what follows from the one before is done; one that turns out
// to be needless is passed over. Method: three pieces that write down what
// happens, of which the second is needless, and a fourth that the first adds.
TEST(SideWorkTest, DoesOneAfterAnother) {
  Posted posted;
  std::vector<std::string> order;
  const std::thread::id owner = std::this_thread::get_id();
  SideWork side([&](std::function<void()> work) { posted.Post(work); });
  const auto piece = [&](const std::string& name) {
    return [&, name]() -> SideWork::Work {
      order.push_back("begin " + name);
      return [&, name]() -> SideWork::Then {
        EXPECT_NE(std::this_thread::get_id(), owner);
        return [&, name] {
          EXPECT_EQ(std::this_thread::get_id(), owner);
          order.push_back("end " + name);
          if (name == "a") side.Add([]() -> SideWork::Work { return {}; });
        };
      };
    };
  };
  side.Add(piece("a"));
  side.Add([]() -> SideWork::Work { return nullptr; });
  side.Add(piece("b"));
  posted.RunNext();
  posted.RunNext();
  side.Add(piece("c"));
  posted.RunNext();
  EXPECT_THAT(order, ElementsAre("begin a", "end a", "begin b", "end b",
                                 "begin c", "end c"));
}

// Goal: an owner that ends waits for the work under way, and nothing follows.
// Method: work that has not been begun, and work whose result is not fetched.
TEST(SideWorkTest, EndsWithItsOwner) {
  bool is_done = false;
  bool followed = false;
  {
    SideWork side([](const std::function<void()>&) {});
    side.Add([&]() -> SideWork::Work {
      return [&]() -> SideWork::Then {
        is_done = true;
        return [&] { followed = true; };
      };
    });
    side.Add([&]() -> SideWork::Work {
      followed = true;
      return nullptr;
    });
  }
  EXPECT_TRUE(is_done);
  EXPECT_FALSE(followed);
}

}  // namespace
}  // namespace millrace

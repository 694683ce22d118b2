#include "coordinator/side_work.h"

namespace millrace {

SideWork::~SideWork() {
  if (thread_.joinable()) thread_.join();
}

void SideWork::Add(std::function<Work()> begin) {
  waiting_.push_back(std::move(begin));
  BeginNext();
}

void SideWork::BeginNext() {
  while (!is_busy_ && !waiting_.empty()) {
    const std::function<Work()> begin = std::move(waiting_.front());
    waiting_.pop_front();
    is_busy_ = true;  // `begin` may add more, which comes later.
    Work work = begin();
    if (work == nullptr) {
      is_busy_ = false;
      continue;
    }
    if (thread_.joinable()) thread_.join();  // It has posted, and ends.
    thread_ = std::thread([this, work = std::move(work)] {
      post_([this, then = work()] {
        then();
        is_busy_ = false;
        BeginNext();
      });
    });
  }
}

}  // namespace millrace

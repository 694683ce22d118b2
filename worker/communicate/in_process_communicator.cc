#include "worker/communicate/in_process_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker/communicate/reduction.h"

namespace millrace {
namespace {

using RoomKey = std::tuple<Group, int32_t, std::vector<Rank>>;

// The state that members of one (group, channel) share.
struct Room {
  explicit Room(RoomKey key)
      : members(std::get<2>(key)),
        name(absl::StrCat(GroupName(std::get<0>(key)), " group (ranks ",
                          absl::StrJoin(members, ", ",
                                        [](std::string* out, Rank rank) {
                                          absl::StrAppend(out, ToInt(rank));
                                        }),
                          "; channel ", std::get<1>(key), ")")),
        joined(members.size(), false),
        gone(members.size(), false),
        aborted(members.size(), false),
        operands(members.size(), nullptr),
        letters(members.size() * members.size()) {}

  // Point to point from one member to another: the receiver copies out of the
  // sender's memory.
  struct Letter {
    const void* data = nullptr;  // Not null: waits to be taken.
    int64_t num_bytes = 0;
  };

  const std::vector<Rank> members;
  const std::string name;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> joined;
  std::vector<bool> gone;     // Destroyed or aborted.
  std::vector<bool> aborted;  // By itself.
  int32_t num_waiting = 0;    // At the barrier.
  uint64_t barrier_phase = 0;
  std::vector<const void*> operands;
  std::vector<Letter> letters;  // [from][to].
};

class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<Room> room, int32_t index)
      : room_(std::move(room)), index_(index), terms_(room_->members.size()) {}
  ~InProcessCommunicator() override { Leave(/*aborted=*/false); }

  int32_t size() const override {
    return static_cast<int32_t>(room_->members.size());
  }
  int32_t index() const override { return index_; }

  absl::Status AllGather(const void* shard, void* full, int64_t num_elements,
                         DType dtype) override {
    CHECK(num_elements % size() == 0);
    const int64_t shard_bytes = num_elements / size() * DTypeBytes(dtype);
    RETURN_IF_ERROR(Meet(shard));
    for (int32_t member = 0; member < size(); ++member) {
      char* to = static_cast<char*>(full) + member * shard_bytes;
      if (to != room_->operands[member]) {
        std::memmove(to, room_->operands[member], shard_bytes);
      }
    }
    return Part();
  }

  absl::Status ReduceScatter(void* full, void* shard, int64_t num_elements,
                             DType dtype) override {
    CHECK(num_elements % size() == 0);
    const int64_t shard_elements = num_elements / size();
    RETURN_IF_ERROR(Meet(full));
    TakeTerms(index_ * shard_elements * DTypeBytes(dtype));
    SumInOrder(terms_, shard, shard_elements, dtype);
    return Part();
  }

  absl::Status AllReduce(void* data, int64_t num_elements,
                         DType dtype) override {
    RETURN_IF_ERROR(Meet(data));
    // Each member sums one slice and writes it into everybody's memory; nobody
    // else touches that slice.
    const ElementRange slice = SliceOf(num_elements, size(), index_);
    const int64_t offset = slice.begin * DTypeBytes(dtype);
    TakeTerms(offset);
    char* mine = static_cast<char*>(data) + offset;
    SumInOrder(terms_, mine, slice.size(), dtype);
    for (int32_t member = 0; member < size(); ++member) {
      // The pointers may be null if there are no elements.
      if (member == index_ || slice.size() == 0) continue;
      std::memcpy(const_cast<char*>(static_cast<const char*>(terms_[member])),
                  mine, slice.size() * DTypeBytes(dtype));
    }
    return Part();
  }

  absl::Status Send(const void* data, int64_t num_bytes,
                    int32_t to_index) override {
    std::unique_lock lock(room_->mutex);
    Room::Letter& letter = LetterOf(index_, to_index);
    RETURN_IF_ERROR(Health(to_index));
    letter = {.data = data, .num_bytes = num_bytes};
    room_->changed.notify_all();
    room_->changed.wait(
        lock, [&] { return letter.data == nullptr || !Health(to_index).ok(); });
    if (letter.data == nullptr) return absl::OkStatus();
    letter.data = nullptr;
    return Health(to_index);
  }

  absl::Status Receive(void* data, int64_t num_bytes,
                       int32_t from_index) override {
    std::unique_lock lock(room_->mutex);
    Room::Letter& letter = LetterOf(from_index, index_);
    room_->changed.wait(lock, [&] {
      return letter.data != nullptr || !Health(from_index).ok();
    });
    if (letter.data == nullptr) return Health(from_index);
    CHECK(letter.num_bytes == num_bytes) << room_->name;
    std::memcpy(data, letter.data, num_bytes);
    letter.data = nullptr;
    room_->changed.notify_all();
    return absl::OkStatus();
  }

  void Abort() override { Leave(/*aborted=*/true); }

 private:
  Room::Letter& LetterOf(int32_t from, int32_t to) {
    return room_->letters[from * size() + to];
  }

  // `peer` -1: any. The room's mutex is held.
  absl::Status Health(int32_t peer) {
    if (room_->aborted[index_]) {
      return absl::AbortedError(absl::StrCat(room_->name, ": aborted"));
    }
    for (int32_t member = 0; member < size(); ++member) {
      if (room_->gone[member] && (peer < 0 || peer == member)) {
        return absl::UnavailableError(absl::StrCat(
            room_->name, ": rank ", ToInt(room_->members[member]), " is gone"));
      }
    }
    return absl::OkStatus();
  }

  // Publishes this member's memory and waits for all others'. Once it succeeds
  // it has succeeded for everyone, so all of them reach Part().
  absl::Status Meet(const void* operand) {
    std::unique_lock lock(room_->mutex);
    RETURN_IF_ERROR(Health(-1));
    room_->operands[index_] = operand;
    if (++room_->num_waiting == size()) {
      OpenBarrier();
      return absl::OkStatus();
    }
    const uint64_t phase = room_->barrier_phase;
    room_->changed.wait(lock, [&] {
      return room_->barrier_phase != phase || !Health(-1).ok();
    });
    if (room_->barrier_phase != phase) return absl::OkStatus();
    --room_->num_waiting;
    return Health(-1);
  }

  // Waits until nobody reads this member's memory any more, aborted or not.
  absl::Status Part() {
    std::unique_lock lock(room_->mutex);
    if (++room_->num_waiting == size()) {
      OpenBarrier();
      return absl::OkStatus();
    }
    const uint64_t phase = room_->barrier_phase;
    room_->changed.wait(lock, [&] { return room_->barrier_phase != phase; });
    return absl::OkStatus();
  }

  void OpenBarrier() {
    room_->num_waiting = 0;
    ++room_->barrier_phase;
    room_->changed.notify_all();
  }

  void TakeTerms(int64_t offset_bytes) {
    for (int32_t member = 0; member < size(); ++member) {
      terms_[member] =
          static_cast<const char*>(room_->operands[member]) + offset_bytes;
    }
  }

  void Leave(bool aborted) {
    std::lock_guard lock(room_->mutex);
    room_->gone[index_] = true;
    if (aborted) room_->aborted[index_] = true;
    room_->changed.notify_all();
  }

  const std::shared_ptr<Room> room_;
  const int32_t index_;
  std::vector<const void*> terms_;  // One a member.
};

}  // namespace

class InProcessHub::State {
 public:
  explicit State(absl::Duration create_timeout)
      : create_timeout_(create_timeout) {}

  // The room that is still filling for `key`; the last to join closes it, so
  // that the next communicators of these ranks get a room of their own.
  std::shared_ptr<Room> Join(const RoomKey& key, int32_t index) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Room>& entry = filling_[key];
    if (entry == nullptr) entry = std::make_shared<Room>(key);
    const std::shared_ptr<Room> room = entry;
    std::lock_guard room_lock(room->mutex);
    CHECK(!room->joined[index]) << room->name << ": a rank joined twice";
    room->joined[index] = true;
    if (std::find(room->joined.begin(), room->joined.end(), false) ==
        room->joined.end()) {
      filling_.erase(key);
    }
    room->changed.notify_all();
    return room;
  }

  absl::Duration create_timeout() const { return create_timeout_; }

 private:
  const absl::Duration create_timeout_;
  std::mutex mutex_;
  std::map<RoomKey, std::shared_ptr<Room>> filling_;
};

namespace {

class InProcessFactory : public CommunicatorFactory {
 public:
  explicit InProcessFactory(std::shared_ptr<InProcessHub::State> state)
      : state_(std::move(state)) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      CommunicatorKey key, const std::vector<Rank>& members,
      Rank self) override {
    const auto position = std::find(members.begin(), members.end(), self);
    CHECK(position != members.end());
    const auto index = static_cast<int32_t>(position - members.begin());
    std::shared_ptr<Room> room;
    {
      std::lock_guard lock(mutex_);
      if (aborted_) return absl::AbortedError("communicators are aborted");
      room = state_->Join({key.group, key.channel, members}, index);
      memberships_.push_back({room, index});
    }
    std::unique_lock lock(room->mutex);
    const auto all_joined = [&] {
      return std::find(room->joined.begin(), room->joined.end(), false) ==
             room->joined.end();
    };
    room->changed.wait_for(
        lock, absl::ToChronoMilliseconds(state_->create_timeout()),
        [&] { return all_joined() || room->aborted[index]; });
    if (room->aborted[index]) {
      return absl::AbortedError(absl::StrCat(room->name, ": aborted"));
    }
    if (!all_joined()) {
      std::vector<int32_t> missing;
      for (size_t m = 0; m < members.size(); ++m) {
        if (!room->joined[m]) missing.push_back(ToInt(members[m]));
      }
      return absl::DeadlineExceededError(absl::StrCat(
          room->name, ": no sign of rank ", absl::StrJoin(missing, ", "),
          " within ", absl::FormatDuration(state_->create_timeout())));
    }
    lock.unlock();
    return std::make_unique<InProcessCommunicator>(std::move(room), index);
  }

  void Abort() override {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    for (const Membership& membership : memberships_) {
      std::lock_guard room_lock(membership.room->mutex);
      membership.room->gone[membership.index] = true;
      membership.room->aborted[membership.index] = true;
      membership.room->changed.notify_all();
    }
  }

 private:
  struct Membership {
    std::shared_ptr<Room> room;
    int32_t index;
  };
  const std::shared_ptr<InProcessHub::State> state_;
  std::mutex mutex_;
  bool aborted_ = false;
  std::vector<Membership> memberships_;
};

}  // namespace

InProcessHub::InProcessHub(absl::Duration create_timeout)
    : state_(std::make_shared<State>(create_timeout)) {}
InProcessHub::~InProcessHub() = default;

std::unique_ptr<CommunicatorFactory> InProcessHub::NewFactory() {
  return std::make_unique<InProcessFactory>(state_);
}

}  // namespace millrace

#include "worker/agent/replica_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/fault/state_fixture.h"
#include "tests/sweep.h"
#include "worker/agent/replica_keeper.h"
#include "worker/agent/replica_store.h"
#include "worker/train/state_snapshot.h"

namespace millrace {
namespace {

constexpr char kSecretOfJob[] = "0123456789abcdef";
constexpr char kLoopback[] = "127.0.0.1";

std::unique_ptr<ReplicaKeeper> NewKeeper(int memory_fd = -1) {
  absl::StatusOr<std::unique_ptr<ReplicaKeeper>> keeper =
      ReplicaKeeper::Create(kLoopback, kSecretOfJob, memory_fd);
  EXPECT_TRUE(keeper.ok()) << keeper.status();
  return *std::move(keeper);
}

std::vector<Rank> RanksIn(const ReplicaStore& store, const ReplicaSet& set) {
  std::vector<Rank> ranks;
  for (const StoredReplica& stored : store.List()) {
    if (stored.part.set == set) ranks.push_back(stored.part.rank);
  }
  return ranks;
}

std::vector<StatePiece> PiecesOf(std::vector<RankState>& ranks) {
  std::vector<StatePiece> pieces;
  for (RankState& rank : ranks) {
    pieces.insert(pieces.end(), rank.pieces.begin(), rank.pieces.end());
  }
  return pieces;
}

// Goal: a state that several workers hold in memory comes back bit for bit
// under every layout. Method: every layout of up to four ranks writes its
// parts into two workers' stores; every layout of up to two reads them, as the
// second worker, over the network and from its own store.
TEST(ReplicaExchangeTest, RestoresAnyLayoutFromAnyOther) {
  const ModelSpec model = TinyModel();
  const ReplicaSet set = {Generation{1}, 7};
  for (const Layout& from : Sampled(AllLayouts(4), 5)) {
    SCOPED_TRACE(LayoutToString(from));
    std::vector<std::unique_ptr<ReplicaKeeper>> keepers;
    keepers.push_back(NewKeeper());
    keepers.push_back(NewKeeper());
    std::vector<RankState> state = MakeState(model, from);
    FillState(state, 5);
    std::vector<std::string> addresses;
    for (const RankState& rank : state) {
      ReplicaKeeper& keeper = *keepers[ToInt(rank.rank) % 2];
      ASSERT_EQ(keeper.KeepNow(InfoOf(from, 7), rank.rank, rank.pieces),
                absl::OkStatus());
      addresses.push_back(keeper.address());
    }
    for (const Layout& to : AllLayouts(2)) {
      SCOPED_TRACE(LayoutToString(to));
      std::vector<RankState> filled = MakeState(model, to);
      ReplicaClient client(kSecretOfJob);
      ASSERT_EQ(client.Fill(set, addresses, keepers[1]->address(),
                            keepers[1]->store(), PiecesOf(filled)),
                absl::OkStatus());
      EXPECT_EQ(CountWrong(filled, 5), 0);
    }
  }
}

// Goal: what a process kept, the next one of its worker finds and gives to
// others; what it was writing when it ended is gone. Method: two stores of one
// memory file, one after the other.
TEST(ReplicaExchangeTest, OutlivesItsProcess) {
  const ModelSpec model = TinyModel();
  const Layout layout;
  std::vector<RankState> state = MakeState(model, layout);
  FillState(state, 3);
  const absl::StatusOr<int> agents_fd = ReplicaStore::MakeMemoryFile();
  ASSERT_TRUE(agents_fd.ok());
  {
    const auto keeper = NewKeeper(dup(*agents_fd));
    ASSERT_EQ(keeper->KeepNow(InfoOf(layout, 7), Rank{0}, state[0].pieces),
              absl::OkStatus());
    auto writer = keeper->store().Begin(
        {.part = {{Generation{1}, 8}, Rank{0}}, .num_ranks = 1, .bytes = 100});
    ASSERT_TRUE(writer.ok());
    ASSERT_EQ((*writer)->Append("half", 4), absl::OkStatus());
    // SIGKILL ends a process likewise, with nothing tidied up. The leak checker
    // does not count what a static variable points to.
    [[maybe_unused]] static const auto* const never_ended = writer->release();
  }
  const auto keeper = NewKeeper(dup(*agents_fd));
  EXPECT_EQ(keeper->store().List().size(), 1u);
  EXPECT_EQ(keeper->Held().parts_size(), 1);
  std::vector<RankState> filled = MakeState(model, layout);
  ReplicaClient client(kSecretOfJob);
  ASSERT_EQ(client.Fill({Generation{1}, 7}, {keeper->address()}, "",
                        keeper->store(), PiecesOf(filled)),
            absl::OkStatus());
  EXPECT_EQ(CountWrong(filled, 3), 0);
  close(*agents_fd);
}

// Goal: a snapshot reaches the store and both partners. Of older sets the
// newest one of two steps before stays, and that of the step before, which
// other ranks may still be sending. Method: snapshots of four steps in a row.
TEST(ReplicaExchangeTest, KeepsTheNewestSetsHereAndAtThePartners) {
  const ModelSpec model = TinyModel();
  Layout layout;
  layout.data = 2;
  layout.zero = 1;
  std::vector<RankState> state = MakeState(model, layout);
  const auto own = NewKeeper();
  const auto partner = NewKeeper();
  const auto other = NewKeeper();
  const auto client = std::make_shared<ReplicaClient>(kSecretOfJob);
  const std::atomic<bool> aborted = false;
  for (int64_t step = 1; step <= 4; ++step) {
    FillState(state, step);
    auto snapshot = StateSnapshot::Create(state[0].pieces);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    ASSERT_EQ((*snapshot)->CopyFrom(state[0].pieces), absl::OkStatus());
    ASSERT_EQ(own->Keep({.info = InfoOf(layout, step),
                         .rank = Rank{0},
                         .snapshot = *snapshot,
                         .partners = {partner->address(), other->address()},
                         .client = client},
                        aborted),
              absl::OkStatus());
    ASSERT_EQ(own->WaitUntilIdle(aborted), absl::OkStatus());
    EXPECT_EQ(own->TakeError(), "");
  }
  for (const ReplicaKeeper* keeper : {own.get(), partner.get(), other.get()}) {
    EXPECT_EQ(keeper->Held().parts_size(), 3);
  }
  EXPECT_EQ(partner->store().List()[0].kind, ReplicaKind::kCopy);
  EXPECT_EQ(RanksIn(partner->store(), {Generation{1}, 2}),
            std::vector<Rank>{Rank{0}});
  EXPECT_EQ(RanksIn(partner->store(), {Generation{1}, 4}),
            std::vector<Rank>{Rank{0}});
  EXPECT_EQ(RanksIn(partner->store(), {Generation{1}, 1}), std::vector<Rank>{});
  // The first set of a generation leaves all others alone.
  ASSERT_EQ(partner->KeepNow(InfoOf(layout, 3, 2), Rank{0}, state[0].pieces),
            absl::OkStatus());
  partner->store().DropBefore({Generation{2}, 3});
  EXPECT_EQ(partner->Held().parts_size(), 4);
  // Nor does a set of the next step, before which it may be on its way.
  partner->store().DropBefore({Generation{2}, 4});
  EXPECT_EQ(partner->Held().parts_size(), 4);
  partner->store().DropBefore({Generation{2}, 5});
  EXPECT_EQ(partner->Held().parts_size(), 1);
  partner->store().DropAfter(3);
  EXPECT_EQ(partner->Held().parts_size(), 1);
  partner->store().DropAfter(2);
  EXPECT_EQ(partner->Held().parts_size(), 0);
  own->store().Clear();
  EXPECT_EQ(own->Held().parts_size(), 0);
}

// Goal: a part is written into the memory of the one that it takes the place
// of, and is whole there though it is shorter; memory that no part takes is
// given back. Method: the blocks of the memory file, parts of random bytes.
TEST(ReplicaStoreTest, NextPartTakesTheMemoryOfTheOneBefore) {
  const absl::StatusOr<int> fd = ReplicaStore::MakeMemoryFile();
  ASSERT_TRUE(fd.ok()) << fd.status();
  const auto store = ReplicaStore::Open(*fd);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto blocks = [&] {
    struct stat status = {};
    EXPECT_EQ(fstat(*fd, &status), 0);
    return status.st_blocks;
  };
  std::vector<RankState> state = MakeState(TinyModel(), Layout{});
  const auto entry_of = [&](int64_t step) {
    const auto keeper = NewKeeper();
    EXPECT_EQ(keeper->KeepNow(InfoOf(Layout{}, step), Rank{0}, state[0].pieces),
              absl::OkStatus());
    return *keeper->store().Entry({{Generation{1}, step}, Rank{0}});
  };
  std::mt19937 random(7);
  const auto add = [&](int64_t step, int32_t rank, size_t num_bytes) {
    std::string bytes(num_bytes, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const ReplicaPart part = {{Generation{1}, step}, Rank{rank}};
    (*store)->DropBefore(part.set);
    auto writer = (*store)->Begin({.part = part, .num_ranks = 2});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_EQ((*writer)->Append(bytes.data(), num_bytes), absl::OkStatus());
    const std::string entry = entry_of(step);
    ASSERT_EQ((*writer)->Commit(entry), absl::OkStatus());
    std::string read(num_bytes, '\0');
    ASSERT_EQ((*store)->Read(part, 0, num_bytes, read.data()),
              absl::OkStatus());
    EXPECT_EQ(read, bytes);
    EXPECT_EQ(*(*store)->Entry(part), entry);
  };
  {
    auto writer = (*store)->Begin({.part = {{Generation{1}, 1}, Rank{0}}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_FALSE((*writer)->Commit("no entry").ok());
  }
  EXPECT_TRUE((*store)->List().empty());
  constexpr size_t kBytes = 1 << 20;
  for (int64_t step = 2; step <= 6; step += 2) {
    add(step, 0, kBytes);
    add(step, 1, kBytes);
  }
  const int64_t most = blocks();
  for (int64_t step = 8; step <= 12; step += 2) {
    (*store)->DropBefore({Generation{1}, step});
    EXPECT_EQ(blocks(), most);
    add(step, 0, kBytes - 4096);
    add(step, 1, kBytes - 5);
    EXPECT_EQ(blocks(), most);
  }
  EXPECT_EQ((*store)->List().size(), 4u);
  // Another process finds the parts, and memory for two that it begins.
  const auto next = ReplicaStore::Open(dup(*fd));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->List().size(), 4u);
  EXPECT_EQ(blocks(), most);
  (*store)->Clear();
  EXPECT_LT(blocks(), most / 10);
}

// Goal: a partner that is gone, does not know the secret or holds a newer
// generation costs a copy and an error that names it, nothing else.
TEST(ReplicaExchangeTest, SaysWhyACopyFailed) {
  std::vector<RankState> state = MakeState(TinyModel(), Layout{});
  auto own = NewKeeper();
  ASSERT_EQ(own->KeepNow(InfoOf(Layout{}, 7), Rank{0}, state[0].pieces),
            absl::OkStatus());
  const StoredReplica stored = own->store().List()[0];
  auto partner = NewKeeper();
  ReplicaClient stranger("another secret!!");
  EXPECT_EQ(stranger.Push(own->store(), stored, partner->address()).code(),
            absl::StatusCode::kPermissionDenied);
  partner->RefuseOlderThan(Generation{2});
  ReplicaClient client(kSecretOfJob);
  EXPECT_FALSE(client.Push(own->store(), stored, partner->address()).ok());
  EXPECT_EQ(partner->Held().parts_size(), 0);
  const std::string address = partner->address();
  partner.reset();
  const absl::Status gone = client.Push(own->store(), stored, address);
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(gone.message(), testing::HasSubstr(address));
  std::vector<RankState> filled = MakeState(TinyModel(), Layout{});
  const auto fill = [&] {  // From its own store, without a connection.
    return client.Fill({Generation{1}, 7}, {own->address()}, own->address(),
                       own->store(), PiecesOf(filled));
  };
  EXPECT_EQ(fill(), absl::OkStatus());
  client.Abort();
  EXPECT_EQ(fill().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(client.Push(own->store(), stored, own->address()).code(),
            absl::StatusCode::kAborted);
}

// Goal: a partner that is gone is named, and the other one gets its copy.
TEST(ReplicaExchangeTest, OnePartnerThatIsGoneLeavesTheOtherItsCopy) {
  std::vector<RankState> state = MakeState(TinyModel(), Layout{});
  const auto own = NewKeeper();
  auto gone = NewKeeper();
  const auto other = NewKeeper();
  const std::string gone_address = gone->address();
  gone.reset();
  auto snapshot = StateSnapshot::Create(state[0].pieces);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ASSERT_EQ((*snapshot)->CopyFrom(state[0].pieces), absl::OkStatus());
  const std::atomic<bool> aborted = false;
  ASSERT_EQ(own->Keep({.info = InfoOf(Layout{}, 7),
                       .rank = Rank{0},
                       .snapshot = *snapshot,
                       .partners = {gone_address, other->address()},
                       .client = std::make_shared<ReplicaClient>(kSecretOfJob)},
                      aborted),
            absl::OkStatus());
  ASSERT_EQ(own->WaitUntilIdle(aborted), absl::OkStatus());
  EXPECT_THAT(own->TakeError(), testing::HasSubstr(gone_address));
  EXPECT_EQ(other->Held().parts_size(), 1);
}

// Goal: workers that keep equal bits of a part state equal hashes of it,
// however they came to keep it, and one flipped bit changes the hash of its
// part alone. Method: a live part, a snapshot of the same, its partner's copy,
// and what the next process finds; then each of some elements flips.
TEST(ReplicaExchangeTest, StatesAHashOfEachPart) {
  const Layout layout = {.data = 2};
  std::vector<RankState> state = MakeState(TinyModel(), layout);
  FillState(state, 1);
  const std::atomic<bool> aborted = false;
  const absl::StatusOr<int> fd = ReplicaStore::MakeMemoryFile();
  ASSERT_TRUE(fd.ok());
  const auto live = NewKeeper(dup(*fd));
  for (const RankState& rank : state) {
    ASSERT_EQ(live->KeepNow(InfoOf(layout, 7), rank.rank, rank.pieces),
              absl::OkStatus());
  }
  const auto snapshots = NewKeeper();
  const auto partner = NewKeeper();
  auto snapshot = StateSnapshot::Create(state[0].pieces);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ASSERT_EQ((*snapshot)->CopyFrom(state[0].pieces), absl::OkStatus());
  ASSERT_EQ(
      snapshots->Keep({.info = InfoOf(layout, 7),
                       .rank = Rank{0},
                       .snapshot = *snapshot,
                       .partners = {partner->address()},
                       .client = std::make_shared<ReplicaClient>(kSecretOfJob)},
                      aborted),
      absl::OkStatus());
  ASSERT_EQ(snapshots->WaitUntilIdle(aborted), absl::OkStatus());
  const protocol::HeldReplicas held = live->Held();
  ASSERT_EQ(held.parts_size(), 2);
  EXPECT_NE(held.parts(0).hash(), held.parts(1).hash());
  for (const auto* other : {snapshots.get(), partner.get()}) {
    ASSERT_EQ(other->Held().parts_size(), 1);
    EXPECT_EQ(other->Held().parts(0).hash(), held.parts(0).hash());
  }
  EXPECT_EQ(NewKeeper(dup(*fd))->Held().parts(1).hash(), held.parts(1).hash());
  for (const StatePiece& piece : state[0].pieces) {
    SCOPED_TRACE(piece.tensor);
    if (piece.begin == piece.end) continue;
    float& element = piece.data[(piece.end - piece.begin) / 2];
    const float whole = element;
    element = std::bit_cast<float>(std::bit_cast<uint32_t>(whole) ^ 1);
    const auto flipped = NewKeeper();
    for (const RankState& rank : state) {
      ASSERT_EQ(flipped->KeepNow(InfoOf(layout, 7), rank.rank, rank.pieces),
                absl::OkStatus());
    }
    element = whole;
    EXPECT_EQ(flipped->Held().parts(0).hash() != held.parts(0).hash(),
              piece.is_owner);
    EXPECT_EQ(flipped->Held().parts(1).hash(), held.parts(1).hash());
  }
  close(*fd);
}

// Goal: a damaged part is noticed, and one that is not there.
TEST(ReplicaExchangeTest, NoticesDamage) {
  std::vector<RankState> state = MakeState(TinyModel(), Layout{});
  FillState(state, 1);
  const absl::StatusOr<int> fd = ReplicaStore::MakeMemoryFile();
  ASSERT_TRUE(fd.ok());
  const auto keeper = NewKeeper(dup(*fd));
  ASSERT_EQ(keeper->KeepNow(InfoOf(Layout{}, 7), Rank{0}, state[0].pieces),
            absl::OkStatus());
  ReplicaClient client(kSecretOfJob);
  const auto fill = [&](int64_t step) {
    return client.Fill({Generation{1}, step}, {keeper->address()}, "",
                       keeper->store(), PiecesOf(state));
  };
  EXPECT_EQ(fill(7), absl::OkStatus());
  EXPECT_EQ(fill(8).code(), absl::StatusCode::kNotFound);
  // The last byte of the part.
  const int64_t at = 4096 + keeper->store().List()[0].bytes - 1;
  char byte = 0;
  ASSERT_EQ(pread(*fd, &byte, 1, at), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(pwrite(*fd, &byte, 1, at), 1);
  EXPECT_EQ(fill(7).code(), absl::StatusCode::kDataLoss);
  close(*fd);
}

}  // namespace
}  // namespace millrace

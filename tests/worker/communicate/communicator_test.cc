#include "worker/communicate/communicator.h"

#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/cast.h"
#include "worker/communicate/gloo_communicator.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/communicate/memory_rendezvous_store.h"
#include "worker/communicate/reduction.h"

namespace millrace {
namespace {

// One way of joining threads into a world.
class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<CommunicatorFactory> NewFactory() = 0;
};

class InProcessWorld : public World {
 public:
  explicit InProcessWorld(absl::Duration timeout) : hub_(timeout) {}
  std::unique_ptr<CommunicatorFactory> NewFactory() override {
    return hub_.NewFactory();
  }

 private:
  InProcessHub hub_;
};

class GlooWorld : public World {
 public:
  explicit GlooWorld(absl::Duration timeout) : timeout_(timeout) {}
  std::unique_ptr<CommunicatorFactory> NewFactory() override {
    auto factory = CreateGlooFactory({.store = &store_,
                                      .host_address = "127.0.0.1",
                                      .connect_timeout = timeout_});
    EXPECT_TRUE(factory.ok()) << factory.status();
    return *std::move(factory);
  }

 private:
  MemoryRendezvousStore store_;
  const absl::Duration timeout_;
};

template <typename W>
class CommunicatorTest : public testing::Test {
 protected:
  // Runs `body` as every rank of a group of `size`, each in its own thread,
  // once all have connected: a rank that leaves earlier would make the others'
  // creation fail, and rightly so.
  void RunRanks(
      int32_t size,
      const std::function<void(Communicator&, CommunicatorFactory&)>& body,
      absl::Duration timeout = absl::Seconds(20)) {
    W world(timeout);
    std::vector<Rank> members;
    for (int32_t rank = 0; rank < size; ++rank) members.push_back(Rank{rank});
    std::latch connected(size);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        auto factory = world.NewFactory();
        auto communicator =
            factory->Create({.group = Group::kData}, members, Rank{rank});
        connected.arrive_and_wait();
        ASSERT_TRUE(communicator.ok()) << communicator.status();
        EXPECT_EQ((*communicator)->size(), size);
        EXPECT_EQ((*communicator)->index(), rank);
        body(**communicator, *factory);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

using Worlds = testing::Types<InProcessWorld, GlooWorld>;
TYPED_TEST_SUITE(CommunicatorTest, Worlds);

// Values whose sum depends on the order in which it is taken.
template <typename T>
T Term(int32_t member, int64_t element) {
  return static_cast<T>(1) / static_cast<T>(3 + member * 7 + element % 1013);
}
template <typename T>
T SumOfTerms(int32_t size, int64_t element) {
  T sum = Term<T>(0, element);
  for (int32_t member = 1; member < size; ++member) {
    sum += Term<T>(member, element);
  }
  return sum;
}
template <typename T>
std::vector<T> Terms(int32_t member, int64_t num_elements) {
  std::vector<T> terms(num_elements);
  for (int64_t e = 0; e < num_elements; ++e) terms[e] = Term<T>(member, e);
  return terms;
}

template <typename T>
void ExpectSums(const std::vector<T>& sums, int32_t size, int64_t first) {
  for (size_t e = 0; e < sums.size(); ++e) {
    ASSERT_EQ(sums[e], SumOfTerms<T>(size, first + static_cast<int64_t>(e)))
        << "element " << e;
  }
}

// Sizes around every switch: empty, tiny, one round, several pieces, uneven.
constexpr int64_t kElementCounts[] = {0, 1, 4, 5, 1000, 2049, 100003};

// Goal: an all-reduce gives every member the sum in member order, bit for bit,
// for both dtypes and any size. Method: terms that round; compare with the
// plain sum.
TYPED_TEST(CommunicatorTest, AllReduceSumsInMemberOrder) {
  for (const int32_t size : {1, 2, 3, 4}) {
    this->RunRanks(size, [&](Communicator& communicator, CommunicatorFactory&) {
      for (const int64_t count : kElementCounts) {
        auto floats = Terms<float>(communicator.index(), count);
        ASSERT_TRUE(
            communicator.AllReduce(floats.data(), count, DType::kFloat32).ok());
        ExpectSums(floats, size, 0);
        auto doubles = Terms<double>(communicator.index(), count);
        ASSERT_TRUE(
            communicator.AllReduce(doubles.data(), count, DType::kFloat64)
                .ok());
        ExpectSums(doubles, size, 0);
      }
    });
  }
}

// Goal: reduce-scatter leaves member i the sum of slice i, in place and apart.
// Method: as above.
TYPED_TEST(CommunicatorTest, ReduceScatterGivesEachItsSlice) {
  for (const int32_t size : {1, 2, 3, 4}) {
    this->RunRanks(size, [&](Communicator& communicator, CommunicatorFactory&) {
      for (const int64_t shard_count : {0, 1, 333, 70001}) {
        const int64_t count = shard_count * size;
        const int64_t first = communicator.index() * shard_count;
        auto full = Terms<float>(communicator.index(), count);
        std::vector<float> shard(shard_count);
        ASSERT_TRUE(communicator
                        .ReduceScatter(full.data(), shard.data(), count,
                                       DType::kFloat32)
                        .ok());
        ExpectSums(shard, size, first);
        full = Terms<float>(communicator.index(), count);
        ASSERT_TRUE(communicator
                        .ReduceScatter(full.data(), full.data() + first, count,
                                       DType::kFloat32)
                        .ok());
        ExpectSums(std::vector<float>(full.begin() + first,
                                      full.begin() + first + shard_count),
                   size, first);
      }
    });
  }
}

// Goal: bf16 is summed in fp32 in member order and rounded once. Method: terms
// whose sum in steps of bf16 would differ; both reductions.
TYPED_TEST(CommunicatorTest, SumsOfBf16RoundOnce) {
  const auto bits = [](int32_t member, int64_t count) {
    std::vector<uint16_t> terms(count);
    for (int64_t e = 0; e < count; ++e) {
      terms[e] = EncodeBf16(Term<float>(member, e));
    }
    return terms;
  };
  const auto sum = [](int32_t size, int64_t element) {
    float exact = 0, stepwise = 0;
    for (int32_t member = 0; member < size; ++member) {
      const float term = DecodeBf16(EncodeBf16(Term<float>(member, element)));
      exact += term;
      stepwise = DecodeBf16(EncodeBf16(stepwise + term));
    }
    return std::pair(EncodeBf16(exact), EncodeBf16(stepwise));
  };
  for (const int32_t size : {1, 3, 4}) {
    this->RunRanks(size, [&](Communicator& communicator, CommunicatorFactory&) {
      int num_stepwise_differs = 0;
      for (const int64_t count : kElementCounts) {
        auto all = bits(communicator.index(), count);
        ASSERT_TRUE(
            communicator.AllReduce(all.data(), count, DType::kBfloat16).ok());
        for (int64_t e = 0; e < count; ++e) {
          const auto [once, stepwise] = sum(size, e);
          ASSERT_EQ(all[e], once) << "element " << e;
          if (once != stepwise) ++num_stepwise_differs;
        }
        auto full = bits(communicator.index(), count * size);
        std::vector<uint16_t> shard(count);
        ASSERT_TRUE(communicator
                        .ReduceScatter(full.data(), shard.data(), count * size,
                                       DType::kBfloat16)
                        .ok());
        for (int64_t e = 0; e < count; ++e) {
          ASSERT_EQ(shard[e],
                    sum(size, communicator.index() * count + e).first);
        }
      }
      EXPECT_EQ(num_stepwise_differs > 0, size > 1);
    });
  }
}

// Goal: all-gather lines the shards up in member order, in place and apart.
// Method: shards that name their member.
TYPED_TEST(CommunicatorTest, AllGatherLinesUpShards) {
  for (const int32_t size : {1, 2, 3, 4}) {
    this->RunRanks(size, [&](Communicator& communicator, CommunicatorFactory&) {
      for (const int64_t shard_count : {0, 1, 333, 70001}) {
        const int64_t count = shard_count * size;
        const std::vector<float> shard(shard_count,
                                       1.0f + communicator.index());
        std::vector<float> apart(count);
        ASSERT_TRUE(
            communicator
                .AllGather(shard.data(), apart.data(), count, DType::kFloat32)
                .ok());
        std::vector<float> in_place(count);
        float* mine = in_place.data() + communicator.index() * shard_count;
        std::copy(shard.begin(), shard.end(), mine);
        ASSERT_TRUE(
            communicator
                .AllGather(mine, in_place.data(), count, DType::kFloat32)
                .ok());
        EXPECT_EQ(apart, in_place);
        for (int64_t e = 0; e < count; ++e) {
          ASSERT_EQ(apart[e], 1.0f + static_cast<float>(e / shard_count));
        }
      }
    });
  }
}

// Goal: transfers arrive whole and in order, and `data` may be reused after
// Send. Method: a relay round a ring that overwrites its buffer at once.
TYPED_TEST(CommunicatorTest, TransfersKeepOrder) {
  constexpr int32_t kSize = 3;
  this->RunRanks(kSize, [&](Communicator& communicator, CommunicatorFactory&) {
    const int32_t next = (communicator.index() + 1) % kSize;
    const int32_t previous = (communicator.index() + kSize - 1) % kSize;
    for (const int64_t count : {1, 777, 200001}) {
      for (int32_t round = 0; round < 5; ++round) {
        std::vector<int32_t> data(count);
        if (communicator.index() == 0) {
          std::fill(data.begin(), data.end(), round);
          ASSERT_TRUE(communicator.Send(data.data(), count * 4, next).ok());
          std::fill(data.begin(), data.end(), -1);
          ASSERT_TRUE(
              communicator.Receive(data.data(), count * 4, previous).ok());
        } else {
          ASSERT_TRUE(
              communicator.Receive(data.data(), count * 4, previous).ok());
          ASSERT_TRUE(communicator.Send(data.data(), count * 4, next).ok());
        }
        ASSERT_THAT(data, testing::Each(round));
      }
    }
  });
}

// Goal: a peer that vanishes ends the others' calls at once, with Unavailable
// and the group's name. Method: one rank leaves after the first collective.
TYPED_TEST(CommunicatorTest, VanishedPeerIsUnavailable) {
  const absl::Time start = MonotonicNow();
  this->RunRanks(3, [&](Communicator& communicator, CommunicatorFactory&) {
    std::vector<float> data(50000, 1.0f);
    ASSERT_TRUE(
        communicator.AllReduce(data.data(), 50000, DType::kFloat32).ok());
    if (communicator.index() == 1) return;
    const absl::Status status =
        communicator.AllReduce(data.data(), 50000, DType::kFloat32);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("data group (ranks 0, 1, 2"));
    EXPECT_FALSE(
        communicator.AllReduce(data.data(), 50000, DType::kFloat32).ok());
  });
  EXPECT_LT(MonotonicNow() - start, absl::Seconds(5));
}

// Goal: Abort() from another thread ends a call that would wait for ever, and
// every later one; the peer then sees Unavailable. Method: rank 1 never takes
// part; rank 0's call is aborted whether it has begun to wait or not.
TYPED_TEST(CommunicatorTest, AbortEndsPendingAndLaterCalls) {
  for (int trial = 0; trial < 5; ++trial) {
    const absl::Time start = MonotonicNow();
    this->RunRanks(2, [&](Communicator& communicator, CommunicatorFactory&) {
      float value = 1;
      if (communicator.index() == 0) {
        // Receives, since a message already on its way would reach rank 1.
        std::thread aborter([&] { communicator.Abort(); });
        EXPECT_TRUE(
            absl::IsAborted(communicator.Receive(&value, sizeof(value), 1)));
        aborter.join();
        EXPECT_TRUE(absl::IsAborted(
            communicator.AllReduce(&value, 1, DType::kFloat32)));
      } else {
        EXPECT_TRUE(absl::IsUnavailable(
            communicator.Receive(&value, sizeof(value), 0)));
      }
    });
    EXPECT_LT(MonotonicNow() - start, absl::Seconds(2));
  }
}

// Goal: the factory's Abort() reaches communicators already made and refuses
// new ones. Method: abort before the call.
TYPED_TEST(CommunicatorTest, FactoryAbortReachesItsCommunicators) {
  this->RunRanks(
      2, [&](Communicator& communicator, CommunicatorFactory& factory) {
        factory.Abort();
        float value = 1;
        EXPECT_TRUE(absl::IsAborted(
            communicator.AllReduce(&value, 1, DType::kFloat32)));
        EXPECT_TRUE(absl::IsAborted(factory
                                        .Create({.group = Group::kWorld},
                                                {Rank{0}, Rank{1}},
                                                Rank{communicator.index()})
                                        .status()));
      });
}

// Goal: a peer that never comes is named after the timeout. Method: rank 2 of
// three stays away.
TYPED_TEST(CommunicatorTest, MissingPeerIsNamed) {
  TypeParam world(absl::Milliseconds(200));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto factory = world.NewFactory();
      const absl::Status status =
          factory
              ->Create({.group = Group::kTensor}, {Rank{0}, Rank{1}, Rank{2}},
                       Rank{rank})
              .status();
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::HasSubstr("no sign of rank 2 within"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Goal: Abort() ends a creation that waits for a peer. Method: the peer never
// comes, the timeout is far away.
TYPED_TEST(CommunicatorTest, AbortEndsCreation) {
  TypeParam world(absl::Minutes(10));
  auto factory = world.NewFactory();
  const absl::Time start = MonotonicNow();
  std::thread aborter([&] { factory->Abort(); });
  EXPECT_TRUE(absl::IsAborted(
      factory->Create({.group = Group::kTensor}, {Rank{0}, Rank{1}}, Rank{0})
          .status()));
  aborter.join();
  EXPECT_LT(MonotonicNow() - start, absl::Seconds(2));
}

// Goal: calls on two channels of one group do not mix. Method: send on both,
// receive in the other order.
TYPED_TEST(CommunicatorTest, ChannelsAreApart) {
  TypeParam world(absl::Seconds(20));
  const std::vector<Rank> members = {Rank{0}, Rank{1}};
  std::latch connected(2);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto factory = world.NewFactory();
      auto zero = factory->Create({.group = Group::kPipeline, .channel = 0},
                                  members, Rank{rank});
      auto one = factory->Create({.group = Group::kPipeline, .channel = 1},
                                 members, Rank{rank});
      connected.arrive_and_wait();
      ASSERT_TRUE(zero.ok() && one.ok());
      if (rank == 0) {
        int32_t a = 10, b = 11;
        std::thread other(
            [&] { EXPECT_TRUE((*zero)->Send(&a, sizeof(a), 1).ok()); });
        EXPECT_TRUE((*one)->Send(&b, sizeof(b), 1).ok());
        other.join();
      } else {
        int32_t a = 0, b = 0;
        EXPECT_TRUE((*one)->Receive(&b, sizeof(b), 0).ok());
        EXPECT_TRUE((*zero)->Receive(&a, sizeof(a), 0).ok());
        EXPECT_EQ(a, 10);
        EXPECT_EQ(b, 11);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Goal: with the hosts known, a peer that stays away is named with its own.
// Method: one of two ranks.
TEST(GlooTest, NamesTheHostOfAMissingPeer) {
  MemoryRendezvousStore store;
  const auto factory =
      CreateGlooFactory({.store = &store,
                         .host_address = "127.0.0.1",
                         .connect_timeout = absl::Milliseconds(100),
                         .hosts = {"node1", "node2"}});
  ASSERT_TRUE(factory.ok()) << factory.status();
  const absl::Status status =
      (*factory)
          ->Create({.group = Group::kTensor}, {Rank{0}, Rank{1}}, Rank{0})
          .status();
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("no sign of rank 1 (node2) within"));
}

// Goal: an address that no interface has is refused with that address. Method:
// one from the block reserved for documentation.
TEST(GlooFactoryTest, RefusesForeignAddress) {
  MemoryRendezvousStore store;
  const auto factory =
      CreateGlooFactory({.store = &store, .host_address = "192.0.2.1"});
  EXPECT_TRUE(absl::IsInvalidArgument(factory.status())) << factory.status();
  EXPECT_THAT(std::string(factory.status().message()),
              testing::HasSubstr("192.0.2.1"));
}

// Goal: slices cover the elements once, in order, with sizes that differ by at
// most one. Method: every small case.
TEST(ReductionTest, SlicesCoverEvenly) {
  for (int64_t count = 0; count < 20; ++count) {
    for (int32_t size = 1; size < 6; ++size) {
      int64_t covered = 0;
      for (int32_t index = 0; index < size; ++index) {
        const ElementRange slice = SliceOf(count, size, index);
        EXPECT_EQ(slice.begin, covered);
        EXPECT_GE(slice.size(), count / size);
        EXPECT_LE(slice.size(), count / size + 1);
        covered = slice.end;
      }
      EXPECT_EQ(covered, count);
    }
  }
}

}  // namespace
}  // namespace millrace

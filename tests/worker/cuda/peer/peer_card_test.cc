#include "worker/cuda/peer/peer_card.h"

#include <string>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// Goal: a card comes back as it was told, whatever bytes handles hold, and what
// is no card is refused.
TEST(PeerCardTest, GoesThroughText) {
  PeerCard card = {.host = "node 1\n",
                   .persistent_arena = std::string("\0\n\xff x", 5),
                   .step_arena = "step",
                   .scratch = "",
                   .words = "1 2 3"};
  card.receives[{0, Lane::kReceivePrevious}] = {
      {Arena::kStep, 256, 1000}, {Arena::kPersistent, 0, int64_t{1} << 40}};
  card.receives[{2, Lane::kReceiveNext}] = {};
  const auto read = PeerCardFromString(PeerCardToString(card));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, card);
  for (const char* damaged : {"hosts 00", "host", "receives 0", "receives 0 99",
                              "receives 0 4 x:0:0", "receives 0 4 s:0"}) {
    EXPECT_FALSE(PeerCardFromString(damaged).ok()) << damaged;
  }
}

// Goal: the lanes of transfers are the same pair from both ends.
TEST(PeerCardTest, MatchesLanes) {
  EXPECT_EQ(MatchingLane(Lane::kSendNext), Lane::kReceivePrevious);
  EXPECT_EQ(MatchingLane(Lane::kSendPrevious), Lane::kReceiveNext);
  for (const Lane lane : {Lane::kSendNext, Lane::kReceivePrevious,
                          Lane::kSendPrevious, Lane::kReceiveNext}) {
    EXPECT_EQ(MatchingLane(MatchingLane(lane)), lane);
  }
}

// Goal: a card names the outputs of receives, in the order of their lane.
TEST(PeerCardTest, NamesReceives) {
  Program program = {};
  for (const int64_t offset : {int64_t{512}, int64_t{0}}) {
    program.lanes[static_cast<int>(Lane::kReceiveNext)].push_back(
        static_cast<InstructionId>(program.instructions.size()));
    program.instructions.push_back(
        {.kind = OpKind::kReceive,
         .lane = Lane::kReceiveNext,
         .outputs = {static_cast<BufferId>(program.buffers.size())}});
    program.buffers.push_back({.name = "gradient",
                               .dtype = DType::kBfloat16,
                               .dims = {100},
                               .arena = Arena::kStep,
                               .offset_bytes = offset,
                               .bytes = 200});
  }
  const auto places = ReceivePlacesOf(program);
  EXPECT_TRUE(places.at(Lane::kReceivePrevious).empty());
  EXPECT_EQ(places.at(Lane::kReceiveNext),
            (ReceivePlaces{{Arena::kStep, 512, 200}, {Arena::kStep, 0, 200}}));
}

}  // namespace
}  // namespace millrace

#include "worker/cuda/peer/peer_card.h"

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace millrace {
namespace {

constexpr Lane kReceiveLanes[] = {Lane::kReceivePrevious, Lane::kReceiveNext};

absl::Status Damaged(absl::string_view line) {
  return absl::InternalError(
      absl::StrCat("a peer's card has the line '", line, "'"));
}

// "receives PROGRAM LANE ARENA:OFFSET:BYTES ..."
absl::Status ReadReceives(const std::vector<std::string>& words,
                          PeerCard* card) {
  int32_t program = 0, lane = 0;
  if (words.size() < 3 || !absl::SimpleAtoi(words[1], &program) ||
      !absl::SimpleAtoi(words[2], &lane) || lane < 0 || lane >= kNumLanes) {
    return Damaged(words[0]);
  }
  ReceivePlaces& places = card->receives[{program, static_cast<Lane>(lane)}];
  for (size_t i = 3; i < words.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(words[i], ':');
    PeerPlace place = {};
    if (parts.size() != 3 || (parts[0] != "p" && parts[0] != "s") ||
        !absl::SimpleAtoi(parts[1], &place.offset_bytes) ||
        !absl::SimpleAtoi(parts[2], &place.num_bytes)) {
      return Damaged(words[i]);
    }
    place.arena = parts[0] == "p" ? Arena::kPersistent : Arena::kStep;
    places.push_back(place);
  }
  return absl::OkStatus();
}

}  // namespace

std::string PeerCardToString(const PeerCard& card) {
  std::string text =
      absl::StrCat("host ", absl::BytesToHexString(card.host), "\npersistent ",
                   absl::BytesToHexString(card.persistent_arena), "\nstep ",
                   absl::BytesToHexString(card.step_arena), "\nscratch ",
                   absl::BytesToHexString(card.scratch), "\nwords ",
                   absl::BytesToHexString(card.words), "\n");
  for (const auto& [key, places] : card.receives) {
    absl::StrAppend(&text, "receives ", key.first, " ",
                    static_cast<int>(key.second));
    for (const PeerPlace& place : places) {
      absl::StrAppend(&text, " ", place.arena == Arena::kPersistent ? "p" : "s",
                      ":", place.offset_bytes, ":", place.num_bytes);
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

absl::StatusOr<PeerCard> PeerCardFromString(absl::string_view text) {
  PeerCard card;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "receives") {
      if (absl::Status s = ReadReceives(words, &card); !s.ok()) return s;
      continue;
    }
    const std::map<absl::string_view, std::string*> fields = {
        {"host", &card.host},
        {"persistent", &card.persistent_arena},
        {"step", &card.step_arena},
        {"scratch", &card.scratch},
        {"words", &card.words}};
    const auto field = fields.find(words[0]);
    if (field == fields.end() || words.size() != 2) return Damaged(line);
    *field->second = absl::HexStringToBytes(words[1]);
  }
  return card;
}

std::map<Lane, ReceivePlaces> ReceivePlacesOf(const Program& program) {
  std::map<Lane, ReceivePlaces> places;
  for (const Lane lane : kReceiveLanes) {
    ReceivePlaces& of_lane = places[lane];
    for (const InstructionId id : program.lanes[static_cast<int>(lane)]) {
      const Buffer& buffer =
          program.buffers[program.instructions[id].outputs.at(0)];
      of_lane.push_back({buffer.arena, buffer.offset_bytes, buffer.bytes});
    }
  }
  return places;
}

Lane MatchingLane(Lane lane) {
  switch (lane) {
    case Lane::kSendNext:
      return Lane::kReceivePrevious;
    case Lane::kReceivePrevious:
      return Lane::kSendNext;
    case Lane::kSendPrevious:
      return Lane::kReceiveNext;
    case Lane::kReceiveNext:
      return Lane::kSendPrevious;
    default:
      CHECK(false) << LaneName(lane) << " carries no transfers";
      return lane;
  }
}

}  // namespace millrace

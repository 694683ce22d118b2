// Notices that a generation stands still: all heartbeats go on, and no rank
// gets on with anything. One rank that hangs stops all others within a step,
// since they wait for it. Pure: what is heard and the time go in.

#ifndef MILLRACE_FAULT_HANG_WATCH_H_
#define MILLRACE_FAULT_HANG_WATCH_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/ids.h"
#include "fault/hang.h"

namespace millrace {

// How a rank spends its time, as far as its host's thread knows.
enum class RankActivity : uint8_t {
  kStarting,   // It builds its trainer or restores its state.
  kFirstStep,  // Kernels are chosen and graphs captured, which takes long.
  kStepping,
  kExempt,  // Checkpoints, validation, evaluation, the end.
};

struct RankSign {
  RankActivity activity = RankActivity::kStarting;
  RankProgress progress;
  friend bool operator==(const RankSign&, const RankSign&) = default;
};

class HangWatch {
 public:
  // A rank that hangs is noticed within three steps and `grace`, which doubles
  // with each hang until a hundred steps have been taken without one. Zero:
  // never. The first step has a minute more.
  explicit HangWatch(absl::Duration grace) : grace_(grace) {}

  // A generation begins to train, or ends (no ranks).
  void Begin(int32_t num_ranks, double predicted_step_s, absl::Time now);
  void Note(Rank rank, const RankSign& sign, absl::Time now);
  // A step has taken so long. Where steps take longer than predicted, that
  // counts.
  void NoteStep(double seconds);
  // Nothing could be heard for a while, whatever was sent.
  void Forgive(absl::Time now);

  // Whether the generation stands still. True again after a second, as long as
  // it does.
  bool StandsStill(absl::Time now);

  // By rank; nothing for those that have fallen silent.
  std::vector<std::optional<RankProgress>> Progress(absl::Time now) const;
  // Since the last progress of any rank.
  absl::Duration StandingFor(absl::Time now) const { return now - moved_; }

 private:
  struct Watched {
    std::optional<RankSign> sign;
    absl::Time heard;
  };
  absl::Duration Limit() const;

  const absl::Duration grace_;
  std::vector<Watched> ranks_;
  double predicted_step_s_ = 0;
  std::deque<double> step_times_;  // The last few.
  int32_t num_hangs_ = 0;          // Without a hundred steps in between.
  int32_t steps_since_hang_ = 0;
  absl::Time moved_;  // When any rank last got on.
  absl::Time told_ = absl::InfinitePast();
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_HANG_WATCH_H_

// Finds ranks that compute longer than their Program's prediction, as learnt.
//
// What counts is the time that a rank computes, without its waits for others,
// over the prediction for its stage. A layout's prediction is off by some
// factor, which is learnt: for each stage the median rank's, so that a rank is
// held to the prediction and its like at once. The only rank of a stage is held
// to its own first steps, and to the other stages if it is far above them.
//
// Samples cover a step, or several if steps are short. A rank is named when
// seven of its last eight samples of 25 ms or more are half again as long
// (twice: within ten steps), or when the mean of its last 24 samples of 0.1 s
// or more, without outliers, is 8 % above. The mean must also be 6.5 times its
// standard error by the scatter of the job's samples, for five of independent
// ones and some for noise that lasts (1.15 times: within thirty steps).

#ifndef MILLRACE_FAULT_SLOW_RANK_H_
#define MILLRACE_FAULT_SLOW_RANK_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/ids.h"

namespace millrace {

struct SlowRank {
  Rank rank{};
  bool recovered = false;   // It was named, and is as fast as the others again.
  double factor = 1;        // 2: it computes twice as long as it should.
  int64_t num_samples = 0;  // The samples that say so.
};

class SlowRankWatch {
 public:
  struct Stage {
    double compute_s = 0;  // Predicted, a step.
  };
  // A generation begins. `stage_of`: by rank. Ranks of one stage that run
  // different numbers of micro-batches count as different stages.
  void Begin(std::vector<int32_t> stage_of, std::vector<Stage> stages);
  // A rank computed for so long in its next step. Returns a rank once, when it
  // is named or has recovered.
  std::optional<SlowRank> Note(Rank rank, double compute_s);

 private:
  struct Samples {
    double measured_s = 0;       // In the sample that is not complete.
    double predicted_s = 0;      // Likewise.
    std::deque<double> samples;  // Logarithms of measured over predicted.
    double scatter = 0;          // The standard deviation from one to the next.
  };
  struct Watched {
    int32_t stage = 0;
    int32_t num_noted = 0;    // Steps.
    Samples brief;            // They find a rank that is much slower.
    Samples lasting;          // They find one that is a little slower.
    double first_median = 0;  // Over the first of the lasting samples.
    double median = 0;        // Over all of them.
    bool named = false;
  };
  static bool AddStep(double measured_s, double predicted_s,
                      double least_seconds, Samples* samples);
  std::optional<double> LearntFactor(const Watched& rank) const;
  double UsualScatter(Samples Watched::*samples) const;
  std::optional<SlowRank> Judge(Rank rank);

  std::vector<Watched> ranks_;
  std::vector<Stage> stages_;
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_SLOW_RANK_H_

// Copies of the training state in memory, and what a recovery makes of them.
//
// A *part* is what one rank would write into a checkpoint: over all ranks,
// every element of every tensor is in exactly one part. Parts of one generation
// and step are a *set*. A set of which every part is held somewhere restores
// the state, under any layout. All functions here are pure.

#ifndef MILLRACE_FAULT_REPLICAS_H_
#define MILLRACE_FAULT_REPLICAS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "planner/layout/layout.h"

namespace millrace {

struct ReplicaSet {
  Generation generation{};  // It trained the step.
  int64_t step = 0;         // Completed training steps.
  friend auto operator<=>(const ReplicaSet&, const ReplicaSet&) = default;
};

struct ReplicaPart {
  ReplicaSet set;
  Rank rank{};  // In that generation.
  friend auto operator<=>(const ReplicaPart&, const ReplicaPart&) = default;
};

// Where a part comes from, the preferred one first.
enum class ReplicaKind : uint8_t {
  kLive,  // From a trainer whose generation failed, at the step it was at.
  kOwn,   // From a snapshot that the rank took on schedule.
  kCopy,  // Another rank's snapshot.
};

struct HeldReplica {
  WorkerIdx holder{};
  ReplicaPart part;
  int32_t num_ranks = 0;  // In the part's generation.
  ReplicaKind kind = ReplicaKind::kOwn;
  int64_t bytes = 0;
  uint64_t hash = 0;  // Of the part's numbers: equal bits, equal hash.
};

struct ReplicaChoice {
  ReplicaSet set;
  std::vector<HeldReplica> parts;  // By rank of the set's generation.
};

// The newest set, by step and then by generation, that is whole and whose step
// is at least `least_step`; nothing if there is none. Sets in `refused` are
// passed over. Of several holders of a part, the first kind in order is chosen,
// then the holder of the fewest parts so far, then the lowest. Parts that
// contradict each other about the number of ranks make their set unusable.
std::optional<ReplicaChoice> ChooseReplicas(
    const std::vector<HeldReplica>& held, int64_t least_step,
    const std::set<ReplicaSet>& refused);

// Holders that keep other bits of a part than further holders of it.
struct HolderDifference {
  ReplicaSet set;  // The newest with such a part, by generation and then step.
  // Those that differ from a majority of a part's holders.
  std::set<WorkerIdx> minority;
  // The holders of parts without a majority, as with two: any may be wrong.
  std::set<WorkerIdx> undecided;
};

// Compares the hashes of all parts that several workers hold; absent where all
// agree. A flipped bit has gone into every rank's gradients since, so of a set
// that differs the majority's parts are wrong too, unless it flipped last.
std::optional<HolderDifference> CompareHolders(
    const std::vector<HeldReplica>& held);

// Whether some part of `set` has fewer holders among the job's workers than
// newly taken copies would have: one and its partners, each in a failure domain
// of its own as far as there are so many. `domains` has the failure domain
// (ReplicaPartners() calls it a host) of each worker.
bool NeedsNewCopies(const std::vector<HeldReplica>& held, const ReplicaSet& set,
                    const std::map<WorkerIdx, std::string>& domains,
                    int32_t num_partners);

// Why the newest set that is newer than `least_step`'s is not used: which
// ranks' parts nobody has. Empty if no part is newer than that step.
std::string ReasonAgainstReplicas(const std::vector<HeldReplica>& held,
                                  int64_t least_step,
                                  const std::set<ReplicaSet>& refused);

// "live state", "snapshots", "1 snapshot and 2 copies of partners": for people.
std::string DescribeSources(const ReplicaChoice& choice);

// Which ranks keep a copy of each rank's part: `num_partners` others, or all
// others if these are fewer. A rank and its partners are on different hosts as
// far as there are so many hosts; further partners are on the last one's host
// if it has more ranks. Each rank keeps `num_partners` copies as long as no
// host has more than its share of all ranks: half of them with one partner, a
// third with two. `hosts` is by rank; ranks of one host follow one another.
std::vector<std::vector<Rank>> ReplicaPartners(
    const std::vector<std::string>& hosts, int32_t num_partners);

// Whether the state of all ranks is held by so many other ranks while they
// train that any `num_partners` hosts can be lost, or all but one (as many
// processes, where there is one host).
bool HasLiveReplicas(const Layout& layout,
                     const std::vector<std::string>& hosts,
                     int32_t num_partners);

// The cost of copies, by which `auto` chooses how often they are taken.
struct ReplicaCost {
  double step_s = 0;       // Predicted.
  int64_t part_bytes = 0;  // The largest.
  // Rates of one thread that copies, and of the way to a partner.
  double copy_bytes_per_s = 0;
  double send_bytes_per_s = 0;  // 0: nothing is sent.
  int32_t num_partners = 1;     // Each part is sent to one after the other.
  // The processors that copy and send are those that train.
  bool shares_processors = false;
  double stall_s = 0;  // That training stands still while a GPU is read.
};
// Seconds that training loses for one copy.
double ReplicaSeconds(const ReplicaCost& cost);
// The least interval at which a copy is kept and sent before the next is taken.
// At a shorter one training waits for copies. At least 1.
int64_t UnhurriedInterval(const ReplicaCost& cost);
// The least interval at which copies cost at most half a percent of the steps
// and are kept and sent before the next is taken. At least 1.
int64_t ReplicaInterval(const ReplicaCost& cost);

// Host memory that a rank's copies take: two of its own, the snapshot they are
// written from, and two for each rank that has it as a partner. Where every
// step is copied, the copies of three steps are there: of one that is whole,
// and of two that may not be.
int64_t ReplicaBytes(int64_t part_bytes, int32_t num_copies_kept,
                     int64_t interval_steps);

}  // namespace millrace

#endif  // MILLRACE_FAULT_REPLICAS_H_

#include "planner/lower/graph_chunks.h"

#include <cstddef>
#include <tuple>
#include <utility>

namespace millrace {
namespace {

// How far a chunk is.
struct Progress {
  size_t next = 0;            // In its chain.
  bool communicates = false;  // What it asked for last was communication,
  int asked_after = 0;        // after so many products of all chunks,
  int asked_as = 0;           // as the so-manieth.
};

class Interleaving {
 public:
  Interleaving(std::vector<std::vector<GraphOp>> chains, int num_products)
      : chains_(std::move(chains)),
        progress_(chains_.size()),
        num_products_beside_(num_products) {}

  std::vector<GraphOp> Run() && {
    for (size_t c = 0; c < chains_.size(); ++c) TakeCommunication(c);
    for (size_t c = Next(); c < chains_.size(); c = Next()) {
      if (HeadOf(c).kind == OpKind::kGemm) ++num_products_;
      progress_[c].communicates = false;
      Take(c);
      TakeCommunication(c);
    }
    return std::move(order_);
  }

 private:
  bool IsDone(size_t c) const { return progress_[c].next == chains_[c].size(); }
  const GraphOp& HeadOf(size_t c) const {
    return chains_[c][progress_[c].next];
  }

  void Take(size_t c) {
    order_.push_back(std::move(chains_[c][progress_[c].next++]));
  }

  // All that comes next of it.
  void TakeCommunication(size_t c) {
    while (!IsDone(c) && IsCollective(HeadOf(c).kind)) {
      Take(c);
      progress_[c].communicates = true;
      progress_[c].asked_after = num_products_;
      progress_[c].asked_as = num_asked_++;
    }
  }

  // The least is best: what need not wait, of that norms, then what is least
  // far; of what waits, what waits for what was asked first.
  auto RankOf(size_t c) const {
    const Progress& progress = progress_[c];
    const bool waits =
        progress.communicates &&
        num_products_ - progress.asked_after < num_products_beside_;
    return std::make_tuple(waits, waits ? progress.asked_as : 0,
                           HeadOf(c).kind == OpKind::kGemm, progress.next, c);
  }

  // The chunk that goes on; their number if all are done.
  size_t Next() const {
    size_t best = chains_.size();
    for (size_t c = 0; c < chains_.size(); ++c) {
      if (IsDone(c)) continue;
      if (best == chains_.size() || RankOf(c) < RankOf(best)) best = c;
    }
    return best;
  }

  std::vector<std::vector<GraphOp>> chains_;
  std::vector<Progress> progress_;
  const int num_products_beside_;
  std::vector<GraphOp> order_;
  int num_products_ = 0;
  int num_asked_ = 0;
};

}  // namespace

std::vector<GraphOp> InterleaveChunks(std::vector<std::vector<GraphOp>> chains,
                                      int num_products) {
  return Interleaving(std::move(chains), num_products).Run();
}

int NumProductsBesideChunks(const Layout& layout) {
  const CopyEngineUse& use = layout.copy_engines;
  return use.tensor_gathers && use.tensor_reductions ? 1 : 2;
}

}  // namespace millrace

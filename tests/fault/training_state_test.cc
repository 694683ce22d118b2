#include "fault/training_state.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "planner/program/parameters.h"
#include "tests/fault/state_fixture.h"

namespace millrace {
namespace {

// Counts how often each element of each tensor occurs in pieces.
class ElementCounts {
 public:
  void Add(const StatePiece& piece) {
    std::vector<int>& counts = counts_[piece.tensor];
    counts.resize(piece.rows * piece.cols);
    const int64_t width = piece.box.col_end - piece.box.col_begin;
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const int64_t row = piece.box.row_begin + i / width;
      const int64_t col = piece.box.col_begin + i % width;
      ++counts.at(row * piece.cols + col);
    }
  }
  // True if every element of the tensor occurs `times` times.
  bool AllAre(const std::string& tensor, int64_t num_elements,
              int times) const {
    const auto found = counts_.find(tensor);
    if (found == counts_.end()) return false;
    return found->second == std::vector<int>(num_elements, times);
  }
  size_t num_tensors() const { return counts_.size(); }

 private:
  std::map<std::string, std::vector<int>> counts_;
};

void ExpectEveryElementOwnedOnce(const ModelSpec& model,
                                 const std::vector<RankState>& state) {
  ElementCounts counts;
  for (const RankState& rank : state) {
    for (const StatePiece& piece : rank.pieces) {
      if (piece.is_owner) counts.Add(piece);
    }
  }
  const std::vector<Parameter> parameters = ModelParameters(model);
  for (const Parameter& parameter : parameters) {
    for (const char* suffix : {"", ".exp_avg", ".exp_avg_sq"}) {
      EXPECT_TRUE(counts.AllAre(parameter.name + suffix,
                                parameter.rows * parameter.cols, 1))
          << parameter.name << suffix;
    }
  }
  EXPECT_EQ(counts.num_tensors(), 3 * parameters.size());
}

// Goal: whatever the layout, the ranks together own every element of every
// parameter and of both its moments exactly once, and nothing else, with and
// without master weights. Method: count owned elements by their global
// position, over all layouts up to eight ranks.
TEST(TrainingStateTest, OwnsEveryElementExactlyOnce) {
  const ModelSpec model = TinyModel();
  for (const Layout& layout : AllLayouts(8)) {
    for (const bool master : {false, true}) {
      SCOPED_TRACE(LayoutToString(layout));
      ExpectEveryElementOwnedOnce(model, MakeState(model, layout, master));
    }
  }
}

// Goal: pieces of one rank never share memory and lie in its buffers, so a load
// cannot write over what it has loaded. Method: fill with values by position
// and read all of them back; a shared element would keep only one value.
TEST(TrainingStateTest, PiecesLieApart) {
  for (const Layout& layout : AllLayouts(8)) {
    for (const bool master : {false, true}) {
      SCOPED_TRACE(LayoutToString(layout));
      std::vector<RankState> state = MakeState(TinyModel(), layout, master);
      FillState(state, 3);
      EXPECT_EQ(CountWrong(state, 3), 0);
      for (const RankState& rank : state) {
        for (const StatePiece& piece : rank.pieces) {
          ASSERT_LT(piece.begin, piece.end) << piece.tensor;
        }
      }
    }
  }
}

// Goal: with ZeRO 0 a rank holds its whole share of the moments, with ZeRO 1
// only its own slices; of master weights as much, of other parameters all in
// both. Method: count elements held per rank of a layout of four replicas.
TEST(TrainingStateTest, HoldsMomentsByZeroStage) {
  const ModelSpec model = TinyModel();
  const int64_t total = CountParameters(model).total;
  for (const auto& [zero, master] : {std::pair(0, false), std::pair(1, false),
                                     std::pair(0, true), std::pair(1, true)}) {
    int64_t num_parameters = 0;
    int64_t num_moments = 0;
    for (const RankState& rank :
         MakeState(model, {.data = 4, .zero = zero}, master)) {
      for (const StatePiece& piece : rank.pieces) {
        const bool is_moment = piece.tensor.ends_with(".exp_avg");
        const bool is_square = piece.tensor.ends_with(".exp_avg_sq");
        num_moments += is_moment ? piece.end - piece.begin : 0;
        num_parameters += is_moment || is_square ? 0 : piece.end - piece.begin;
      }
    }
    EXPECT_EQ(num_moments, zero == 0 ? 4 * total : total);
    EXPECT_EQ(num_parameters, master ? num_moments : 4 * total);
  }
}

}  // namespace
}  // namespace millrace

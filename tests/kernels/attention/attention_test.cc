#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

using Outputs = std::vector<std::vector<float>>;

// Inputs of one shape, with documents that start at random places.
struct Problem {
  AttentionShape shape;
  std::vector<float> qkv;
  std::vector<float> d_o;
  std::vector<int32_t> document_starts;

  int64_t num_tokens() const {
    return shape.num_sequences * shape.sequence_length;
  }
};

// A new document starts at each token with probability 1 / document_length.
Problem MakeProblem(const AttentionShape& shape, int32_t document_length,
                    uint32_t seed) {
  RandomFloats random(seed);
  Problem problem = {.shape = shape};
  const int64_t num_tokens = problem.num_tokens();
  problem.qkv = random(
      num_tokens * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim,
      2.0f);
  problem.d_o = random(num_tokens * shape.num_heads * shape.head_dim);
  const std::vector<int32_t> draws =
      random.Integers(num_tokens, 1, document_length);
  int32_t start = 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int32_t position = static_cast<int32_t>(t % shape.sequence_length);
    if (position == 0 || draws[t] == 1) start = position;
    problem.document_starts.push_back(start);
  }
  return problem;
}

Outputs Forward(const Problem& problem, int num_threads) {
  const AttentionShape& shape = problem.shape;
  std::vector<float> o =
      Poisoned(problem.num_tokens() * shape.num_heads * shape.head_dim);
  std::vector<float> lse = Poisoned(problem.num_tokens() * shape.num_heads);
  const AttentionForwardArgs args = {
      .o = o.data(),
      .lse = lse.data(),
      .qkv = problem.qkv.data(),
      .document_starts = problem.document_starts.data(),
      .shape = shape};
  if (num_threads == 0) {
    AttentionForwardReference(args);
  } else {
    EXPECT_TRUE(AttentionForward(args, num_threads).ok());
  }
  return {o, lse};
}

Outputs Backward(const Problem& problem, const Outputs& forward,
                 int num_threads) {
  std::vector<float> d_qkv = Poisoned(problem.qkv.size());
  std::vector<float> delta = Poisoned(forward[1].size());
  const AttentionBackwardArgs args = {
      .d_qkv = d_qkv.data(),
      .delta = delta.data(),
      .qkv = problem.qkv.data(),
      .document_starts = problem.document_starts.data(),
      .o = forward[0].data(),
      .lse = forward[1].data(),
      .d_o = problem.d_o.data(),
      .shape = problem.shape};
  if (num_threads == 0) {
    AttentionBackwardReference(args);
  } else {
    EXPECT_TRUE(AttentionBackward(args, num_threads).ok());
  }
  return {d_qkv, delta};
}

// Lengths around the tile of 64 and the span of 16, head dims that no vector
// divides, one to four query heads a key-value head, documents from one token
// to whole sequences; each without a window and with one, which cuts tiles,
// ends at their edges or is longer than the sequence.
std::vector<Problem> Problems() {
  std::vector<Problem> problems;
  constexpr int64_t kWindows[] = {1, 19, 64, 100};
  uint32_t seed = 1;
  size_t num_shapes = 0;
  for (const AttentionShape& shape : std::vector<AttentionShape>{
           {1, 1, 1, 1, 1},
           {2, 5, 2, 1, 6},
           {1, 16, 2, 2, 32},
           {1, 63, 1, 1, 40},
           {2, 64, 4, 2, 16},
           {1, 65, 2, 1, 33},
           {1, 130, 4, 1, 64},
           {1, 200, 3, 3, 80},
           {1, 150, 1, 1, 128},
           {1, 70, 1, 1, 256},
       }) {
    size_t window_idx = num_shapes++;
    for (int32_t document_length : {1, 7, 40, 1000000}) {
      problems.push_back(MakeProblem(shape, document_length, seed++));
      problems.push_back(problems.back());
      problems.back().shape.window = kWindows[window_idx++ % 4];
    }
  }
  return problems;
}

std::string Name(const Problem& problem) {
  const AttentionShape& shape = problem.shape;
  return absl::StrCat(shape.num_sequences, " x ", shape.sequence_length,
                      " tokens, ", shape.num_heads, "/", shape.num_kv_heads,
                      " heads of ", shape.head_dim, ", window ", shape.window);
}

// Goal: tiles and the running softmax change nothing but rounding. Tolerance:
// scores are sums of up to 256 products of magnitude up to 4, so a score errs
// by some 1e-5 at worst, and so does its exponential relatively; 3e-5 holds.
TEST(AttentionTest, ForwardMatchesReference) {
  for (const Problem& problem : Problems()) {
    SCOPED_TRACE(Name(problem));
    ExpectKernelMatches(Forward(problem, 0), 3e-5, [&](int num_threads) {
      return Forward(problem, num_threads);
    });
  }
}

// Goal and tolerance as above; both sides are given the reference's forward.
TEST(AttentionTest, BackwardMatchesReference) {
  for (const Problem& problem : Problems()) {
    SCOPED_TRACE(Name(problem));
    const Outputs forward = Forward(problem, 0);
    ExpectKernelMatches(Backward(problem, forward, 0), 3e-5,
                        [&](int num_threads) {
                          return Backward(problem, forward, num_threads);
                        });
  }
}

// Goal: the reference's gradient is the derivative of its forward. Method:
// central differences of sum(o * d_o) over random elements of qkv. Tolerance: o
// is rounded to float, 6e-8 of about one each for 96 outputs, over a step of
// 1e-2: about 1e-4, beside the third-order term of the same size.
TEST(AttentionTest, ReferenceGradientIsTheDerivative) {
  Problem problem = MakeProblem({1, 12, 2, 1, 4}, 6, 99);
  const Outputs forward = Forward(problem, 0);
  const Outputs backward = Backward(problem, forward, 0);
  const auto objective = [&] {
    const Outputs out = Forward(problem, 0);
    double sum = 0.0;
    for (size_t i = 0; i < out[0].size(); ++i) {
      sum += double{out[0][i]} * problem.d_o[i];
    }
    return sum;
  };
  for (size_t i = 0; i < problem.qkv.size(); ++i) {
    const float value = problem.qkv[i];
    problem.qkv[i] = value + 0.01f;
    const double above = objective();
    problem.qkv[i] = value - 0.01f;
    const double below = objective();
    problem.qkv[i] = value;
    EXPECT_NEAR((above - below) / 0.02, backward[0][i], 1e-3) << i;
  }
}

// Goal: a window is what documents would be that began anew for each query: the
// reference with a window equals the reference whose starts move along, and a
// window as long as the sequence equals none, to the bit.
TEST(AttentionTest, WindowMovesTheFirstKey) {
  Problem windowed = MakeProblem({2, 30, 2, 1, 8}, 12, 5);
  windowed.shape.window = 7;
  Problem moved = windowed;
  moved.shape.window = 0;
  for (int64_t t = 0; t < moved.num_tokens(); ++t) {
    const auto position = static_cast<int32_t>(t % 30);
    moved.document_starts[t] = std::max(moved.document_starts[t], position - 6);
  }
  const Outputs expected = Forward(moved, 0);
  EXPECT_EQ(Forward(windowed, 0), expected);
  EXPECT_EQ(Backward(windowed, expected, 0), Backward(moved, expected, 0));
  windowed.shape.window = 30;
  Problem whole = windowed;
  whole.shape.window = 0;
  EXPECT_EQ(Forward(windowed, 1), Forward(whole, 1));
  EXPECT_NE(Forward(windowed, 1), Forward(moved, 1));
}

// Goal: large scores, of which e^score is beyond a float, come out right: only
// differences from the maximum count. Method: scores up to some thousands.
// Tolerance: a score of 4000 is rounded to 2.4e-4 (half a unit in the last
// place), and its exponential errs by as much and more for the sum behind it.
TEST(AttentionTest, LargeScoresDoNotOverflow) {
  Problem problem = MakeProblem({1, 80, 2, 1, 16}, 1000, 7);
  for (float& value : problem.qkv) value *= 10.0f;
  ExpectKernelMatches(Forward(problem, 0), 5e-4, [&](int num_threads) {
    return Forward(problem, num_threads);
  });
}

// Goal: not-a-number in an input reaches the output instead of being masked by
// a maximum; training notices divergence by it.
TEST(AttentionTest, NanSpreads) {
  Problem problem = MakeProblem({1, 70, 1, 1, 16}, 1000, 8);
  problem.qkv[16] = std::nanf("");  // The first key.
  ForEachCpuLevel([&] {
    const Outputs out = Forward(problem, 1);
    for (float value : out[0]) EXPECT_TRUE(std::isnan(value));
  });
}

// Goal: shapes and documents that cannot be are refused by name.
TEST(AttentionTest, RefusesBadShapes) {
  const Problem good = MakeProblem({1, 8, 4, 2, 8}, 4, 3);
  const auto status_of = [](const Problem& problem, int num_threads) {
    return AttentionForward({.o = nullptr,
                             .lse = nullptr,
                             .qkv = nullptr,
                             .document_starts = problem.document_starts.data(),
                             .shape = problem.shape},
                            num_threads);
  };
  Problem bad = good;
  bad.shape.num_kv_heads = 3;
  EXPECT_EQ(status_of(bad, 1).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.shape.head_dim = kMaxAttentionHeadDim + 1;
  EXPECT_EQ(status_of(bad, 1).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.shape.sequence_length = 0;
  EXPECT_EQ(status_of(bad, 1).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.document_starts[2] = 3;
  EXPECT_NE(std::string(status_of(bad, 1).message()).find("token 2"),
            std::string::npos);
  bad = good;
  bad.shape.window = -1;
  EXPECT_NE(std::string(status_of(bad, 1).message()).find("window of -1"),
            std::string::npos);
  EXPECT_EQ(status_of(good, 0).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.shape.num_sequences = 0;
  EXPECT_TRUE(status_of(bad, 1).ok());
}

}  // namespace
}  // namespace millrace

#include "kernels/optimizer/moments.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/optimizer/adamw.h"
#include "kernels/pointwise/cast.h"
#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

constexpr MomentStorage kSmallStorages[] = {MomentStorage::kBf16,
                                            MomentStorage::kBlocks8};

size_t StoredBytes(MomentStorage storage, int64_t count) {
  const auto size = static_cast<size_t>(count);
  switch (storage) {
    case MomentStorage::kFloat32:
      return size * sizeof(float);
    case MomentStorage::kBf16:
      return size * sizeof(uint16_t);
    case MomentStorage::kBlocks8:
      return size / kMomentBlockSize * sizeof(MomentBlock);
  }
  return 0;
}

// Both moments as they are stored, and the rest of an update's operands.
struct SmallState {
  SmallState(MomentStorage storage, const std::vector<float>& parameters,
             const std::vector<float>& m, const std::vector<float>& v)
      : storage(storage),
        parameters(parameters),
        exp_avg(StoredBytes(storage, std::ssize(parameters))),
        exp_avg_sq(exp_avg.size()) {
    EncodeMoments(storage, Moment::kFirst, m.data(), std::ssize(m),
                  exp_avg.data());
    EncodeMoments(storage, Moment::kSecond, v.data(), std::ssize(v),
                  exp_avg_sq.data());
  }

  AdamWArgs Args(const std::vector<float>& gradients, int64_t step) {
    return {.parameters = parameters.data(),
            .exp_avg = exp_avg.data(),
            .exp_avg_sq = exp_avg_sq.data(),
            .gradients = gradients.data(),
            .num_elements = std::ssize(parameters),
            .learning_rate = 3e-3,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .epsilon = 1e-8,
            .weight_decay = 0.1,
            .step = step,
            .gradient_scale = 0.7,
            .moments = storage,
            .seed = 11};
  }

  std::vector<float> Decoded(Moment moment) const {
    std::vector<float> values(parameters.size());
    DecodeMoments(storage, moment,
                  moment == Moment::kFirst ? exp_avg.data() : exp_avg_sq.data(),
                  0, std::ssize(values), values.data());
    return values;
  }

  MomentStorage storage;
  std::vector<float> parameters;
  std::vector<std::byte> exp_avg, exp_avg_sq;
};

// Moments of every magnitude that a block can tell apart, and below; signs
// change, and a block is zero.
std::vector<float> ManyMagnitudes(int64_t count, bool with_signs) {
  RandomFloats random(21);
  const std::vector<float> exponents = random(count, 6.0f);
  std::vector<float> values(exponents.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::pow(10.0f, exponents[i] - 8.0f);
    if (with_signs && i % 3 == 0) values[i] = -values[i];
  }
  std::fill_n(values.begin(), kMomentBlockSize, 0.0f);
  return values;
}

SmallState SmallRandomState(MomentStorage storage, int64_t count) {
  RandomFloats random(31);
  return {storage, random(count), ManyMagnitudes(count, true),
          ManyMagnitudes(count, false)};
}

// Goal: codes name the nearest fraction, and second moments above zero stay
// above zero. Method: many numbers in [0, 1], every fraction, every middle and
// their neighbours, against a search through all fractions.
template <Moment kMoment>
void ExpectNearestFractions() {
  constexpr MomentFractions kAll = FractionsOf(kMoment);
  ASSERT_EQ(kAll.values[0], 0.0f);
  ASSERT_EQ(kAll.values[kAll.last], 1.0f);
  for (int i = 1; i <= kAll.last; ++i) {
    ASSERT_LT(kAll.values[i - 1], kAll.values[i]) << i;
  }
  std::vector<float> numbers = {0.0f, 1e-30f, 1e-38f, 1.0f};
  for (float x = 1e-9f; x < 1.0f; x *= 1.0001f) numbers.push_back(x);
  for (int i = 0; i <= kAll.last; ++i) {
    for (const float x : {kAll.values[i], kAll.middles[i]}) {
      numbers.push_back(x);
      numbers.push_back(std::nextafter(x, 0.0f));
      if (x < 1.0f) numbers.push_back(std::nextafter(x, 1.0f));
    }
  }
  for (const float x : numbers) {
    const auto above = static_cast<int>(
        std::lower_bound(kAll.middles, kAll.middles + kAll.last, x) -
        kAll.middles);
    const int least = kMoment == Moment::kSecond && x > 0.0f ? 1 : 0;
    ASSERT_EQ(NearestFraction<kMoment>(x, kAll.middles), std::max(above, least))
        << x;
  }
}
TEST(MomentsTest, CodesNameTheNearestFraction) {
  ExpectNearestFractions<Moment::kFirst>();
  ExpectNearestFractions<Moment::kSecond>();
}

// Goal: what a checkpoint holds gives the stored bits back. Method: store,
// decode, store again; a part decodes as the whole does.
TEST(MomentsTest, StoringDecodedMomentsGivesTheSameBits) {
  constexpr int64_t kSize = 64 * kMomentBlockSize;
  for (const MomentStorage storage : kSmallStorages) {
    const SmallState first = SmallRandomState(storage, kSize);
    const std::vector<float> m = first.Decoded(Moment::kFirst);
    const SmallState again(storage, first.parameters, m,
                           first.Decoded(Moment::kSecond));
    EXPECT_EQ(again.exp_avg, first.exp_avg);
    EXPECT_EQ(again.exp_avg_sq, first.exp_avg_sq);
    std::vector<float> part(1000);
    DecodeMoments(storage, Moment::kFirst, first.exp_avg.data(), 777, 1777,
                  part.data());
    ExpectSameBits(part, {m.begin() + 777, m.begin() + 1777}, "a part");
  }
}

// Goal: a stored number is as near as its format allows. Method: bf16 keeps 8
// bits. In a block, parts of the highest decade are 0.9/64 or 0.9/128 wide and
// those of a decade below 5 times as wide beside the number; the error is half
// a part, or up to a part where the largest fraction was moved to one.
TEST(MomentsTest, StoredNumbersAreNear) {
  constexpr int64_t kSize = 16 * kMomentBlockSize;
  const std::vector<float> m = RandomFloats(3)(kSize);
  const SmallState state(MomentStorage::kBlocks8, m, m, m);
  const std::vector<float> decoded = state.Decoded(Moment::kFirst);
  for (int64_t i = 0; i < kSize; ++i) {
    const float largest = reinterpret_cast<const MomentBlock*>(
                              state.exp_avg.data())[i / kMomentBlockSize]
                              .largest;
    ASSERT_LE(std::fabs(m[i]), largest);
    ASSERT_NEAR(decoded[i], m[i], 0.9 / 64 * largest * 0.76) << i;
  }
}

// Goal: an update means what the fp64 reference says, with moments rounded
// once. Method: parameters follow from the moments before they are rounded, so
// they agree to a dozen roundings; moments agree to a step of bf16, or to the
// width of a part of their block beside the reference's own codes.
TEST(SmallMomentsAdamWTest, MatchesReference) {
  constexpr int64_t kSize = 40 * kMomentBlockSize;
  for (const MomentStorage storage : kSmallStorages) {
    for (const int64_t step : {1, 2, 1000}) {
      const std::vector<float> gradients = RandomFloats(5)(kSize);
      SmallState actual = SmallRandomState(storage, kSize);
      SmallState expected = actual;
      AdamWReference(expected.Args(gradients, step));
      for (const int num_threads : {1, 2}) {
        SmallState state = actual;
        const absl::Status status =
            AdamW(state.Args(gradients, step), num_threads);
        ASSERT_TRUE(status.ok()) << status;
        ExpectClose(state.parameters, expected.parameters, 1e-6, "parameters");
        for (const Moment moment : {Moment::kFirst, Moment::kSecond}) {
          const std::vector<float> near = state.Decoded(moment);
          const std::vector<float> exact = expected.Decoded(moment);
          for (size_t i = 0; i < near.size(); ++i) {
            const double allowed = storage == MomentStorage::kBf16
                                       ? std::fabs(exact[i]) / 64
                                       : std::fabs(exact[i]) * 0.91 + 1e-9;
            ASSERT_NEAR(near[i], exact[i], allowed) << i;
          }
        }
      }
    }
  }
}

// Goal: bits depend on seed, step and index alone, so that a rank that updates
// a slice gets those of one that updates all. Method: slices against the whole,
// on one thread and two; another seed and another step round otherwise.
TEST(SmallMomentsAdamWTest, SlicesGiveTheSameBits) {
  constexpr int64_t kSize = 300 * kMomentBlockSize;
  const std::vector<float> gradients = RandomFloats(6)(kSize);
  for (const MomentStorage storage : kSmallStorages) {
    const SmallState before = SmallRandomState(storage, kSize);
    const auto bits_of = [&](uint64_t seed, int64_t step, int num_threads) {
      SmallState state = before;
      AdamWArgs args = state.Args(gradients, step);
      args.seed = seed;
      EXPECT_TRUE(AdamW(args, num_threads).ok());
      return state;
    };
    const SmallState whole = bits_of(11, 3, 1);
    const SmallState threaded = bits_of(11, 3, 2);
    EXPECT_EQ(threaded.exp_avg, whole.exp_avg);
    EXPECT_EQ(threaded.exp_avg_sq, whole.exp_avg_sq);
    SmallState sliced = before;
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 256}, {256, 1024}, {1024, kSize}}) {
      AdamWArgs args = sliced.Args(gradients, 3);
      args.parameters += begin;
      args.exp_avg = sliced.exp_avg.data() + StoredBytes(storage, begin);
      args.exp_avg_sq = sliced.exp_avg_sq.data() + StoredBytes(storage, begin);
      args.gradients += begin;
      args.num_elements = end - begin;
      args.first_index = begin;
      ASSERT_TRUE(AdamW(args, 1).ok());
    }
    EXPECT_EQ(sliced.exp_avg, whole.exp_avg);
    EXPECT_EQ(sliced.exp_avg_sq, whole.exp_avg_sq);
    ExpectSameBits(sliced.parameters, whole.parameters, "parameters");
    if (storage != MomentStorage::kBf16) continue;
    EXPECT_NE(bits_of(12, 3, 1).exp_avg, whole.exp_avg);
    EXPECT_NE(bits_of(11, 4, 1).exp_avg, whole.exp_avg);
  }
}

// Goal: changes far below what bf16 resolves are not lost. Method: a second
// moment with beta2 0.999 moves by a thousandth of its distance a step, which
// rounding to nearest would stop; a thousand steps must bring its mean to
// 1 - 0.999^1000 = 0.6323. The deviation of one element is about 0.03.
TEST(SmallMomentsAdamWTest, SmallChangesAddUpInBf16) {
  constexpr int64_t kSize = 1 << 12;
  const std::vector<float> zeros(kSize, 0.0f), ones(kSize, 1.0f);
  SmallState state(MomentStorage::kBf16, ones, zeros, zeros);
  AdamWArgs args = state.Args(ones, 1);
  args.beta2 = 0.999;
  args.gradient_scale = 1.0;
  for (; args.step <= 1000; ++args.step) ASSERT_TRUE(AdamW(args, 1).ok());
  double sum = 0.0;
  for (const float v : state.Decoded(Moment::kSecond)) sum += v;
  EXPECT_NEAR(sum / kSize, 1 - std::pow(0.999, 1000), 5e-3);
}

// Goal: hundreds of steps go where fp64 moments go. Method: gradients pull
// every parameter towards a target of its own, with noise; after 300 steps the
// root mean square of the distance between the parameters of both is a few
// percent of the way that they went (measured: printed).
TEST(SmallMomentsAdamWTest, ManyStepsGoWhereTheReferenceGoes) {
  constexpr int64_t kSize = 8 * kMomentBlockSize;
  const std::vector<float> zeros(kSize, 0.0f);
  const std::vector<float> targets = RandomFloats(8)(kSize, 2.0f);
  for (const MomentStorage storage : kSmallStorages) {
    SmallState state(storage, zeros, zeros, zeros);
    SmallState exact(MomentStorage::kFloat32, zeros, zeros, zeros);
    RandomFloats noise(9);
    for (int64_t step = 1; step <= 300; ++step) {
      const std::vector<float> of_step = noise(kSize, 0.5f);
      std::vector<float> pull(kSize), exact_pull(kSize);
      for (size_t i = 0; i < pull.size(); ++i) {
        pull[i] = state.parameters[i] - targets[i] + of_step[i];
        exact_pull[i] = exact.parameters[i] - targets[i] + of_step[i];
      }
      ASSERT_TRUE(AdamW(state.Args(pull, step), 1).ok());
      AdamWReference(exact.Args(exact_pull, step));
    }
    double difference = 0.0, way = 0.0;
    for (size_t i = 0; i < zeros.size(); ++i) {
      difference += std::pow(state.parameters[i] - exact.parameters[i], 2);
      way += std::pow(exact.parameters[i], 2);
    }
    const double share = std::sqrt(difference / way);
    std::printf("storage %d: %.4f of the way\n", static_cast<int>(storage),
                share);
    EXPECT_LT(share, 0.05);
    EXPECT_GT(share, 0.0);
  }
}

// Goal: a second moment far below the largest of its block never lets an
// element run away. Method: an element whose gradient is 1e-5 of its
// neighbours' for some steps and then zero moves by no more than a few learning
// rates, where a second moment of zero would divide by epsilon alone.
TEST(SmallMomentsAdamWTest, SmallSecondMomentsKeepUpdatesSmall) {
  std::vector<float> gradients(kMomentBlockSize, 1.0f);
  const std::vector<float> zeros(kMomentBlockSize, 0.0f);
  SmallState state(MomentStorage::kBlocks8, zeros, zeros, zeros);
  for (int64_t step = 1; step <= 20; ++step) {
    gradients[7] = step <= 10 ? 1e-5f : 0.0f;
    AdamWArgs args = state.Args(gradients, step);
    args.weight_decay = 0.0;
    ASSERT_TRUE(AdamW(args, 1).ok());
    ASSERT_LE(std::fabs(state.parameters[7]), 20 * 3e-3) << step;
  }
}

TEST(SmallMomentsAdamWTest, RefusesBadArguments) {
  const std::vector<float> values(kMomentBlockSize, 1.0f);
  SmallState blocks(MomentStorage::kBlocks8, values, values, values);
  AdamWArgs args = blocks.Args(values, 1);
  args.num_elements = 255;
  EXPECT_EQ(AdamW(args, 1).code(), absl::StatusCode::kInvalidArgument);
  SmallState bf16(MomentStorage::kBf16, values, values, values);
  args = bf16.Args(values, 1);
  args.first_index = 2;
  EXPECT_EQ(AdamW(args, 1).code(), absl::StatusCode::kInvalidArgument);
  args.first_index = 4;
  args.num_elements = 255;
  EXPECT_TRUE(AdamW(args, 1).ok());
}

}  // namespace
}  // namespace millrace

#include "worker/data/document_length.h"

#include <functional>

#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr int64_t kTokens = 64;

JobSpec DocumentsJob(int64_t global_batch) {
  JobSpec job;
  job.model.sequence_length = kTokens;
  job.training.global_batch = global_batch;
  return job;
}

// Sequences whose documents begin where the test says.
class Documents : public BatchSource {
 public:
  // The token at which the document of a token begins.
  using StartOf =
      std::function<int64_t(const BatchRequest& request, int64_t token)>;
  explicit Documents(StartOf start_of) : start_of_(std::move(start_of)) {}

  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override {
    EXPECT_EQ(request.num_sequences, 1);
    EXPECT_LT(request.first_sequence_idx, request.global_batch);
    if (request.step > 3) return absl::DataLossError("no such step");
    for (int64_t t = 0; t < kTokens; ++t) {
      out.document_starts[t] = static_cast<int32_t>(start_of_(request, t));
    }
    return absl::OkStatus();
  }

 private:
  StartOf start_of_;
};

// Goal: a token counts with the length of its document. Method: one document,
// equal ones, one long and many short ones, and sequences that differ.
TEST(MeanDocumentLengthTest, CountsTokens) {
  const auto mean_of = [](const Documents::StartOf& start_of) {
    Documents documents(start_of);
    const auto mean = MeanDocumentLength(DocumentsJob(100), documents);
    EXPECT_TRUE(mean.ok()) << mean.status();
    return mean.value_or(-1);
  };
  EXPECT_EQ(mean_of([](const auto&, int64_t) { return 0; }), 0);
  EXPECT_EQ(mean_of([](const auto&, int64_t t) { return t / 16 * 16; }), 16);
  EXPECT_EQ(mean_of([](const auto&, int64_t t) { return t; }), 1);
  // (32^2 + 32 x 1^2) / 64.
  EXPECT_EQ(mean_of([](const auto&, int64_t t) { return t < 32 ? 0 : t; }), 17);
  EXPECT_EQ(mean_of([](const BatchRequest& request, int64_t t) {
              return request.first_sequence_idx % 2 == 0 ? 0 : t / 8 * 8;
            }),
            36);
}

// Goal: what cannot be read is said.
TEST(MeanDocumentLengthTest, PassesErrorsOn) {
  Documents documents([](const auto&, int64_t) { return 0; });
  EXPECT_EQ(MeanDocumentLength(DocumentsJob(2), documents).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace millrace

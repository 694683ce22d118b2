#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/attention.h"

namespace millrace {
namespace {

// One query: its token, head and visible keys, and where their rows lie.
struct Query {
  int64_t token;
  int64_t head;
  int64_t first_key;  // Tokens [first_key, token] are visible.
  int64_t query;      // Offset of its row in qkv.
  int64_t key;        // Offsets of the first key's and value's rows.
  int64_t value;
  int64_t stride;  // From one key to the next.
};

// Calls body(query) for each, in order.
template <typename Body>
void ForEachQuery(const AttentionShape& shape, const int32_t* document_starts,
                  const Body& body) {
  const int64_t stride =
      (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
  const int64_t num_tokens = shape.num_sequences * shape.sequence_length;
  for (int64_t head = 0; head < shape.num_heads; ++head) {
    const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int64_t position = t % shape.sequence_length;
      int64_t first = document_starts[t];
      if (shape.window > 0) {
        first = std::max(first, position - shape.window + 1);
      }
      const int64_t first_key = t - position + first;
      body(Query{.token = t,
                 .head = head,
                 .first_key = first_key,
                 .query = t * stride + head * shape.head_dim,
                 .key = first_key * stride +
                        (shape.num_heads + kv_head) * shape.head_dim,
                 .value = first_key * stride +
                          (shape.num_heads + shape.num_kv_heads + kv_head) *
                              shape.head_dim,
                 .stride = stride});
    }
  }
}

std::vector<double> Scores(const Query& query, const float* qkv,
                           int64_t head_dim) {
  std::vector<double> scores;
  for (int64_t j = 0; query.first_key + j <= query.token; ++j) {
    double sum = 0.0;
    for (int64_t d = 0; d < head_dim; ++d) {
      sum +=
          double{qkv[query.query + d]} * qkv[query.key + j * query.stride + d];
    }
    scores.push_back(sum / std::sqrt(static_cast<double>(head_dim)));
  }
  return scores;
}

}  // namespace

void AttentionForwardReference(const AttentionForwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const int64_t head_dim = shape.head_dim;
  const int64_t num_tokens = shape.num_sequences * shape.sequence_length;
  ForEachQuery(shape, args.document_starts, [&](const Query& query) {
    const std::vector<double> scores = Scores(query, args.qkv, head_dim);
    double maximum = scores[0];
    for (double score : scores) maximum = std::fmax(maximum, score);
    double sum = 0.0;
    for (double score : scores) sum += std::exp(score - maximum);
    const double lse = maximum + std::log(sum);
    args.lse[query.head * num_tokens + query.token] = static_cast<float>(lse);
    for (int64_t d = 0; d < head_dim; ++d) {
      double output = 0.0;
      for (size_t j = 0; j < scores.size(); ++j) {
        output += std::exp(scores[j] - lse) *
                  args.qkv[query.value + j * query.stride + d];
      }
      args.o[(query.token * shape.num_heads + query.head) * head_dim + d] =
          static_cast<float>(output);
    }
  });
}

void AttentionBackwardReference(const AttentionBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const int64_t head_dim = shape.head_dim;
  const int64_t num_tokens = shape.num_sequences * shape.sequence_length;
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  std::vector<double> d_qkv(
      num_tokens * (shape.num_heads + 2 * shape.num_kv_heads) * head_dim);
  ForEachQuery(shape, args.document_starts, [&](const Query& query) {
    const int64_t o_offset =
        (query.token * shape.num_heads + query.head) * head_dim;
    double delta = 0.0;
    for (int64_t d = 0; d < head_dim; ++d) {
      delta += double{args.d_o[o_offset + d]} * args.o[o_offset + d];
    }
    const int64_t stat = query.head * num_tokens + query.token;
    args.delta[stat] = static_cast<float>(delta);
    const std::vector<double> scores = Scores(query, args.qkv, head_dim);
    for (size_t j = 0; j < scores.size(); ++j) {
      const int64_t key = query.key + j * query.stride;
      const int64_t value = query.value + j * query.stride;
      double d_p = 0.0;
      for (int64_t d = 0; d < head_dim; ++d) {
        d_p += double{args.d_o[o_offset + d]} * args.qkv[value + d];
      }
      const double p = std::exp(scores[j] - args.lse[stat]);
      const double ds = p * (d_p - delta) * scale;
      for (int64_t d = 0; d < head_dim; ++d) {
        d_qkv[query.query + d] += ds * args.qkv[key + d];
        d_qkv[key + d] += ds * args.qkv[query.query + d];
        d_qkv[value + d] += p * args.d_o[o_offset + d];
      }
    }
  });
  for (size_t i = 0; i < d_qkv.size(); ++i) {
    args.d_qkv[i] = static_cast<float>(d_qkv[i]);
  }
}

}  // namespace millrace

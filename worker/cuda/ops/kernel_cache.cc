#include "worker/cuda/ops/kernel_cache.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/optimizer/gradient_norm_bf16.h"
#include "kernels/tuning/tuning.h"
#include "planner/program/workspace.h"
#include "worker/cuda/ops/kernel_choices.h"
#include "worker/cuda/ops/shipped_gemm_algorithms.h"

namespace millrace {
namespace {

// The workspace of a product, the most that cuBLASLt asks for on Hopper.
constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;
constexpr int64_t kNumTileCounters = 2;

template <typename T>
absl::StatusOr<DeviceBuffer<T>> AllocateZeros(int64_t size) {
  ASSIGN_OR_RETURN(auto buffer,
                   DeviceBuffer<T>::Allocate(static_cast<size_t>(size)));
  RETURN_IF_ERROR(
      CudaStatus(cudaMemset(buffer.data(), 0, buffer.size() * sizeof(T)),
                 "zero device memory"));
  return buffer;
}

CrossEntropyOptions ProblemOf(const VocabAttributes& attributes,
                              int64_t vocab_begin) {
  return {.num_tokens = attributes.num_tokens,
          .hidden = attributes.hidden,
          .vocab_rows = attributes.vocab_rows,
          .vocab_begin = vocab_begin,
          .chunk_tokens = attributes.chunk_tokens,
          .token_scale = attributes.token_scale,
          .loss_share = attributes.loss_share,
          .accumulate = attributes.accumulate,
          .softcap = attributes.softcap};
}

template <typename Key>
Key CrossEntropyKeyOf(const VocabAttributes& attributes, int64_t vocab_begin,
                      ElementType type) {
  return Key(attributes.num_tokens, attributes.hidden, attributes.vocab_rows,
             vocab_begin, attributes.chunk_tokens, attributes.token_scale,
             attributes.loss_share, attributes.accumulate, attributes.softcap,
             type);
}

}  // namespace

int64_t CudaGemm::workspace_bytes() const {
  return std::visit([](const auto& plan) { return plan.workspace_bytes(); },
                    plan_);
}

absl::Status CudaGemm::Run(void* c, const void* a, const void* b,
                           const void* bias, void* workspace,
                           cudaStream_t stream) const {
  if (const auto* fast = std::get_if<GemmBf16Plan>(&plan_)) {
    // The door takes a bias that it writes as well.
    return fast->Run({.c = c,
                      .a = a,
                      .b = b,
                      .bias = const_cast<void*>(bias),
                      .workspace = workspace},
                     stream);
  }
  RETURN_IF_ERROR(std::get<PlainGemmPlan>(plan_).Run(
      {.c = c, .a = a, .b = b, .workspace = workspace}, stream));
  if (bias == nullptr) return absl::OkStatus();
  return LaunchPlainAddBias(
      {.x = c, .bias = bias, .num_rows = rows_, .num_cols = cols_}, type_,
      stream);
}

absl::StatusOr<GemmAlgorithmTable> ShippedGemmAlgorithms() {
  return GemmAlgorithmTable::Parse(kShippedGemmAlgorithms);
}

absl::StatusOr<std::unique_ptr<CudaKernelCache>> CudaKernelCache::Create(
    const KernelTuning& tuning) {
  ASSIGN_OR_RETURN(const std::string device, CurrentDeviceName());
  ASSIGN_OR_RETURN(CudaChoices choices, ChoicesFor(tuning, device));
  InstallTuning(choices.kernels);
  return CreateWith({.gemm_algorithms = std::move(choices.products)});
}

absl::StatusOr<std::unique_ptr<CudaKernelCache>> CudaKernelCache::CreateWith(
    Options options) {
  ASSIGN_OR_RETURN(std::string chip, CurrentChipWord());
  ASSIGN_OR_RETURN(auto tile_counter, AllocateZeros<int32_t>(kNumTileCounters));
  ASSIGN_OR_RETURN(auto squared_norm_workspace,
                   AllocateZeros<std::byte>(SquaredNormBf16WorkspaceBytes()));
  // The default stream's work is not ordered with that of the lanes.
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceSynchronize(), "zero the kernels' counters"));
  return std::unique_ptr<CudaKernelCache>(new CudaKernelCache(
      std::move(options), std::move(chip), std::move(tile_counter),
      std::move(squared_norm_workspace)));
}

CudaKernelCache::CudaKernelCache(Options options, std::string chip,
                                 DeviceBuffer<int32_t> tile_counter,
                                 DeviceBuffer<std::byte> squared_norm_workspace)
    : options_(std::move(options)),
      chip_(std::move(chip)),
      tile_counter_(std::move(tile_counter)),
      squared_norm_workspace_(std::move(squared_norm_workspace)) {}

absl::StatusOr<CudaGemm> CudaKernelCache::MakeGemm(
    const GemmAttributes& attributes, ElementType type,
    bool fp32_output) const {
  if (type == ElementType::kBfloat16) {
    const GemmBf16Shape shape = {.m = attributes.m,
                                 .n = attributes.n,
                                 .k = attributes.k,
                                 .trans_a = attributes.trans_a,
                                 .trans_b = attributes.trans_b,
                                 .fp32_output = fp32_output,
                                 .accumulate = attributes.accumulate,
                                 .epilogue = attributes.bias
                                                 ? GemmEpilogue::kBias
                                                 : GemmEpilogue::kNone};
    absl::StatusOr<GemmBf16Plan> plan = GemmBf16Plan::Create(
        shape,
        {.max_workspace_bytes = kGemmWorkspaceBytes,
         .num_multiprocessors = options_.gemm_multiprocessors,
         .algorithm = options_.gemm_algorithms.Find(chip_, shape, nullptr)});
    if (plan.ok()) return CudaGemm(*std::move(plan));
    if (!absl::IsInvalidArgument(plan.status())) return plan.status();
  }
  ASSIGN_OR_RETURN(
      PlainGemmPlan plan,
      PlainGemmPlan::Create({.shape = {.m = attributes.m,
                                       .n = attributes.n,
                                       .k = attributes.k,
                                       .trans_a = attributes.trans_a,
                                       .trans_b = attributes.trans_b,
                                       .accumulate = attributes.accumulate},
                             .type = type,
                             .fp32_output = fp32_output,
                             .max_workspace_bytes = kGemmWorkspaceBytes}));
  return CudaGemm(std::move(plan), type, attributes.m, attributes.n);
}

absl::StatusOr<const CudaGemm*> CudaKernelCache::Gemm(
    const GemmAttributes& attributes, ElementType type, bool fp32_output) {
  const GemmKey key(attributes.m, attributes.n, attributes.k,
                    attributes.trans_a, attributes.trans_b,
                    attributes.accumulate, attributes.bias, type, fp32_output);
  auto found = gemms_.find(key);
  if (found == gemms_.end()) {
    ASSIGN_OR_RETURN(CudaGemm gemm, MakeGemm(attributes, type, fp32_output));
    found = gemms_.emplace(key, std::move(gemm)).first;
  }
  return &found->second;
}

absl::StatusOr<const GemmFp8Plan*> CudaKernelCache::Float8Gemm(
    const GemmAttributes& attributes, bool fp32_output) {
  const bool is_forward = IsOfForwardPass(attributes);
  const Float8GemmKey key(attributes.m, attributes.n, attributes.k, is_forward,
                          attributes.accumulate, attributes.bias, fp32_output);
  auto found = float8_gemms_.find(key);
  if (found == float8_gemms_.end()) {
    ASSIGN_OR_RETURN(
        GemmFp8Plan plan,
        GemmFp8Plan::Create(
            {.m = attributes.m,
             .n = attributes.n,
             .k = attributes.k,
             .fp32_output = fp32_output,
             .accumulate = attributes.accumulate,
             .bias = attributes.bias,
             .fast_accumulation = is_forward},
            {.max_workspace_bytes = kGemmWorkspaceBytes,
             .num_multiprocessors = options_.gemm_multiprocessors}));
    found = float8_gemms_.emplace(key, std::move(plan)).first;
  }
  return &found->second;
}

absl::StatusOr<const CrossEntropyBf16Plan*> CudaKernelCache::CrossEntropy(
    const VocabAttributes& attributes, int64_t vocab_begin) {
  const auto key = CrossEntropyKeyOf<CrossEntropyKey>(attributes, vocab_begin,
                                                      ElementType::kBfloat16);
  auto found = cross_entropies_.find(key);
  if (found == cross_entropies_.end()) {
    const CrossEntropyOptions problem = ProblemOf(attributes, vocab_begin);
    const CrossEntropyBf16Products products =
        CrossEntropyBf16ProductsOf(problem, attributes.chunk_tokens);
    const GemmAlgorithmTable& table = options_.gemm_algorithms;
    ASSIGN_OR_RETURN(
        CrossEntropyBf16Plan plan,
        CrossEntropyBf16Plan::Create(
            {.problem = problem,
             .max_gemm_workspace_bytes = kLossGemmWorkspaceBytes,
             .algorithms = {
                 .logits = table.Find(chip_, products.logits, nullptr),
                 .d_hidden = table.Find(chip_, products.d_hidden, nullptr),
                 .d_weight = table.Find(chip_, products.d_weight, nullptr)}}));
    found = cross_entropies_.emplace(key, std::move(plan)).first;
  }
  return &found->second;
}

absl::StatusOr<const PlainCrossEntropyPlan*> CudaKernelCache::PlainCrossEntropy(
    const VocabAttributes& attributes, int64_t vocab_begin, ElementType type) {
  const auto key =
      CrossEntropyKeyOf<CrossEntropyKey>(attributes, vocab_begin, type);
  auto found = plain_cross_entropies_.find(key);
  if (found == plain_cross_entropies_.end()) {
    ASSIGN_OR_RETURN(
        PlainCrossEntropyPlan plan,
        PlainCrossEntropyPlan::Create(
            {.problem = ProblemOf(attributes, vocab_begin),
             .type = type,
             .max_gemm_workspace_bytes = kLossGemmWorkspaceBytes}));
    found = plain_cross_entropies_.emplace(key, std::move(plan)).first;
  }
  return &found->second;
}

absl::StatusOr<const float*> CudaKernelCache::RopeTable(
    const AttentionAttributes& attributes) {
  const RopeKey key = RopeKeyOf(attributes);
  auto found = rope_tables_.find(key);
  if (found == rope_tables_.end()) {
    const int64_t num_bytes = RopeBytesOf(attributes);
    std::vector<float> host(static_cast<size_t>(num_bytes) / sizeof(float));
    RETURN_IF_ERROR(FillRopeTableOf(attributes, rope_factors_, host.data()));
    ASSIGN_OR_RETURN(auto table, DeviceBuffer<float>::Allocate(host.size()));
    RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(table.data(), host.data(), static_cast<size_t>(num_bytes),
                   cudaMemcpyHostToDevice),
        "copy a table of rotary positions"));
    found = rope_tables_.emplace(key, std::move(table)).first;
  }
  return found->second.data();
}

absl::StatusOr<void*> CudaKernelCache::Scratch(int64_t num_bytes) {
  const bool is_enough =
      !scratch_.empty() &&
      static_cast<int64_t>(scratch_.back().size()) >= num_bytes;
  if (!is_enough) {
    const int64_t size = std::max(num_bytes, kComputeScratchBytes);
    ASSIGN_OR_RETURN(auto scratch, DeviceBuffer<std::byte>::Allocate(
                                       static_cast<size_t>(size)));
    scratch_.push_back(std::move(scratch));
  }
  return static_cast<void*>(scratch_.back().data());
}

int64_t CudaKernelCache::bytes() const {
  size_t bytes =
      tile_counter_.size() * sizeof(int32_t) + squared_norm_workspace_.size();
  for (const auto& [key, table] : rope_tables_) {
    bytes += table.size() * sizeof(float);
  }
  for (const auto& scratch : scratch_) bytes += scratch.size();
  return static_cast<int64_t>(bytes);
}

}  // namespace millrace

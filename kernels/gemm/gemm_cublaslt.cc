#include "kernels/gemm/gemm_cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

constexpr absl::string_view kFamily = "cublaslt";

absl::Status LtStatus(cublasStatus_t status, absl::string_view name,
                      absl::string_view action) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message =
      absl::StrCat("cuBLASLt failed to ", action, " ", name, ": ",
                   cublasLtGetStatusString(status));
  switch (status) {
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_INVALID_VALUE:
      return absl::InvalidArgumentError(message);
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(message);
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

// One handle a device and process, made at the first plan and kept: making one
// takes memory of the device.
absl::StatusOr<cublasLtHandle_t> HandleOf(int device) {
  static absl::Mutex mutex(absl::kConstInit);
  static std::array<cublasLtHandle_t, 64> handles ABSL_GUARDED_BY(mutex) = {};
  if (device >= static_cast<int>(handles.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("GEMM plans know ", handles.size(),
                     " devices; this is number ", device));
  }
  absl::MutexLock lock(&mutex);
  if (handles[device] == nullptr) {
    RETURN_IF_ERROR(
        LtStatus(cublasLtCreate(&handles[device]), "", "begin on the device"));
  }
  return handles[device];
}

cudaDataType_t DataType(LtType type) {
  switch (type) {
    case LtType::kBf16:
      return CUDA_R_16BF;
    case LtType::kFp32:
      return CUDA_R_32F;
    case LtType::kFp8E4M3:
      return CUDA_R_8F_E4M3;
    case LtType::kFp8E5M2:
      return CUDA_R_8F_E5M2;
  }
  return CUDA_R_16BF;
}

cublasLtEpilogue_t Epilogue(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmEpilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU;
    case GemmEpilogue::kGeluBias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case GemmEpilogue::kGeluSave:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmEpilogue::kGeluBiasSave:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case GemmEpilogue::kGeluBiasGradient:
      return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    case GemmEpilogue::kSumA:  // Its a is our b, and the other way about.
      return CUBLASLT_EPILOGUE_BGRADB;
    case GemmEpilogue::kSumB:
      return CUBLASLT_EPILOGUE_BGRADA;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

bool HasBias(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::kBias ||
         epilogue == GemmEpilogue::kGeluBias ||
         epilogue == GemmEpilogue::kGeluBiasSave ||
         epilogue == GemmEpilogue::kGeluBiasGradient ||
         epilogue == GemmEpilogue::kSumA || epilogue == GemmEpilogue::kSumB;
}

bool HasAux(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::kGeluSave ||
         epilogue == GemmEpilogue::kGeluBiasSave ||
         epilogue == GemmEpilogue::kGeluGradient ||
         epilogue == GemmEpilogue::kGeluBiasGradient;
}

std::string AlgorithmText(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text = absl::StrCat(kFamily, "/", cublasLtGetVersion(), "/");
  for (size_t i = 0; i < std::size(algorithm.data); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ".", absl::Hex(algorithm.data[i]));
  }
  return text;
}

absl::StatusOr<cublasLtMatmulAlgo_t> ParseAlgorithm(
    const GemmAlgorithm& algorithm) {
  RETURN_IF_ERROR(CheckLtVersion(algorithm));
  const std::vector<absl::string_view> parts =
      absl::StrSplit(algorithm.text, '/');
  cublasLtMatmulAlgo_t parsed = {};
  const std::vector<absl::string_view> words =
      absl::StrSplit(parts.size() == 3 ? parts[2] : "", '.');
  bool is_good = words.size() == std::size(parsed.data);
  for (size_t i = 0; is_good && i < words.size(); ++i) {
    const absl::string_view word = words[i];
    const auto result = std::from_chars(word.data(), word.data() + word.size(),
                                        parsed.data[i], 16);
    is_good = result.ec == std::errc() && !word.empty() &&
              result.ptr == word.data() + word.size();
  }
  if (!is_good) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", algorithm.text, "\" is no algorithm of cuBLASLt: it has ",
        std::size(parsed.data), " hexadecimal words"));
  }
  return parsed;
}

// Owns what describes a problem to cuBLASLt.
struct Description {
  cublasLtHandle_t handle = nullptr;
  int device = 0;
  cublasLtMatmulDesc_t operation = nullptr;
  // In cuBLASLt's order: its a is our b.
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;

  Description() = default;
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  ~Description() {
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {first, second, result}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }

  template <typename T>
  cublasStatus_t Set(cublasLtMatmulDescAttributes_t attribute,
                     const T& value) const {
    return cublasLtMatmulDescSetAttribute(operation, attribute, &value,
                                          sizeof(value));
  }
};

absl::Status Describe(const LtProblem& problem, Description& d) {
  auto check = [&](cublasStatus_t status) {
    return LtStatus(status, problem.name, "describe");
  };
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&d.device), "find the device"));
  ASSIGN_OR_RETURN(d.handle, HandleOf(d.device));
  RETURN_IF_ERROR(check(
      cublasLtMatmulDescCreate(&d.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
  const cublasOperation_t first = problem.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = problem.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  RETURN_IF_ERROR(check(d.Set(CUBLASLT_MATMUL_DESC_TRANSA, first)));
  RETURN_IF_ERROR(check(d.Set(CUBLASLT_MATMUL_DESC_TRANSB, second)));
  RETURN_IF_ERROR(
      check(d.Set(CUBLASLT_MATMUL_DESC_EPILOGUE, Epilogue(problem.epilogue))));
  // The heuristic looks whether there is a pointer, not where it leads.
  const auto some_pointer = reinterpret_cast<const void*>(uintptr_t{256});
  if (HasBias(problem.epilogue)) {
    RETURN_IF_ERROR(
        check(d.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, some_pointer)));
    const int32_t type = DataType(problem.c_type);
    RETURN_IF_ERROR(check(d.Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type)));
  }
  if (HasAux(problem.epilogue)) {
    RETURN_IF_ERROR(
        check(d.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, some_pointer)));
    RETURN_IF_ERROR(
        check(d.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.aux_stride)));
    const int32_t type = CUDA_R_16BF;
    RETURN_IF_ERROR(
        check(d.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type)));
  }
  if (problem.num_multiprocessors != 0) {
    const int32_t count = problem.num_multiprocessors;
    RETURN_IF_ERROR(check(d.Set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, count)));
  }
  if (problem.a_type == LtType::kFp8E4M3 ||
      problem.a_type == LtType::kFp8E5M2) {
    RETURN_IF_ERROR(
        check(d.Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, some_pointer)));
    RETURN_IF_ERROR(
        check(d.Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, some_pointer)));
  }
  if (problem.fast_accumulation) {
    const int8_t yes = 1;
    RETURN_IF_ERROR(check(d.Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, yes)));
  }
  const auto [m, n, k] = std::array{problem.m, problem.n, problem.k};
  RETURN_IF_ERROR(check(cublasLtMatrixLayoutCreate(
      &d.first, DataType(problem.b_type), problem.trans_b ? k : n,
      problem.trans_b ? n : k, problem.b_stride)));
  RETURN_IF_ERROR(check(cublasLtMatrixLayoutCreate(
      &d.second, DataType(problem.a_type), problem.trans_a ? m : k,
      problem.trans_a ? k : m, problem.a_stride)));
  return check(cublasLtMatrixLayoutCreate(&d.result, DataType(problem.c_type),
                                          n, m, problem.c_stride));
}

absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Heuristic(
    const LtProblem& problem, const Description& d, int max_candidates) {
  auto check = [&](cublasStatus_t status) {
    return LtStatus(status, problem.name, "find an algorithm for");
  };
  cublasLtMatmulPreference_t preference;
  RETURN_IF_ERROR(check(cublasLtMatmulPreferenceCreate(&preference)));
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                        decltype(&cublasLtMatmulPreferenceDestroy)>
      owner(preference, &cublasLtMatmulPreferenceDestroy);
  const uint64_t workspace_bytes = problem.max_workspace_bytes;
  RETURN_IF_ERROR(check(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
      sizeof(workspace_bytes))));
  // Parts of a sum that is split along k meet in fp32, never rounded to c.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  RETURN_IF_ERROR(check(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
      sizeof(reductions))));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    const uint32_t alignment = problem.pointer_alignment;
    RETURN_IF_ERROR(check(cublasLtMatmulPreferenceSetAttribute(
        preference, attribute, &alignment, sizeof(alignment))));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(max_candidates);
  int num_results = 0;
  RETURN_IF_ERROR(check(cublasLtMatmulAlgoGetHeuristic(
      d.handle, d.operation, d.first, d.second, d.result, d.result, preference,
      max_candidates, results.data(), &num_results)));
  results.resize(num_results);
  std::erase_if(results, [](const cublasLtMatmulHeuristicResult_t& result) {
    return result.state != CUBLAS_STATUS_SUCCESS;
  });
  if (results.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuBLASLt has no algorithm for ", problem.name, " in ",
                     problem.max_workspace_bytes, " bytes of workspace"));
  }
  return results;
}

}  // namespace

absl::Status BeginCublasLt() {
  int device = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "ask for the device"));
  return HandleOf(device).status();
}

absl::Status CheckLtVersion(const GemmAlgorithm& algorithm) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(algorithm.text, '/');
  if (parts[0] != kFamily) {
    return absl::NotFoundError(
        absl::StrCat("\"", algorithm.text, "\" is not of cuBLASLt"));
  }
  const std::string version = absl::StrCat(cublasLtGetVersion());
  if (parts.size() < 2 || parts[1] != version) {
    return absl::FailedPreconditionError(absl::StrCat(
        "algorithm \"", algorithm.text, "\" is of another cuBLASLt than ",
        version, ", which runs here; measure again"));
  }
  return absl::OkStatus();
}

struct LtMatmul::Impl {
  LtProblem problem;
  Description description;
  cublasLtMatmulAlgo_t native;
  LtAlgorithm algorithm;
};

LtMatmul::LtMatmul(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LtMatmul::LtMatmul(LtMatmul&&) noexcept = default;
LtMatmul& LtMatmul::operator=(LtMatmul&&) noexcept = default;
LtMatmul::~LtMatmul() = default;

const LtAlgorithm& LtMatmul::algorithm() const { return impl_->algorithm; }

absl::StatusOr<LtMatmul> LtMatmul::Create(const LtProblem& problem,
                                          const GemmAlgorithm& algorithm) {
  auto impl = std::make_unique<Impl>();
  impl->problem = problem;
  RETURN_IF_ERROR(Describe(problem, impl->description));
  const Description& d = impl->description;
  cublasLtMatmulHeuristicResult_t result = {};
  if (algorithm.text.empty()) {
    ASSIGN_OR_RETURN(const auto results, Heuristic(problem, d, 1));
    result = results[0];
  } else {
    ASSIGN_OR_RETURN(result.algo, ParseAlgorithm(algorithm));
    const cublasLtMatmulAlgo_t native = result.algo;
    RETURN_IF_ERROR(LtStatus(
        cublasLtMatmulAlgoCheck(d.handle, d.operation, d.first, d.second,
                                d.result, d.result, &native, &result),
        absl::StrCat(problem.name, " with \"", algorithm.text, "\""), "run"));
    result.algo = native;
  }
  impl->native = result.algo;
  impl->algorithm = {{AlgorithmText(result.algo)},
                     static_cast<int64_t>(result.workspaceSize)};
  if (impl->algorithm.workspace_bytes > problem.max_workspace_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(problem.name, " with \"", impl->algorithm.algorithm.text,
                     "\" needs ", result.workspaceSize, " bytes of workspace; ",
                     problem.max_workspace_bytes, " are allowed"));
  }
  return LtMatmul(std::move(impl));
}

absl::Status LtMatmul::Run(const LtPointers& pointers,
                           cudaStream_t stream) const {
  const Description& d = impl_->description;
  const LtProblem& problem = impl_->problem;
  auto check = [&](cublasStatus_t status) {
    return LtStatus(status, problem.name, "run");
  };
  if (HasBias(problem.epilogue)) {
    RETURN_IF_ERROR(
        check(d.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, pointers.bias)));
  }
  if (HasAux(problem.epilogue)) {
    RETURN_IF_ERROR(
        check(d.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pointers.aux)));
  }
  if (pointers.a_scale != nullptr) {
    RETURN_IF_ERROR(
        check(d.Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.b_scale)));
    RETURN_IF_ERROR(
        check(d.Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointers.a_scale)));
  }
  const float beta = problem.accumulate ? 1.0f : 0.0f;
  return check(cublasLtMatmul(d.handle, d.operation, &pointers.scale,
                              pointers.b, d.first, pointers.a, d.second, &beta,
                              pointers.c, d.result, pointers.c, d.result,
                              &impl_->native, pointers.workspace,
                              impl_->algorithm.workspace_bytes, stream));
}

absl::StatusOr<std::vector<LtAlgorithm>> LtCandidates(const LtProblem& problem,
                                                      int max_candidates) {
  Description description;
  RETURN_IF_ERROR(Describe(problem, description));
  ASSIGN_OR_RETURN(const auto results,
                   Heuristic(problem, description, max_candidates));
  std::vector<LtAlgorithm> algorithms;
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    algorithms.push_back({{AlgorithmText(result.algo)},
                          static_cast<int64_t>(result.workspaceSize)});
  }
  return algorithms;
}

}  // namespace millrace

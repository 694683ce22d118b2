#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/gemm_bf16_sm90.h"
#include "kernels/gemm_bf16_sm90_launch.cuh"

namespace millrace {
namespace {

using gemm_sm90::Config;
using gemm_sm90::StoreBf16;
using gemm_sm90::StoreFp32;

constexpr absl::string_view kFamily = "wgmma";
constexpr int kVersion = 1;  // Rises when a text changes its meaning.

absl::string_view TileWord(GemmSm90Config::Tile tile) {
  return tile == GemmSm90Config::Tile::kWide ? "128x256" : "128x192turns";
}

// What LaunchGemmSm90() got, on its way through the template arguments.
struct Request {
  const GemmSm90Config& config;
  const GemmBf16Shape& shape;
  int num_multiprocessors;
  const GemmBf16Args& args;
  cudaStream_t stream;
};

template <typename C>
absl::Status LaunchOutput(const Request& r) {
  auto launch = [&]<typename Epilogue>(Epilogue) {
    return gemm_sm90::Launch<C, Epilogue>(
        r.shape, r.config.raster, r.num_multiprocessors, r.args, r.stream);
  };
  if (!r.shape.fp32_output) return launch(StoreBf16());
  return r.shape.accumulate ? launch(StoreFp32<true>())
                            : launch(StoreFp32<false>());
}

template <int kTileN, int kStages, int kCluster, bool kTurns>
absl::Status LaunchLayout(const Request& r) {
  // "Transposed" is told from what the tensor cores like best: rows along k.
  if (r.shape.trans_a) {
    return r.shape.trans_b
               ? LaunchOutput<
                     Config<kTileN, kStages, kCluster, kTurns, true, false>>(r)
               : LaunchOutput<
                     Config<kTileN, kStages, kCluster, kTurns, true, true>>(r);
  }
  return r.shape.trans_b
             ? LaunchOutput<
                   Config<kTileN, kStages, kCluster, kTurns, false, false>>(r)
             : LaunchOutput<
                   Config<kTileN, kStages, kCluster, kTurns, false, true>>(r);
}

}  // namespace

GemmAlgorithm FormatGemmSm90(const GemmSm90Config& config) {
  return {absl::StrCat(kFamily, "/", kVersion, "/", TileWord(config.tile), "/c",
                       config.cluster, "/r", config.raster)};
}

absl::StatusOr<GemmSm90Config> ParseGemmSm90(const GemmAlgorithm& algorithm) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(algorithm.text, '/');
  if (parts[0] != kFamily) {
    return absl::NotFoundError(
        absl::StrCat("\"", algorithm.text, "\" is not of wgmma"));
  }
  if (parts.size() < 2 || parts[1] != absl::StrCat(kVersion)) {
    return absl::FailedPreconditionError(
        absl::StrCat("algorithm \"", algorithm.text,
                     "\" is of another version of wgmma than ", kVersion,
                     ", which runs here; measure again"));
  }
  GemmSm90Config config;
  auto number = [](absl::string_view part, char letter, int* value) {
    return part.size() > 1 && part[0] == letter &&
           absl::SimpleAtoi(part.substr(1), value);
  };
  if (parts.size() == 5 && number(parts[3], 'c', &config.cluster) &&
      number(parts[4], 'r', &config.raster) && config.raster >= 1 &&
      (config.cluster == 1 || config.cluster == 2)) {
    for (const auto tile :
         {GemmSm90Config::Tile::kWide, GemmSm90Config::Tile::kPingPong}) {
      config.tile = tile;
      if (parts[2] == TileWord(tile)) return config;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", algorithm.text, "\" is not wgmma/", kVersion,
                   "/<128x256 or 128x192turns>/c<1 or 2>/r<clusters of rows>"));
}

std::vector<GemmSm90Config> GemmSm90Candidates() {
  std::vector<GemmSm90Config> configs;
  for (const auto tile :
       {GemmSm90Config::Tile::kWide, GemmSm90Config::Tile::kPingPong}) {
    for (const int raster : {4, 8, 16}) configs.push_back({tile, 2, raster});
  }
  return configs;
}

absl::Status CheckGemmSm90(const GemmBf16Shape& shape) {
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (!limits.IsHopper()) {
    return absl::UnavailableError(absl::StrCat(
        "wgmma GEMM runs on Hopper (compute capability 9.0); the device has ",
        limits.compute_capability / 10, ".", limits.compute_capability % 10));
  }
  if (shape.epilogue != GemmEpilogue::kNone) {
    return absl::InvalidArgumentError(
        "wgmma GEMM has no epilogue but kNone; cuBLASLt has the others");
  }
  if (shape.accumulate && !shape.fp32_output) {
    return absl::InvalidArgumentError(
        "wgmma GEMM adds to c in fp32 alone; cuBLASLt adds in bf16");
  }
  const int64_t c_unit = shape.fp32_output ? 4 : 8;
  if (shape.a_stride % 8 != 0 || shape.b_stride % 8 != 0 ||
      shape.c_stride % c_unit != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wgmma GEMM takes strides that are multiples of 16 bytes; got ",
        shape.a_stride, ", ", shape.b_stride, " and ", shape.c_stride,
        " elements of a, b and c"));
  }
  return absl::OkStatus();
}

absl::Status LaunchGemmSm90(const GemmSm90Config& config,
                            const GemmBf16Shape& shape, int num_multiprocessors,
                            const GemmBf16Args& args, cudaStream_t stream) {
  const Request request{config, shape, num_multiprocessors, args, stream};
  const bool pairs = config.cluster == 2 && num_multiprocessors > 1;
  if (config.tile == GemmSm90Config::Tile::kWide) {
    return pairs ? LaunchLayout<256, 4, 2, false>(request)
                 : LaunchLayout<256, 4, 1, false>(request);
  }
  return pairs ? LaunchLayout<192, 4, 2, true>(request)
               : LaunchLayout<192, 4, 1, true>(request);
}

}  // namespace millrace

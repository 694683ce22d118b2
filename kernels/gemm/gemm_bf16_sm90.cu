#include "kernels/gemm/gemm_bf16_sm90.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/gemm/gemm_bf16_sm90_epilogue.cuh"
#include "kernels/gemm/gemm_bf16_sm90_launch.cuh"

namespace millrace {
namespace {

using gemm_sm90::Config;
using gemm_sm90::Pairs;
using gemm_sm90::Sharing;
using gemm_sm90::StoreBf16;
using gemm_sm90::StoreFp32;

constexpr absl::string_view kFamily = "wgmma";
constexpr int kVersion = 1;  // Rises when a text changes its meaning.

absl::string_view TileWord(GemmSm90Config::Tile tile) {
  switch (tile) {
    case GemmSm90Config::Tile::kWide:
      return "128x256";
    case GemmSm90Config::Tile::kTurns:
      return "128x192turns";
    case GemmSm90Config::Tile::kTall:
      return "256x192";
  }
  return "";
}

// LaunchGemmSm90()'s arguments on their way through the template arguments.
struct Request {
  const GemmSm90Config& config;
  const GemmBf16Shape& shape;
  int num_multiprocessors;
  const GemmBf16Args& args;
  cudaStream_t stream;
};

template <typename C>
absl::Status LaunchOutput(const Request& r) {
  const GemmBf16Shape& shape = r.shape;
  ASSIGN_OR_RETURN(const gemm_sm90::Params params,
                   gemm_sm90::MakeParams<C>(
                       {.c = r.args.c,
                        .a = {.data = r.args.a,
                              .rows = shape.trans_a ? shape.k : shape.m,
                              .columns = shape.trans_a ? shape.m : shape.k,
                              .row_stride = shape.a_stride},
                        .b = {.data = r.args.b,
                              .rows = shape.trans_b ? shape.n : shape.k,
                              .columns = shape.trans_b ? shape.k : shape.n,
                              .row_stride = shape.b_stride},
                        .c_stride = shape.c_stride,
                        .num_rows = shape.m,
                        .num_columns = shape.n,
                        .k = shape.k,
                        .scale = r.args.scale,
                        .c_is_fp32 = shape.fp32_output},
                       r.config.raster));
  const int num_clusters =
      gemm_sm90::NumClusters(params.num_tile_rows * params.num_tile_columns,
                             r.num_multiprocessors / C::kCluster);
  auto launch = [&]<typename Epilogue>() {
    return gemm_sm90::Launch<C, gemm_sm90::DenseTiles<C>, Epilogue>(
        params, num_clusters, r.stream);
  };
  if (!shape.fp32_output) return launch.template operator()<StoreBf16<C>>();
  return shape.accumulate ? launch.template operator()<StoreFp32<C, true>>()
                          : launch.template operator()<StoreFp32<C, false>>();
}

template <int kTileM, int kTileN, int kStages, Pairs kPairs, Sharing kSharing>
absl::Status LaunchLayout(const Request& r) {
  // In the kernel "transposed" is told from rows along k.
  auto launch = [&]<bool kTransposeA, bool kTransposeB>() {
    return LaunchOutput<Config<kTileM, kTileN, kStages, kPairs, kSharing,
                               kTransposeA, kTransposeB>>(r);
  };
  if (r.shape.trans_a) {
    return r.shape.trans_b ? launch.template operator()<true, false>()
                           : launch.template operator()<true, true>();
  }
  return r.shape.trans_b ? launch.template operator()<false, false>()
                         : launch.template operator()<false, true>();
}

}  // namespace

GemmAlgorithm FormatGemmSm90(const GemmSm90Config& config) {
  return {absl::StrCat(kFamily, "/", kVersion, "/", TileWord(config.tile), "/r",
                       config.raster)};
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
  if (parts.size() == 4 && parts[3].size() > 1 && parts[3][0] == 'r' &&
      absl::SimpleAtoi(parts[3].substr(1), &config.raster) &&
      config.raster >= 1) {
    for (const auto tile :
         {GemmSm90Config::Tile::kWide, GemmSm90Config::Tile::kTurns,
          GemmSm90Config::Tile::kTall}) {
      config.tile = tile;
      if (parts[2] == TileWord(tile)) return config;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", algorithm.text, "\" is not wgmma/", kVersion,
      "/<128x256, 128x192turns or 256x192>/r<clusters of rows in a band>"));
}

std::vector<GemmSm90Config> GemmSm90Candidates() {
  using Tile = GemmSm90Config::Tile;
  // Bands that make a round of 64 or 66 clusters about square.
  return {{Tile::kWide, 6},  {Tile::kWide, 8}, {Tile::kTurns, 6},
          {Tile::kTurns, 8}, {Tile::kTall, 8}, {Tile::kTall, 11}};
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
  // Pairs everywhere: alone, blocks were 5 % slower on one H200, and only 30
  // clusters of four find room on its 132 multiprocessors.
  switch (config.tile) {
    case GemmSm90Config::Tile::kWide:
      return LaunchLayout<128, 256, 4, Pairs::kStacked, Sharing::kHalves>(
          request);
    case GemmSm90Config::Tile::kTurns:
      return LaunchLayout<128, 192, 4, Pairs::kStacked, Sharing::kTurns>(
          request);
    case GemmSm90Config::Tile::kTall:
      return LaunchLayout<256, 192, 3, Pairs::kAbreast, Sharing::kHalves>(
          request);
  }
  return absl::InternalError("no such tile of wgmma GEMM");
}

}  // namespace millrace

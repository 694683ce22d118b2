#include "fault/reshard.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/program/parameters.h"

namespace millrace {
namespace {

// Loads what `rank` holds under info.layout and writes its part.
absl::StatusOr<std::string> RewriteRank(FileSystem& files,
                                        const std::string& path,
                                        const std::string& directory,
                                        const ModelSpec& model,
                                        const CheckpointInfo& info, Rank rank) {
  const MeshCoordinates coordinates = CoordinatesOf(info.layout, rank);
  const StageParameters parameters =
      BuildStageParameters(model, info.layout, coordinates.pipeline);
  std::vector<float> weights(static_cast<size_t>(parameters.num_elements));
  std::vector<float> exp_avg(
      static_cast<size_t>(parameters.num_optimizer_elements));
  std::vector<float> exp_avg_sq(exp_avg.size());
  std::vector<StatePiece> owned;
  for (StatePiece& piece : DescribeState(parameters, info.layout, coordinates,
                                         {.parameters = weights.data(),
                                         .exp_avg = exp_avg.data(),
                                         .exp_avg_sq = exp_avg_sq.data()})) {
    if (piece.is_owner) owned.push_back(std::move(piece));
  }
  RETURN_IF_ERROR(LoadCheckpoint(files, path, owned).status());
  return WriteCheckpointPart(files, directory, info, rank, owned);
}

}  // namespace

absl::StatusOr<CheckpointEntry> ReshardCheckpoint(FileSystem& files,
                                                  const std::string& path,
                                                  const std::string& directory,
                                                  const ModelSpec& model,
                                                  const Layout& layout) {
  RETURN_IF_ERROR(ValidateLayout(model, layout, layout.global_batch()));
  // Before memory is asked for by what the checkpoint says of its model.
  RETURN_IF_ERROR(CheckIsOfModel(files, path, model));
  ASSIGN_OR_RETURN(CheckpointInfo info, ReadCheckpointInfo(files, path));
  info.layout = layout;
  ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> existing,
                   ListCheckpoints(files, directory));
  for (const CheckpointEntry& entry : existing) {
    if (entry.step != info.step) continue;
    return absl::AlreadyExistsError(
        absl::StrCat(entry.path, " is there already; name another folder"));
  }
  std::vector<std::string> parts;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    ASSIGN_OR_RETURN(std::string part, RewriteRank(files, path, directory,
                                                   model, info, Rank{rank}));
    parts.push_back(std::move(part));
  }
  RETURN_IF_ERROR(CommitCheckpoint(files, directory, info, parts,
                                   std::numeric_limits<int32_t>::max()));
  ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> written,
                   ListCheckpoints(files, directory));
  for (const CheckpointEntry& entry : written) {
    if (entry.step == info.step) return entry;
  }
  return absl::InternalError(
      absl::StrCat(directory, ": the checkpoint just written is not there"));
}

}  // namespace millrace

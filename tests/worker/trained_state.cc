#include "tests/worker/trained_state.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

// Index in the whole tensor of element `i` of the piece's stored box.
size_t WholeIndex(const StatePiece& piece, int64_t i) {
  const int64_t box_cols = piece.box.col_end - piece.box.col_begin;
  const int64_t row = piece.box.row_begin + i / box_cols;
  const int64_t col = piece.box.col_begin + i % box_cols;
  return static_cast<size_t>(row * piece.cols + col);
}

double SquaredNorm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return sum;
}

double SquaredMove(const std::vector<float>& from,
                   const std::vector<float>& to) {
  double sum = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    const double move = double{to[i]} - from[i];
    sum += move * move;
  }
  return sum;
}

}  // namespace

absl::StatusOr<WholeState> CopyWholeState(
    const std::vector<StatePiece>& pieces) {
  WholeState state;
  std::map<std::string, int64_t> num_copied;
  for (const StatePiece& piece : pieces) {
    std::vector<float>& whole = state[piece.tensor];
    whole.resize(static_cast<size_t>(piece.rows * piece.cols));
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      whole.at(WholeIndex(piece, i)) = piece.data[i - piece.begin];
    }
    num_copied[piece.tensor] += piece.end - piece.begin;
  }
  for (const auto& [name, whole] : state) {
    if (num_copied[name] != static_cast<int64_t>(whole.size())) {
      return absl::FailedPreconditionError(
          absl::StrCat("the rank holds ", num_copied[name], " of the ",
                       whole.size(), " elements of ", name));
    }
  }
  return state;
}

absl::Status SaveWholeState(const WholeState& state,
                            const std::string& folder) {
  for (const auto& [name, whole] : state) {
    RETURN_IF_ERROR(WriteFileAtomically(
        absl::StrCat(folder, "/", name),
        std::string(reinterpret_cast<const char*>(whole.data()),
                    whole.size() * sizeof(float))));
  }
  return absl::OkStatus();
}

absl::StatusOr<WholeState> LoadWholeState(const std::string& folder) {
  WholeState state;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ASSIGN_OR_RETURN(const std::string bytes, ReadFile(entry.path().string()));
    std::vector<float>& whole = state[entry.path().filename().string()];
    whole.resize(bytes.size() / sizeof(float));
    std::memcpy(whole.data(), bytes.data(), whole.size() * sizeof(float));
  }
  return state;
}

absl::Status AddDistances(const std::vector<StatePiece>& pieces,
                          const WholeState& reference,
                          StateDistances* distances) {
  for (const StatePiece& piece : pieces) {
    if (!piece.is_owner) continue;
    const auto found = reference.find(piece.tensor);
    if (found == reference.end()) {
      return absl::NotFoundError(
          absl::StrCat("the reference has no ", piece.tensor));
    }
    const std::vector<float>& whole = found->second;
    TensorDistance& distance = (*distances)[piece.tensor];
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const size_t at = WholeIndex(piece, i);
      if (at >= whole.size()) {
        return absl::OutOfRangeError(absl::StrCat(
            piece.tensor, " has an element ", at, " of ", whole.size()));
      }
      const double apart = double{piece.data[i - piece.begin]} - whole[at];
      distance.squared += apart * apart;
    }
    distance.num_elements += piece.end - piece.begin;
  }
  return absl::OkStatus();
}

std::string DistancesToText(const StateDistances& distances) {
  std::string text;
  for (const auto& [name, distance] : distances) {
    absl::StrAppend(&text, name, " ",
                    absl::StrFormat("%.17g", distance.squared), " ",
                    distance.num_elements, "\n");
  }
  return text;
}

absl::Status AddDistancesFromText(const std::string& text,
                                  StateDistances* distances) {
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    double squared = 0;
    int64_t num_elements = 0;
    if (words.size() != 3 || !absl::SimpleAtod(words[1], &squared) ||
        !absl::SimpleAtoi(words[2], &num_elements)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected a tensor, a distance and a count: ", line));
    }
    TensorDistance& distance = (*distances)[words[0]];
    distance.squared += squared;
    distance.num_elements += num_elements;
  }
  return absl::OkStatus();
}

absl::StatusOr<StateError> WorstErrors(const StateDistances& distances,
                                       const WholeState& before,
                                       const WholeState& reference) {
  StateError error;
  for (const auto& [name, whole] : reference) {
    const auto found = distances.find(name);
    const int64_t num_compared =
        found == distances.end() ? 0 : found->second.num_elements;
    if (num_compared != static_cast<int64_t>(whole.size())) {
      return absl::DataLossError(absl::StrCat(
          num_compared, " elements of ", name, " were compared, it has ",
          whole.size(), "; every one has one owner among the ranks"));
    }
    const bool is_first = absl::EndsWith(name, ".exp_avg");
    const bool is_second = absl::EndsWith(name, ".exp_avg_sq");
    const double scale = is_first || is_second
                             ? SquaredNorm(whole)
                             : SquaredMove(before.at(name), whole);
    WorstTensor* worst = is_first    ? &error.first_moments
                         : is_second ? &error.second_moments
                                     : &error.parameters;
    const double relative = std::sqrt(found->second.squared / scale);
    // Not a number is worst of all.
    if (!(relative <= worst->error)) *worst = {relative, name};
  }
  return error;
}

}  // namespace millrace

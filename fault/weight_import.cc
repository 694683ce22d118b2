#include "fault/weight_import.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "fault/checkpoint_files.h"
#include "fault/weight_export.h"
#include "fault/weight_naming.h"

namespace millrace {
namespace {

constexpr size_t kMostListed = 12;
constexpr int64_t kRunBytes = int64_t{16} << 20;
constexpr int64_t kReadBytes = int64_t{1} << 20;
constexpr int64_t kMaxNoteBytes = 1 << 20;

constexpr char kLayerPrefix[] = "model.layers.";

// "a, b and 3 more".
std::string ListSome(std::vector<std::string> names) {
  const size_t count = names.size();
  if (count > kMostListed) names.resize(kMostListed);
  return absl::StrCat(absl::StrJoin(names, ", "),
                      count > kMostListed
                          ? absl::StrCat(" and ", count - kMostListed, " more")
                          : "");
}

absl::Status WrongSource(const std::string& where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

absl::StatusOr<std::string> ReadNote(FileSystem& files,
                                     const std::string& path) {
  ASSIGN_OR_RETURN(const auto file, files.Open(path));
  if (file->size() > kMaxNoteBytes) {
    return WrongSource(path, absl::StrCat(file->size(), " bytes, expected ",
                                          kMaxNoteBytes, " at most"));
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  RETURN_IF_ERROR(file->Read(0, file->size(), text.data()));
  return text;
}

// Megatron's folder of all iterations names the newest one in a file.
absl::StatusOr<std::string> FolderOfCheckpoint(FileSystem& files,
                                               const std::string& folder) {
  if (files.Exists(JoinPath(folder, kTorchMetadata))) return folder;
  const std::string latest =
      JoinPath(folder, "latest_checkpointed_iteration.txt");
  if (files.Exists(latest)) {
    ASSIGN_OR_RETURN(const std::string text, ReadNote(files, latest));
    const absl::string_view word = absl::StripAsciiWhitespace(text);
    int64_t iteration = 0;
    std::string name = "release";
    if (word != "release") {
      if (!absl::SimpleAtoi(word, &iteration) || iteration < 0) {
        return WrongSource(latest,
                           "expected the number of an iteration or 'release'; "
                           "name the folder of one iteration");
      }
      name = absl::StrFormat("iter_%07d", iteration);
    }
    const std::string found = JoinPath(folder, name);
    if (files.Exists(JoinPath(found, kTorchMetadata))) return found;
    return WrongSource(found,
                       "no .metadata is there; if it was written with "
                       "--ckpt-format torch or zarr, save it with torch_dist");
  }
  const auto names = files.List(folder);
  if (!names.ok()) {
    return WrongSource(folder, "no such folder; name that of a checkpoint");
  }
  return WrongSource(
      folder,
      absl::StrCat("no .metadata is there (it has ", ListSome(*names),
                   "); name the folder of one step that "
                   "torch.distributed.checkpoint or Megatron's torch_dist "
                   "wrote"));
}

// metadata.json, which only Megatron writes.
absl::Status CheckBackend(FileSystem& files, const std::string& folder) {
  const std::string path = JoinPath(folder, "metadata.json");
  if (!files.Exists(path)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, ReadNote(files, path));
  const absl::StatusOr<nlohmann::json> json = ParseJson(text);
  if (!json.ok()) return WrongSource(path, json.status().message());
  const auto backend =
      json->is_object() ? json->find("sharded_backend") : json->end();
  if (!json->is_object() || backend == json->end() ||
      *backend == "torch_dist") {
    return absl::OkStatus();
  }
  return WrongSource(path,
                     absl::StrCat("sharded_backend is ", JsonText(*backend),
                                  ", expected \"torch_dist\"; save it "
                                  "with --ckpt-format torch_dist"));
}

}  // namespace

// A tensor of the checkpoint that may hold a parameter.
struct WeightImport::Candidate {
  std::string source;
  Fused fused = Fused::kNo;
  int64_t layer = -1;  // The row of a stack of all layers; -1: no stack.
};

// Finds the parameters' tensors.
class WeightImport::Matcher {
 public:
  Matcher(WeightImport& import, const ModelSpec& model)
      : import_(import), model_(model) {}

  absl::Status Match() {
    RETURN_IF_ERROR(IndexNames());
    ChooseNaming();
    import_.naming_ = naming_ == nullptr ? "Hugging Face" : naming_->whose;
    for (const Parameter& parameter : ModelParameters(model_)) {
      RETURN_IF_ERROR(MatchOne(parameter, /*may_miss=*/false));
    }
    std::optional<Target> tied_head;
    if (model_.ties_embedding) {
      const size_t count = import_.targets_.size();
      RETURN_IF_ERROR(MatchOne({.name = kHeadName,
                                .rows = model_.vocab_size,
                                .cols = model_.hidden,
                                .is_vector = false,
                                .shard = TensorShard::kRows},
                               /*may_miss=*/true));
      if (import_.targets_.size() > count) {
        tied_head = std::move(import_.targets_.back());
        import_.targets_.pop_back();
      }
    }
    RETURN_IF_ERROR(ReportDifferences());
    for (const Target& target : import_.targets_) {
      RETURN_IF_ERROR(LocateSource(target));
      if (target.parameter.name == kEmbeddingName) {
        import_.type_ = import_.rows_.at(target.source).type;
      }
    }
    if (!tied_head.has_value()) return absl::OkStatus();
    RETURN_IF_ERROR(LocateSource(*tied_head));
    return import_.CheckTiedHead(*tied_head);
  }

 private:
  using Tensor = TorchCheckpoint::Tensor;

  // Sources by their names without wrappers.
  absl::Status IndexNames() {
    for (const auto& [name, tensor] : import_.checkpoint_.tensors()) {
      const auto [other, is_new] =
          by_name_.emplace(WithoutWrappers(name), name);
      if (is_new) continue;
      return WrongSource(
          import_.folder(),
          absl::StrCat(name, " and ", other->second,
                       " are one name where wrappers are left out; save the "
                       "model once"));
    }
    return absl::OkStatus();
  }

  // The source of that name, perhaps behind keys of what holds the model.
  const std::string* FindName(absl::string_view name) const {
    if (const auto found = by_name_.find(std::string(name));
        found != by_name_.end()) {
      return &found->second;
    }
    for (const std::string& prefix : prefixes_) {
      const auto found = by_name_.find(absl::StrCat(prefix, name));
      if (found != by_name_.end()) return &found->second;
    }
    return nullptr;
  }

  void ChooseNaming() {
    for (const char* outer : OuterKeys()) {
      prefixes_.push_back(absl::StrCat(outer, "."));
      for (const char* inner : OuterKeys()) {
        prefixes_.push_back(absl::StrCat(outer, ".", inner, "."));
      }
    }
    for (const Naming& naming : WeightNamings()) {
      if (FindName(naming.mark) != nullptr) naming_ = &naming;
    }
  }

  // Whether the name is a layer's; then its number, and the rest.
  static bool SplitLayer(absl::string_view name, int64_t* layer,
                         absl::string_view* rest) {
    if (!absl::ConsumePrefix(&name, kLayerPrefix)) return false;
    const size_t dot = name.find('.');
    if (dot == absl::string_view::npos ||
        !absl::SimpleAtoi(name.substr(0, dot), layer)) {
      return false;
    }
    *rest = name.substr(dot + 1);
    return true;
  }

  std::optional<Candidate> FindSource(const std::string& name) const {
    if (naming_ == nullptr) {
      const std::string* source = FindName(name);
      if (source == nullptr) return std::nullopt;
      return Candidate{.source = *source};
    }
    int64_t layer = 0;
    absl::string_view rest = name;
    const bool is_of_layer = SplitLayer(name, &layer, &rest);
    for (const OtherName& other :
         is_of_layer ? naming_->layer_names : naming_->names) {
      if (rest != other.ours) continue;
      if (!is_of_layer) {
        if (const std::string* source = FindName(other.theirs)) {
          return Candidate{.source = *source, .fused = other.fused};
        }
        continue;
      }
      if (const std::string* source = FindName(
              absl::StrCat(naming_->layer_prefix, layer, ".", other.theirs))) {
        return Candidate{.source = *source, .fused = other.fused};
      }
      if (const std::string* source =
              FindName(absl::StrCat(naming_->layer_prefix, other.theirs))) {
        return Candidate{
            .source = *source, .fused = other.fused, .layer = layer};
      }
    }
    return std::nullopt;
  }

  // Rows of the tensor (of one layer) that should hold a parameter of `rows`.
  int64_t SourceRows(Fused fused, int64_t rows) const {
    switch (fused) {
      case Fused::kQuery:
      case Fused::kKey:
      case Fused::kValue:
        return (model_.num_heads + 2 * model_.num_kv_heads) * model_.head_dim;
      case Fused::kGate:
      case Fused::kUp:
        return 2 * rows;
      default:
        return rows;
    }
  }

  RowMap MapOf(Fused fused, int64_t rows) const {
    const int64_t head_dim = model_.head_dim;
    const int64_t queries = model_.num_heads / model_.num_kv_heads;
    const int64_t group = (queries + 2) * head_dim;
    switch (fused) {
      case Fused::kQuery:
        return {.first_row = 0,
                .block_rows = queries * head_dim,
                .block_stride = group};
      case Fused::kKey:
        return {.first_row = queries * head_dim,
                .block_rows = head_dim,
                .block_stride = group};
      case Fused::kValue:
        return {.first_row = (queries + 1) * head_dim,
                .block_rows = head_dim,
                .block_stride = group};
      case Fused::kUp:
        return {.first_row = rows, .block_rows = rows, .block_stride = rows};
      case Fused::kInterleaved:
        return {.block_rows = head_dim,
                .block_stride = head_dim,
                .is_interleaved = true};
      default:
        return {.block_rows = rows, .block_stride = rows};
    }
  }

  absl::Status MatchOne(const Parameter& parameter, bool may_miss) {
    const std::optional<Candidate> found = FindSource(parameter.name);
    if (!found.has_value()) {
      if (!may_miss) missing_.push_back(parameter.name);
      return absl::OkStatus();
    }
    used_.insert(found->source);
    const Tensor& tensor = import_.checkpoint_.tensors().at(found->source);
    const int64_t rows = parameter.is_vector ? parameter.cols : parameter.rows;
    const int64_t source_rows = SourceRows(found->fused, rows);
    std::vector<int64_t> expected;
    if (found->layer >= 0) expected.push_back(model_.num_layers);
    const size_t row_dim = expected.size();
    expected.push_back(source_rows);
    if (!parameter.is_vector) expected.push_back(parameter.cols);
    std::vector<int64_t> shape = tensor.shape;
    if (found->fused == Fused::kPadded && shape.size() == expected.size() &&
        shape[row_dim] > source_rows) {
      import_.num_padding_rows_ += shape[row_dim] - source_rows;
      shape[row_dim] = source_rows;
    }
    if (shape != expected) {
      misshapen_.push_back(absl::StrCat(found->source, " is ",
                                        DimsText(tensor.shape), ", expected ",
                                        DimsText(expected)));
      return absl::OkStatus();
    }
    RowMap map = MapOf(found->fused, rows);
    if (found->layer >= 0) map.first_row += found->layer * source_rows;
    import_.targets_.push_back(
        {.parameter = parameter, .source = found->source, .map = map});
    return absl::OkStatus();
  }

  absl::Status ReportDifferences() {
    std::vector<std::string> surplus;
    for (const auto& [name, source] : by_name_) {
      if (used_.contains(source)) continue;
      if (IsNoWeight(name)) {
        ++import_.num_skipped_;
      } else {
        surplus.push_back(source);
      }
    }
    std::vector<std::string> lines;
    const auto add = [&](const char* what, std::vector<std::string> names) {
      if (names.empty()) return;
      const size_t count = names.size();
      lines.push_back(absl::StrCat("  ", what, " (", count,
                                   "): ", ListSome(std::move(names))));
    };
    add("missing", missing_);
    add("not of this model", std::move(surplus));
    add("of another shape", misshapen_);
    if (lines.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        import_.folder(), ": its tensors, by ", import_.naming_,
        "'s names, are not those of the model that --model describes:\n",
        absl::StrJoin(lines, "\n")));
  }

  absl::Status LocateSource(const Target& target) {
    if (import_.rows_.contains(target.source)) return absl::OkStatus();
    ASSIGN_OR_RETURN(import_.rows_[target.source],
                     import_.checkpoint_.Locate(
                         import_.checkpoint_.tensors().at(target.source),
                         target.parameter.is_vector ? 0 : 1));
    return absl::OkStatus();
  }

  WeightImport& import_;
  const ModelSpec& model_;
  const Naming* naming_ = nullptr;  // Null: Hugging Face's.
  std::map<std::string, std::string> by_name_;
  std::vector<std::string> prefixes_;
  std::set<std::string> used_;
  std::vector<std::string> missing_, misshapen_;
};

absl::StatusOr<WeightImport> WeightImport::Open(FileSystem& files,
                                                const std::string& folder,
                                                const ModelSpec& model) {
  ASSIGN_OR_RETURN(const std::string found, FolderOfCheckpoint(files, folder));
  RETURN_IF_ERROR(CheckBackend(files, found));
  ASSIGN_OR_RETURN(TorchCheckpoint checkpoint,
                   TorchCheckpoint::Open(files, found));
  WeightImport import(std::move(checkpoint));
  RETURN_IF_ERROR(Matcher(import, model).Match());
  return import;
}

absl::Status WeightImport::CheckTiedHead(const Target& head) const {
  const auto embedding =
      std::ranges::find_if(targets_, [](const Target& target) {
        return target.parameter.name == kEmbeddingName;
      });
  const int64_t row_bytes =
      head.parameter.cols * ElementBytes(rows_.at(head.source).type);
  const int64_t rows_at_once = std::max<int64_t>(1, kReadBytes / row_bytes);
  std::vector<char> ours(static_cast<size_t>(rows_at_once * row_bytes));
  std::vector<char> theirs(ours.size());
  bool is_equal =
      rows_.at(head.source).type == rows_.at(embedding->source).type;
  for (int64_t row = 0; is_equal && row < head.parameter.rows;
       row += rows_at_once) {
    const int64_t end = std::min(row + rows_at_once, head.parameter.rows);
    RETURN_IF_ERROR(ReadTarget(head, row, end, ours.data()));
    RETURN_IF_ERROR(ReadTarget(*embedding, row, end, theirs.data()));
    is_equal = std::memcmp(ours.data(), theirs.data(),
                           static_cast<size_t>((end - row) * row_bytes)) == 0;
  }
  if (is_equal) return absl::OkStatus();
  return WrongSource(
      folder(), absl::StrCat("config.json says tie_word_embeddings, but ",
                             head.source, " differs from ", embedding->source,
                             "; say tie_word_embeddings: false there"));
}

SafetensorsTensor WeightImport::TensorOf(const Target& target) const {
  const Parameter& parameter = target.parameter;
  SafetensorsTensor tensor = {.name = parameter.name,
                              .type = rows_.at(target.source).type};
  if (!parameter.is_vector) tensor.shape.push_back(parameter.rows);
  tensor.shape.push_back(parameter.cols);
  return tensor;
}

int64_t WeightImport::num_bytes() const {
  int64_t sum = 0;
  for (const Target& target : targets_) sum += TensorOf(target).num_bytes();
  return sum;
}

absl::Status WeightImport::ReadTarget(const Target& target, int64_t begin,
                                      int64_t end, char* out) const {
  const TorchCheckpoint::Rows& rows = rows_.at(target.source);
  const int64_t row_bytes = rows.row_elements * ElementBytes(rows.type);
  const RowMap& map = target.map;
  for (int64_t row = begin; row < end;) {
    const int64_t block = row / map.block_rows;
    const int64_t within = row % map.block_rows;
    const int64_t half = map.block_rows / 2;
    const int64_t there = !map.is_interleaved ? within
                          : within < half     ? 2 * within
                                              : 2 * (within - half) + 1;
    const int64_t first = map.first_row + block * map.block_stride + there;
    const int64_t count =
        map.is_interleaved ? 1 : std::min(map.block_rows - within, end - row);
    RETURN_IF_ERROR(checkpoint_.Read(rows, first, first + count,
                                     out + (row - begin) * row_bytes));
    row += count;
  }
  return absl::OkStatus();
}

absl::Status WeightImport::Write(FileSystem& files,
                                 std::map<std::string, std::string> other_files,
                                 int64_t max_shard_bytes,
                                 const std::string& output_folder) const {
  std::map<std::string, const Target*> by_name;
  WeightFolderContent content = {.max_shard_bytes = max_shard_bytes,
                                 .other_files = std::move(other_files)};
  for (const Target& target : targets_) {
    by_name[target.parameter.name] = &target;
    content.tensors.push_back(TensorOf(target));
  }
  std::vector<char> run;
  content.append = [&](const SafetensorsTensor& tensor,
                       SafetensorsWriter& writer) -> absl::Status {
    const Target& target = *by_name.at(tensor.name);
    const int64_t num_rows = tensor.shape[0];
    const int64_t row_elements =
        target.parameter.is_vector ? 1 : target.parameter.cols;
    const int64_t row_bytes = row_elements * ElementBytes(tensor.type);
    const int64_t rows_at_once = std::max<int64_t>(1, kRunBytes / row_bytes);
    const int64_t rows_a_read = std::max<int64_t>(1, kReadBytes / row_bytes);
    for (int64_t begin = 0; begin < num_rows; begin += rows_at_once) {
      const int64_t end = std::min(begin + rows_at_once, num_rows);
      run.resize(static_cast<size_t>((end - begin) * row_bytes));
      RETURN_IF_ERROR(ParallelFor(
          (end - begin + rows_a_read - 1) / rows_a_read, NumCopyThreads(),
          [&](int64_t i) {
            const int64_t first = begin + i * rows_a_read;
            return ReadTarget(target, first, std::min(first + rows_a_read, end),
                              run.data() + (first - begin) * row_bytes);
          }));
      RETURN_IF_ERROR(
          writer.AppendStored(run.data(), (end - begin) * row_elements));
    }
    return absl::OkStatus();
  };
  return WriteWeightFolder(files, content, output_folder);
}

}  // namespace millrace

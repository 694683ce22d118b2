#include "planner/frameworks/megatron.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "planner/frameworks/megatron_core_keys.h"

namespace millrace {
namespace {

void AddData(Export& out, KeyValues& flags) {
  if (out.job.checkpoint.interval_steps > 0) {
    flags.Set("save", out.checkpoint_folder());
  }
  // Before core 0.18, Megatron's null tokenizer adds one id, the end of a
  // document, to the given size. Padding makes the size the same for all
  // versions.
  const int64_t rows = out.job.model.vocab_size;
  flags.Set("tokenizer-type", "NullTokenizer");
  flags.Set("vocab-size", absl::StrCat(rows - 1));
  flags.Set("make-vocab-size-divisible-by",
            absl::StrCat(rows / out.layout.tensor));
  if (out.job.data.indexed.empty()) {
    flags.Set("mock-data", "");
    out.differences.push_back(
        "data.text: Megatron-LM reads tokens prepared beforehand; replace "
        "--mock-data by --data-path PREFIX");
  }
}

void AddPrecision(Export& out, KeyValues& flags) {
  if (out.layout.precision == Precision::kBfloat16) {
    flags.Set("bf16", "");
  }
  switch (out.layout.gemm_format) {
    case GemmFormat::kAsStored:
      break;
    case GemmFormat::kFloat8:
      flags.Set("fp8-format", "hybrid");
      flags.Set("fp8-recipe", "tensorwise");
      break;
    case GemmFormat::kFloat8Blocks:
      flags.Set("fp8-format", "e4m3");
      flags.Set("fp8-recipe", "blockwise");
      break;
    case GemmFormat::kFloat4:
      flags.Set("fp4-format", "e2m1");
      flags.Set("fp4-recipe", "nvfp4");
      out.assumptions.push_back(
          "core 0.15 or later on Blackwell: 4-bit products are not in earlier "
          "ones");
      break;
  }
}

// Quotes words that the shell would split or expand.
std::string FlagText(const std::string& name, const std::string& value) {
  if (value.empty()) return absl::StrCat("--", name);
  // A list of modules is several words.
  const bool special =
      name == "save" ||
      value.find_first_of("()[]*|'\"$&;<>`\\") != std::string::npos;
  return absl::StrCat("--", name, " ", special ? ShellQuoted(value) : value);
}

// Quotes each of several arguments by itself.
std::string DataPathText(const Export& out) {
  std::string text = "--data-path";
  for (const std::string& prefix : out.indexed_prefixes()) {
    absl::StrAppend(&text, " ", ShellQuoted(prefix));
  }
  return text;
}

absl::StatusOr<std::string> ExportMegatron(Export out) {
  ASSIGN_OR_RETURN(KeyValues flags, MegatronFlagsOf(out));
  AddData(out, flags);
  AddPrecision(out, flags);
  std::vector<std::string> words;
  for (const auto& [name, value] : flags.entries()) {
    words.push_back(FlagText(name, value));
  }
  if (!out.job.data.indexed.empty()) words.push_back(DataPathText(out));
  const std::string environment =
      out.layout.tensor > 1 || out.layout.context > 1
          ? "CUDA_DEVICE_MAX_CONNECTIONS=1 "
          : "";
  return absl::StrCat(HashComment(out), environment, TorchrunCommand(out),
                      " pretrain_gpt.py \\\n  ",
                      absl::StrJoin(words, " \\\n  "), "\n");
}

}  // namespace

Framework MegatronAdapter() {
  static const std::vector<FrameworkKey> keys = KeysIn(MegatronDialect::kFlags);
  static const FrameworkAdapter adapter = {
      .name = "megatron",
      .title = "Megatron-LM",
      .version = "core 0.12 and later",
      .configuration = "flags or printed arguments",
      .keys = keys,
      .read = ReadMegatronSettings,
      .take = ImportMegatron,
      .write = ExportMegatron,
      .unwritten_options = kNewestOptions,
  };
  return &adapter;
}

}  // namespace millrace

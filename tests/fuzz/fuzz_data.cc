#include <array>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "tests/fuzz/fuzz_targets.h"
#include "worker/chat/chat_template.h"
#include "worker/data/indexed_dataset.h"
#include "worker/records/records.h"
#include "worker/tokenize/json_tokenizer.h"

namespace millrace {
namespace {

constexpr int kMostRecords = 1000;

void ReadRecords(const std::string& path, size_t size, RecordFormat format) {
  const auto parts = CutIntoParts(
      {.path = path, .size_bytes = static_cast<int64_t>(size)}, format, 100);
  if (!parts.ok()) return;
  for (const RecordPart& part : *parts) {
    const auto reader = OpenRecords(part, {});
    if (!reader.ok()) continue;
    for (int i = 0; i < kMostRecords; ++i) {
      auto record = (*reader)->Next();
      if (!record.ok() || !record->has_value()) break;
      const auto columns = (*record)->TakeColumns();
      static_cast<void>(columns);
    }
  }
}

}  // namespace

void FuzzTokenizer(absl::string_view bytes) {
  const auto tokenizer = JsonTokenizer::Make(bytes);
  if (!tokenizer.ok()) return;
  std::vector<int32_t> ids;
  const absl::Status status =
      (*tokenizer)->Encode("Hello, \xc3\xa4 world 123\n  \xff", true, &ids);
  if (!status.ok()) return;
  const auto text = (*tokenizer)->Decode(ids);
  static_cast<void>(text);
}

void FuzzChatTemplate(absl::string_view bytes) {
  static const auto* const variables =
      new nlohmann::ordered_json(nlohmann::ordered_json::parse(
          R"({"messages": [{"role": "user", "content": "a"},
                           {"role": "assistant", "content": "b"}],
              "add_generation_prompt": false, "bos_token": "<s>",
              "eos_token": "</s>"})"));
  const auto parsed = ChatTemplate::Parse(bytes, "template");
  if (!parsed.ok()) return;
  const auto rendered = parsed->Render(*variables, "2026-11-23");
  if (!rendered.ok()) return;
  for (const auto& [begin, end] : rendered->generated) {
    CHECK(begin <= end && end <= rendered->text.size());
  }
}

void FuzzParquet(absl::string_view bytes) {
  ReadRecords(FuzzFile(bytes, ".parquet"), bytes.size(),
              RecordFormat::kParquet);
}

// The first byte chooses how the file is packed.
void FuzzJsonLines(absl::string_view bytes) {
  if (bytes.empty()) return;
  constexpr std::array kEndings = {".jsonl", ".jsonl.gz", ".jsonl.zst"};
  const char* ending =
      kEndings[static_cast<unsigned char>(bytes[0]) % kEndings.size()];
  bytes.remove_prefix(1);
  ReadRecords(FuzzFile(bytes, ending), bytes.size(), RecordFormat::kJsonLines);
}

// The index; the tokens beside it are 64 bytes.
void FuzzTokenIndex(absl::string_view bytes) {
  const std::string path = FuzzFile(std::string(64, '\1'), ".bin");
  FuzzFile(bytes, ".idx");
  const auto opened =
      IndexedDataset::Open(path.substr(0, path.size() - sizeof(".bin") + 1));
  if (!opened.ok()) return;
  std::vector<int32_t> tokens(64);
  for (int64_t i = 0; i < opened->num_documents(); ++i) {
    const int64_t begin = opened->DocumentBegin(i);
    CHECK(begin >= 0 && begin <= opened->DocumentBegin(i + 1));
    if (begin == opened->num_tokens()) break;
    CHECK(opened->FindDocument(begin) >= i);
    const absl::Status read = opened->Read(begin, 1, 1000, tokens.data());
    static_cast<void>(read);
  }
}

}  // namespace millrace

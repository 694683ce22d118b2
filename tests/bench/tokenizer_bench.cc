// Encodes documents with a tokenizer.json and compares the ids with those that
// Hugging Face's `tokenizers` gave, then measures.
//
//   tokenizer_bench TOKENIZER CORPUS [IDS]   one tokenizer
//   (scripts/check_tokenizers) tokenizer_bench                          the
//   committed ones, and SentencePiece
//
// CORPUS is a row of documents, IDS one of id lists, each behind its length
// (u32, little-endian).

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "worker/data/tokenizer.h"
#include "worker/tokenize/json_tokenizer.h"

namespace millrace {
namespace {

constexpr int64_t kMaxCorpusBytes = int64_t{1} << 30;

struct Corpus {
  std::string bytes;
  std::vector<absl::string_view> documents;
};

// Splits `bytes` into rows of `item_bytes` times the length before each.
absl::StatusOr<std::vector<absl::string_view>> Rows(const std::string& bytes,
                                                    size_t item_bytes) {
  std::vector<absl::string_view> rows;
  for (size_t at = 0; at < bytes.size();) {
    uint32_t count = 0;
    if (bytes.size() - at < sizeof(count)) {
      return absl::DataLossError("a length is cut short");
    }
    std::memcpy(&count, bytes.data() + at, sizeof(count));
    at += sizeof(count);
    if ((bytes.size() - at) / item_bytes < count) {
      return absl::DataLossError("a row is cut short");
    }
    rows.push_back(absl::string_view(bytes).substr(at, count * item_bytes));
    at += count * item_bytes;
  }
  return rows;
}

// InvalidArgument with the first document whose ids differ.
absl::Status CompareIds(const JsonTokenizer& tokenizer,
                        const std::vector<absl::string_view>& documents,
                        const std::vector<absl::string_view>& expected) {
  if (documents.size() != expected.size()) {
    return absl::InvalidArgumentError("CORPUS and IDS differ in their rows");
  }
  int64_t num_ids = 0;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < documents.size(); ++i) {
    ids.clear();
    RETURN_IF_ERROR(tokenizer.Encode(documents[i], false, &ids));
    std::vector<int32_t> wanted(expected[i].size() / sizeof(int32_t));
    std::memcpy(wanted.data(), expected[i].data(), expected[i].size());
    if (ids != wanted) {
      size_t at = 0;
      while (at < ids.size() && at < wanted.size() && ids[at] == wanted[at]) {
        ++at;
      }
      const std::vector<int32_t> before(ids.begin(),
                                        ids.begin() + static_cast<long>(at));
      std::string near = tokenizer.Decode(before).value_or("");
      if (near.size() > 80) near.erase(0, near.size() - 80);
      return absl::InvalidArgumentError(absl::StrCat(
          "document ", i, ", token ", at, ": ",
          at < ids.size() ? absl::StrCat(ids[at]) : "none", ", expected ",
          at < wanted.size() ? absl::StrCat(wanted[at]) : "none", " behind ",
          JsonText(nlohmann::json(near))));
    }
    num_ids += static_cast<int64_t>(ids.size());
  }
  std::cout << "equal: " << documents.size() << " documents, " << num_ids
            << " ids" << std::endl;
  return absl::OkStatus();
}

// Encodes all documents once an iteration. `encode` appends to its argument.
void Measure(const std::string& name,
             const std::vector<absl::string_view>& documents,
             const std::function<absl::Status(absl::string_view,
                                              std::vector<int32_t>*)>& encode) {
  benchmark::RegisterBenchmark(name.c_str(), [&documents,
                                              encode](benchmark::State& state) {
    int64_t num_bytes = 0;
    int64_t num_tokens = 0;
    std::vector<int32_t> ids;
    for (auto _ : state) {
      for (const absl::string_view document : documents) {
        ids.clear();
        if (!encode(document, &ids).ok()) {
          state.SkipWithError("a document cannot be encoded");
          return;
        }
        num_bytes += static_cast<int64_t>(document.size());
        num_tokens += static_cast<int64_t>(ids.size());
      }
    }
    state.SetBytesProcessed(num_bytes);
    state.counters["tokens/s"] = benchmark::Counter(
        static_cast<double>(num_tokens), benchmark::Counter::kIsRate);
  })->Unit(benchmark::kMillisecond);
}

absl::Status RunOne(const std::string& tokenizer_path,
                    const std::string& corpus_path,
                    const std::string& ids_path) {
  ASSIGN_OR_RETURN(const std::string json, ReadFile(tokenizer_path));
  ASSIGN_OR_RETURN(const std::string corpus,
                   ReadFile(corpus_path, kMaxCorpusBytes));
  ASSIGN_OR_RETURN(const std::unique_ptr<JsonTokenizer> tokenizer,
                   JsonTokenizer::Make(json));
  ASSIGN_OR_RETURN(const std::vector<absl::string_view> documents,
                   Rows(corpus, 1));
  if (!ids_path.empty()) {
    ASSIGN_OR_RETURN(const std::string ids,
                     ReadFile(ids_path, 4 * kMaxCorpusBytes));
    ASSIGN_OR_RETURN(const std::vector<absl::string_view> expected,
                     Rows(ids, sizeof(int32_t)));
    RETURN_IF_ERROR(CompareIds(*tokenizer, documents, expected));
  }
  Measure("tokenizer.json", documents,
          [&tokenizer](absl::string_view text, std::vector<int32_t>* ids) {
            return tokenizer->Encode(text, false, ids);
          });
  benchmark::RunSpecifiedBenchmarks();
  return absl::OkStatus();
}

// The ids of the committed cases, compared.
absl::Status CompareCases(const std::string& family,
                          const JsonTokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadFile("tests/data/tokenizers/" + family + ".cases.json"));
  ASSIGN_OR_RETURN(const nlohmann::json cases, ParseJson(text));
  std::vector<int32_t> ids;
  for (const nlohmann::json& item : cases) {
    ids.clear();
    RETURN_IF_ERROR(
        tokenizer.Encode(item["text"].get<std::string>(), false, &ids));
    if (ids != item["ids"].get<std::vector<int32_t>>()) {
      return absl::InvalidArgumentError(
          absl::StrCat(family, ": ids differ for ", JsonText(item["text"])));
    }
  }
  std::cout << "equal: " << cases.size() << " cases of " << family << std::endl;
  return absl::OkStatus();
}

// The committed tokenizers and one of SentencePiece, on a page of this
// repository. Their vocabularies are small: real ones make fewer tokens.
absl::Status RunCommitted() {
  ASSIGN_OR_RETURN(const std::string page, ReadFile("docs/data.md"));
  const std::vector<absl::string_view> documents = {page};
  std::vector<std::unique_ptr<JsonTokenizer>> tokenizers;
  for (const std::string family :
       {"gpt2", "llama3", "qwen2", "phi4", "llama2", "gemma", "phi3"}) {
    ASSIGN_OR_RETURN(const std::string json,
                     ReadFile("tests/data/tokenizers/" + family + ".json"));
    ASSIGN_OR_RETURN(tokenizers.emplace_back(), JsonTokenizer::Make(json));
    RETURN_IF_ERROR(CompareCases(family, *tokenizers.back()));
    Measure("tokenizer.json/" + family, documents,
            [tokenizer = tokenizers.back().get()](absl::string_view text,
                                                  std::vector<int32_t>* ids) {
              return tokenizer->Encode(text, false, ids);
            });
  }
  std::vector<std::string> sample;
  for (absl::string_view rest = page; !rest.empty();) {
    const size_t size = FirstChunkBytes(rest, 2048);
    sample.emplace_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  constexpr int64_t kNumPieces = 700;
  ASSIGN_OR_RETURN(const std::string model, TrainTokenizer(sample, kNumPieces));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> sentencepiece,
                   Tokenizer::FromModel(model, "trained", kNumPieces));
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(sentencepiece->EncodeDocument(page, &ids));
  ids.pop_back();
  ASSIGN_OR_RETURN(const std::string decoded, sentencepiece->Decode(ids));
  if (decoded != page) {
    return absl::InternalError("SentencePiece does not decode to the text");
  }
  Measure("sentencepiece", documents,
          [&sentencepiece](absl::string_view text, std::vector<int32_t>* out) {
            return sentencepiece->EncodeDocument(text, out);
          });
  benchmark::RunSpecifiedBenchmarks();
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 1 && argc != 3 && argc != 4) {
    std::cerr << "tokenizer_bench [TOKENIZER CORPUS [IDS]]\n";
    return 2;
  }
  const absl::Status status =
      argc == 1 ? millrace::RunCommitted()
                : millrace::RunOne(argv[1], argv[2], argc == 4 ? argv[3] : "");
  if (status.ok()) return 0;
  std::cerr << "tokenizer_bench: " << (argc == 1 ? "" : argv[1]) << ": "
            << status.message() << "\n";
  return 1;
}

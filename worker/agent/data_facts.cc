#include "worker/agent/data_facts.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/files.h"
#include "base/status_macros.h"
#include "worker/data/hasher.h"
#include "worker/data/tokenizer.h"

namespace millrace {
namespace {

absl::StatusOr<uint64_t> HashOfTokenizer(const PreparedData& data) {
  if (data.tokenizer_path.empty()) return 0;
  ASSIGN_OR_RETURN(
      const TokenizerFiles files,
      ReadTokenizerFiles(data.tokenizer_path, data.end_of_document));
  Hasher hasher;
  hasher.AddString(files.content);
  hasher.AddString(files.end_of_document);
  return hasher.Digest();
}

// Lengths of documents and the number of tokens tell token files apart well
// enough; the tokens themselves may be many.
absl::StatusOr<uint64_t> HashOfEvaluation(
    const std::vector<EvaluationSet>& sets) {
  if (sets.empty()) return 0;
  Hasher hasher;
  for (const EvaluationSet& set : sets) {
    hasher.AddString(set.name);
    for (const std::string& prefix : set.prefixes) {
      ASSIGN_OR_RETURN(const std::string index,
                       ReadFile(prefix + ".idx", kMaxRecordBytes));
      hasher.AddString(index);
      std::error_code unreadable;
      hasher.AddNumber(static_cast<int64_t>(
          std::filesystem::file_size(prefix + ".bin", unreadable)));
    }
  }
  return hasher.Digest();
}

}  // namespace

absl::StatusOr<protocol::DataFacts> FactsOf(const PreparedJobData& data) {
  protocol::DataFacts facts;
  facts.set_fingerprint(data.training.fingerprint);
  facts.set_num_tokens(data.training.num_tokens);
  facts.set_num_documents(data.training.num_documents);
  ASSIGN_OR_RETURN(const uint64_t tokenizer, HashOfTokenizer(data.training));
  facts.set_tokenizer(tokenizer);
  ASSIGN_OR_RETURN(const uint64_t evaluation,
                   HashOfEvaluation(data.evaluation));
  facts.set_evaluation(evaluation);
  facts.set_document_length(data.document_length);
  return facts;
}

}  // namespace millrace

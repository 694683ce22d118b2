// Parsers of bytes that others may have written, each as a function of those
// bytes. None may crash, hang or use memory without bound, whatever they are.
// tests/fuzz/README.md lists the parsers and says how to run them.

#ifndef MILLRACE_TESTS_FUZZ_FUZZ_TARGETS_H_
#define MILLRACE_TESTS_FUZZ_FUZZ_TARGETS_H_

#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

struct FuzzTarget {
  const char* name;  // Also its folder in tests/data/fuzz.
  void (*parse)(absl::string_view bytes);
};

std::span<const FuzzTarget> FuzzTargets();
// Null if there is none of that name.
const FuzzTarget* FindFuzzTarget(absl::string_view name);

// Network bytes.
void FuzzFrames(absl::string_view bytes);
void FuzzHandshake(absl::string_view bytes);
void FuzzFileCalls(absl::string_view bytes);
void FuzzXml(absl::string_view bytes);
// Files that a user writes.
void FuzzJob(absl::string_view bytes);
void FuzzProfile(absl::string_view bytes);
void FuzzSettings(absl::string_view bytes);
// Files that a run leaves.
void FuzzPlan(absl::string_view bytes);
void FuzzProgram(absl::string_view bytes);
void FuzzTimeline(absl::string_view bytes);
void FuzzStateLog(absl::string_view bytes);
void FuzzManifest(absl::string_view bytes);
// Files that come from elsewhere.
void FuzzSafetensors(absl::string_view bytes);
void FuzzPickle(absl::string_view bytes);
void FuzzZip(absl::string_view bytes);
void FuzzModelConfig(absl::string_view bytes);
void FuzzTokenizer(absl::string_view bytes);
void FuzzChatTemplate(absl::string_view bytes);
void FuzzParquet(absl::string_view bytes);
void FuzzJsonLines(absl::string_view bytes);
void FuzzTokenIndex(absl::string_view bytes);
void FuzzTrace(absl::string_view bytes);
void FuzzKernelLog(absl::string_view bytes);

// A file of this process with these bytes, for parsers that open a path. One at
// a time; the next call replaces it.
std::string FuzzFile(absl::string_view bytes, const std::string& ending);

}  // namespace millrace

#endif  // MILLRACE_TESTS_FUZZ_FUZZ_TARGETS_H_

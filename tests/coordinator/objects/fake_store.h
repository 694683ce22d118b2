// An S3-compatible server in this process that breaks on purpose: it refuses,
// cuts connections before and after it does what it was asked, and complains
// about clocks. It does not check signatures; tests/e2e has a real server.

#ifndef MILLRACE_TESTS_COORDINATOR_OBJECTS_FAKE_STORE_H_
#define MILLRACE_TESTS_COORDINATOR_OBJECTS_FAKE_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "coordinator/objects/object_files.h"

namespace millrace {

enum class StoreFault {
  kNone,
  kBusy,       // 503 SlowDown; nothing is done.
  kCutBefore,  // The connection ends; nothing is done.
  kCutAfter,   // It is done, and the connection ends without an answer.
};

// One request as the server has it.
struct StoreRequest {
  int64_t number;  // From 1.
  std::string method;
  std::string target;                          // "/bucket/key?query", encoded.
  std::map<std::string, std::string> headers;  // Lower-case names.
};

class FakeStore {
 public:
  FakeStore();
  ~FakeStore();

  // Options for its bucket s3://bucket, with little patience.
  ObjectFilesOptions Options() const;

  // Asked for each request, from several threads.
  void SetFault(std::function<StoreFault(const StoreRequest&)> fault);
  // Answers every request so, with a body; a status of 0 ends that.
  void AnswerAll(int status, std::string body,
                 std::map<std::string, std::string> headers = {});
  void SetHasConditions(bool has_conditions);
  // Its clock, beyond this machine's.
  void AdvanceClock(absl::Duration by);

  int64_t num_requests() const;
  std::map<std::string, std::string> objects() const;  // Content by key.
  void SetObject(const std::string& key, std::string content);
  int64_t num_uploads() const;  // Begun, and not ended.

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_COORDINATOR_OBJECTS_FAKE_STORE_H_

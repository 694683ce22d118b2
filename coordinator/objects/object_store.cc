#include "coordinator/objects/object_store.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/objects/xml_leaves.h"
#include "planner/job/object_path.h"

namespace millrace {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(5);
constexpr absl::Duration kAbortSlice = absl::Milliseconds(50);
// A server may put gigabytes together before it answers.
constexpr absl::Duration kCompleteLimit = absl::Minutes(10);
constexpr absl::Duration kLimit = absl::Seconds(20);
constexpr double kLeastBytesPerSecond = 1e6;
constexpr size_t kShownBytes = 200;

bool IsRetried(const HttpReply& reply, const std::string& code) {
  const int status = reply.status;
  return status == 408 || status == 429 || status == 500 || status == 502 ||
         status == 503 || status == 504 || code == "RequestTimeout" ||
         code == "SlowDown" || code == "InternalError";
}

std::string HeaderOf(const HttpReply& reply, const std::string& name) {
  const auto found = reply.headers.find(name);
  return found == reply.headers.end() ? "" : found->second;
}

// "Sun, 06 Nov 1994 08:49:37 GMT"
absl::StatusOr<absl::Time> HttpTime(const std::string& text) {
  absl::Time time;
  std::string error;
  if (!absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", text, &time, &error)) {
    return absl::InvalidArgumentError(error);
  }
  return time;
}

struct ServerError {
  std::string code;
  std::string message;
  std::string region;  // Of the bucket, if the server says so.
};

ServerError ReadError(const HttpReply& reply) {
  ServerError error = {.region = HeaderOf(reply, "x-amz-bucket-region")};
  const absl::StatusOr<XmlLeaves> xml = XmlLeaves::Parse(reply.body);
  if (xml.ok() && xml->root() == "Error") {
    error.code = xml->First("Code");
    error.message = xml->First("Message");
    if (error.region.empty()) error.region = xml->First("Region");
  } else {
    error.message = reply.body.substr(0, kShownBytes);
  }
  return error;
}

// The status of an error, and what a person can do about it.
struct Verdict {
  absl::StatusCode code;
  std::string remedy;
};

Verdict Judge(int status, const ServerError& error) {
  const std::string& code = error.code;
  if (code == "NoSuchBucket") {
    return {absl::StatusCode::kInvalidArgument,
            "make the bucket, or name another in checkpoint.directory"};
  }
  if (status == 301 || status == 307 ||
      code == "AuthorizationHeaderMalformed" || code == "PermanentRedirect") {
    return {absl::StatusCode::kInvalidArgument,
            error.region.empty()
                ? "set checkpoint.region or AWS_REGION to the bucket's region"
                : absl::StrCat("the bucket is in ", error.region,
                               "; set checkpoint.region or AWS_REGION to it")};
  }
  if (code == "RequestTimeTooSkewed") {
    return {absl::StatusCode::kPermissionDenied, "set this host's clock"};
  }
  if (code == "InvalidAccessKeyId" || code == "SignatureDoesNotMatch") {
    return {absl::StatusCode::kPermissionDenied,
            "the credentials are not of this server: see AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY, AWS_PROFILE and checkpoint.endpoint"};
  }
  if (code == "ExpiredToken") {
    return {absl::StatusCode::kPermissionDenied,
            "the credentials have expired; get new ones and start again"};
  }
  if (status == 401 || status == 403) {
    return {absl::StatusCode::kPermissionDenied,
            "these credentials need the rights to list the bucket and to get, "
            "put and delete objects under the prefix"};
  }
  if (status == 404) return {absl::StatusCode::kNotFound, ""};
  if (status == 412 || code == "ConditionalRequestConflict") {
    return {absl::StatusCode::kAborted, "somebody else wrote it meanwhile"};
  }
  if (status == 507 || code == "QuotaExceeded" || code == "XMinioStorageFull") {
    return {absl::StatusCode::kResourceExhausted,
            "make room in the bucket, or lower checkpoint.keep"};
  }
  if (status == 501) return {absl::StatusCode::kUnimplemented, ""};
  if (status >= 500 || status == 408 || status == 429) {
    return {absl::StatusCode::kUnavailable, ""};
  }
  return {absl::StatusCode::kInvalidArgument, ""};
}

ObjectFacts FactsOf(const HttpReply& reply) {
  ObjectFacts facts = {.tag = HeaderOf(reply, "etag")};
  if (!absl::SimpleAtoi(HeaderOf(reply, "content-length"), &facts.bytes)) {
    facts.bytes = static_cast<int64_t>(reply.body.size());
  }
  const absl::StatusOr<absl::Time> now = HttpTime(HeaderOf(reply, "date"));
  const absl::StatusOr<absl::Time> written =
      HttpTime(HeaderOf(reply, "last-modified"));
  if (now.ok() && written.ok()) facts.age = *now - *written;
  return facts;
}

std::map<std::string, std::string> HeadersOf(const WriteCondition& condition) {
  std::map<std::string, std::string> headers;
  if (condition.if_absent) headers["if-none-match"] = "*";
  if (!condition.if_tag.empty()) headers["if-match"] = condition.if_tag;
  return headers;
}

}  // namespace

struct ObjectStore::Call {
  std::string method;
  std::string key;
  std::map<std::string, std::string> query = {};
  std::map<std::string, std::string> headers = {};
  absl::string_view body = {};
  absl::Duration limit = kLimit;
};

absl::StatusOr<std::shared_ptr<ObjectStore>> ObjectStore::Create(
    ObjectStoreOptions options) {
  // Amazon wants the bucket in the host's name. Its certificates are for one
  // more level alone, so not for a bucket with a dot.
  const bool is_amazon = options.place.endpoint.empty();
  const bool names_bucket =
      is_amazon && !absl::StrContains(options.bucket, '.');
  ObjectEndpoint endpoint;
  if (is_amazon) {
    endpoint.host = absl::StrCat(names_bucket ? options.bucket + "." : "",
                                 "s3.", options.place.region, ".amazonaws.com");
  } else {
    ASSIGN_OR_RETURN(endpoint, ParseObjectEndpoint(options.place.endpoint));
  }
  ASSIGN_OR_RETURN(
      std::unique_ptr<HttpClient> client,
      HttpClient::Create({.endpoint = endpoint, .ca_file = options.ca_file}));
  std::string host = client->name().substr(client->name().find("//") + 2);
  std::string base =
      names_bucket ? "/" : absl::StrCat("/", options.bucket, "/");
  return std::shared_ptr<ObjectStore>(new ObjectStore(
      std::move(options), std::move(host), std::move(base), std::move(client)));
}

ObjectStore::ObjectStore(ObjectStoreOptions options, std::string host,
                         std::string base_path,
                         std::unique_ptr<HttpClient> client)
    : options_(std::move(options)),
      host_(std::move(host)),
      base_path_(std::move(base_path)),
      client_(std::move(client)) {}

std::string ObjectStore::Address(const std::string& key) const {
  return absl::StrCat("s3://", options_.bucket, "/", key);
}

absl::StatusOr<HttpReply> ObjectStore::SendOnce(const Call& call) {
  SignedRequest request = {.method = call.method,
                           .path = absl::StrCat(base_path_, call.key),
                           .query = call.query,
                           .headers = call.headers,
                           .body = call.body};
  request.headers["host"] = host_;
  SignRequest(options_.credentials, options_.place.region,
              absl::Now() + absl::Seconds(clock_offset_s_.load()), &request);
  const absl::Duration for_body = absl::Seconds(
      static_cast<double>(call.body.size()) / kLeastBytesPerSecond);
  return client_->Send(request, call.limit + for_body);
}

absl::StatusOr<HttpReply> ObjectStore::Send(const Call& call) {
  thread_local absl::BitGen random;
  const absl::Time give_up_at = MonotonicNow() + options_.patience;
  absl::Duration pause = kFirstPause;
  bool may_set_clock = true;
  while (true) {
    const absl::StatusOr<HttpReply> reply = SendOnce(call);
    absl::Duration wanted_pause = absl::ZeroDuration();
    if (reply.ok()) {
      if (reply->status < 300) return reply;
      const std::string code = ReadError(*reply).code;
      const absl::StatusOr<absl::Time> theirs =
          HttpTime(HeaderOf(*reply, "date"));
      if (code == "RequestTimeTooSkewed" && may_set_clock && theirs.ok()) {
        clock_offset_s_ = absl::ToInt64Seconds(*theirs - absl::Now());
        may_set_clock = false;
        continue;
      }
      int64_t seconds = 0;
      if (absl::SimpleAtoi(HeaderOf(*reply, "retry-after"), &seconds)) {
        wanted_pause = std::clamp(absl::Seconds(seconds), absl::ZeroDuration(),
                                  options_.patience);
      }
      if (!IsRetried(*reply, code) || MonotonicNow() > give_up_at) {
        return ErrorOf(call, *reply);
      }
    } else if (!absl::IsUnavailable(reply.status()) ||
               MonotonicNow() > give_up_at) {
      return absl::Status(
          reply.status().code(),
          absl::StrCat("cannot ", absl::AsciiStrToLower(call.method), " ",
                       Address(call.key), ": ", reply.status().message()));
    }
    // Half of the pause at random, so that ranks do not come back all at once.
    const absl::Time until =
        MonotonicNow() +
        std::max(wanted_pause, pause * absl::Uniform(random, 0.5, 1.0));
    while (MonotonicNow() < until && !client_->is_aborted()) {
      absl::SleepFor(std::min(kAbortSlice, until - MonotonicNow()));
    }
    pause = std::min(pause * 2, kLongestPause);
  }
}

absl::Status ObjectStore::ErrorOf(const Call& call,
                                  const HttpReply& reply) const {
  const ServerError error = ReadError(reply);
  const Verdict verdict = Judge(reply.status, error);
  const std::string said =
      absl::StrCat(error.code, error.code.empty() ? "" : ": ", error.message);
  return absl::Status(
      verdict.code,
      absl::StrCat("cannot ", absl::AsciiStrToLower(call.method), " ",
                   Address(call.key), ": ", client_->name(), " answered ",
                   reply.status, said.empty() ? "" : " ", said,
                   verdict.remedy.empty() ? "" : "; ", verdict.remedy));
}

absl::StatusOr<std::string> ObjectStore::Put(const std::string& key,
                                             absl::string_view data,
                                             const WriteCondition& condition) {
  Call call = {.method = "PUT",
               .key = key,
               .headers = HeadersOf(condition),
               .body = data};
  absl::StatusOr<HttpReply> reply = Send(call);
  if (absl::IsUnimplemented(reply.status()) && !call.headers.empty()) {
    call.headers.clear();
    reply = Send(call);
  }
  RETURN_IF_ERROR(reply.status());
  return HeaderOf(*reply, "etag");
}

absl::StatusOr<ObjectFacts> ObjectStore::Look(const std::string& key) {
  const absl::StatusOr<HttpReply> reply = Send({.method = "HEAD", .key = key});
  if (reply.ok()) return FactsOf(*reply);
  if (absl::IsNotFound(reply.status()) || absl::IsUnavailable(reply.status()) ||
      absl::IsAborted(reply.status())) {
    return reply.status();
  }
  // HEAD does not say why.
  const absl::StatusOr<HttpReply> why =
      Send({.method = "GET", .key = key, .headers = {{"range", "bytes=0-0"}}});
  return why.ok() ? reply.status() : why.status();
}

absl::StatusOr<ObjectContent> ObjectStore::Get(const std::string& key,
                                               int64_t max_bytes) {
  ASSIGN_OR_RETURN(ObjectFacts facts, Look(key));
  if (facts.bytes > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Address(key), " has ", facts.bytes, " bytes, ", max_bytes,
                     " at most are read"));
  }
  ObjectContent content = {.facts = std::move(facts)};
  constexpr int64_t kPieceBytes = 32 << 20;
  while (static_cast<int64_t>(content.data.size()) < content.facts.bytes) {
    const auto offset = static_cast<int64_t>(content.data.size());
    ASSIGN_OR_RETURN(
        const std::string piece,
        GetRange(key, offset,
                 std::min(kPieceBytes, content.facts.bytes - offset),
                 content.facts.tag));
    content.data += piece;
  }
  return content;
}

absl::StatusOr<std::string> ObjectStore::GetRange(const std::string& key,
                                                  int64_t offset,
                                                  int64_t num_bytes,
                                                  const std::string& tag) {
  Call call = {.method = "GET",
               .key = key,
               .headers = {{"range", absl::StrCat("bytes=", offset, "-",
                                                  offset + num_bytes - 1)}}};
  if (!tag.empty()) call.headers["if-match"] = tag;
  ASSIGN_OR_RETURN(HttpReply reply, Send(call));
  if (static_cast<int64_t>(reply.body.size()) != num_bytes) {
    return absl::DataLossError(
        absl::StrCat(Address(key), ": ", reply.body.size(), " of ", num_bytes,
                     " bytes came from offset ", offset));
  }
  return std::move(reply.body);
}

absl::Status ObjectStore::Delete(const std::string& key) {
  const absl::Status status = Send({.method = "DELETE", .key = key}).status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<ObjectListing> ObjectStore::List(const std::string& prefix,
                                                bool by_folder) {
  ObjectListing listing;
  std::string token;
  do {
    Call call = {.method = "GET",
                 .key = "",
                 .query = {{"list-type", "2"}, {"prefix", prefix}}};
    if (by_folder) call.query["delimiter"] = "/";
    if (!token.empty()) call.query["continuation-token"] = token;
    ASSIGN_OR_RETURN(const HttpReply reply, Send(call));
    const absl::StatusOr<XmlLeaves> xml = XmlLeaves::Parse(reply.body);
    if (!xml.ok() || xml->root() != "ListBucketResult") {
      return absl::UnavailableError(absl::StrCat(
          "cannot list ", Address(prefix), ": ", client_->name(),
          " answered no list: ", reply.body.substr(0, kShownBytes)));
    }
    for (std::string& key : xml->All("Contents/Key")) {
      listing.keys.push_back(std::move(key));
    }
    for (std::string& found : xml->All("CommonPrefixes/Prefix")) {
      listing.prefixes.push_back(std::move(found));
    }
    token = xml->First("IsTruncated") == "true"
                ? xml->First("NextContinuationToken")
                : "";
  } while (!token.empty());
  return listing;
}

absl::StatusOr<std::string> ObjectStore::BeginUpload(const std::string& key) {
  ASSIGN_OR_RETURN(
      const HttpReply reply,
      Send({.method = "POST", .key = key, .query = {{"uploads", ""}}}));
  const absl::StatusOr<XmlLeaves> xml = XmlLeaves::Parse(reply.body);
  std::string upload = xml.ok() ? xml->First("UploadId") : "";
  if (upload.empty()) {
    return absl::UnavailableError(
        absl::StrCat("cannot begin to upload ", Address(key), ": ",
                     client_->name(), " named no upload"));
  }
  return upload;
}

absl::StatusOr<std::string> ObjectStore::UploadPart(const std::string& key,
                                                    const std::string& upload,
                                                    int32_t part,
                                                    absl::string_view data) {
  ASSIGN_OR_RETURN(
      const HttpReply reply,
      Send({.method = "PUT",
            .key = key,
            .query = {{"partNumber", absl::StrCat(part)}, {"uploadId", upload}},
            .body = data}));
  return HeaderOf(reply, "etag");
}

absl::Status ObjectStore::CompleteUpload(const std::string& key,
                                         const std::string& upload,
                                         const std::vector<std::string>& tags) {
  std::string body = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < tags.size(); ++i) {
    absl::StrAppend(&body, "<Part><PartNumber>", i + 1, "</PartNumber><ETag>",
                    tags[i], "</ETag></Part>");
  }
  body += "</CompleteMultipartUpload>";
  const Call call = {.method = "POST",
                     .key = key,
                     .query = {{"uploadId", upload}},
                     .body = body,
                     .limit = kCompleteLimit};
  ASSIGN_OR_RETURN(const HttpReply reply, Send(call));
  // The server has said 200 before it knew how it ends.
  const absl::StatusOr<XmlLeaves> xml = XmlLeaves::Parse(reply.body);
  if (xml.ok() && xml->root() == "Error") return ErrorOf(call, reply);
  return absl::OkStatus();
}

absl::Status ObjectStore::AbandonUpload(const std::string& key,
                                        const std::string& upload) {
  const absl::Status status =
      Send({.method = "DELETE", .key = key, .query = {{"uploadId", upload}}})
          .status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status ObjectStore::AbandonUploads(const std::string& prefix) {
  ASSIGN_OR_RETURN(const HttpReply reply,
                   Send({.method = "GET",
                         .key = "",
                         .query = {{"prefix", prefix}, {"uploads", ""}}}));
  ASSIGN_OR_RETURN(const XmlLeaves xml, XmlLeaves::Parse(reply.body));
  const std::vector<std::string> keys = xml.All("Upload/Key");
  const std::vector<std::string> uploads = xml.All("Upload/UploadId");
  for (size_t i = 0; i < std::min(keys.size(), uploads.size()); ++i) {
    if (!absl::StartsWith(keys[i], prefix)) continue;
    RETURN_IF_ERROR(AbandonUpload(keys[i], uploads[i]));
  }
  return absl::OkStatus();
}

}  // namespace millrace

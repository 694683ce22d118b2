#include "tests/coordinator/objects/fake_store.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/check.h"

namespace millrace {
namespace {

namespace http = boost::beast::http;
using boost::asio::ip::tcp;
using boost::system::error_code;
using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

std::string Decoded(absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned int byte = 0;
    if (text[i] == '%' && absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) {
      plain.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      plain.push_back(text[i]);
    }
  }
  return plain;
}

std::string HttpDate(absl::Time time) {
  return absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", time,
                          absl::UTCTimeZone());
}

std::string ErrorBody(absl::string_view code) {
  return absl::StrCat("<?xml version=\"1.0\"?><Error><Code>", code,
                      "</Code><Message>said by the test</Message></Error>");
}

}  // namespace

class FakeStore::Impl {
 public:
  Impl() : acceptor_(loop_, tcp::endpoint(tcp::v4(), 0)) {
    port_ = acceptor_.local_endpoint().port();
    accepting_ = std::thread([this] { Accept(); });
  }

  ~Impl() {
    ends_ = true;
    {
      // Wakes the thread that accepts.
      boost::asio::io_context loop;
      tcp::socket socket(loop);
      error_code ignored;
      socket.connect({boost::asio::ip::address_v4::loopback(), port_}, ignored);
    }
    accepting_.join();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (tcp::socket* socket : open_) {
        error_code ignored;
        socket->shutdown(tcp::socket::shutdown_both, ignored);
      }
    }
    for (std::thread& thread : threads_) thread.join();
  }

  uint16_t port() const { return port_; }

  struct Object {
    std::string content;
    absl::Time written;
    std::string tag;
  };

  std::mutex mutex_;  // Guards what follows.
  std::function<StoreFault(const StoreRequest&)> fault_;
  int all_status_ = 0;
  std::string all_body_;
  std::map<std::string, std::string> all_headers_;
  bool has_conditions_ = true;
  absl::Duration clock_ = absl::ZeroDuration();
  int64_t num_requests_ = 0;
  std::map<std::string, Object> objects_;
  std::map<std::string, std::map<int, std::string>> uploads_;

  void Set(const std::string& key, std::string content) {
    objects_[key] = {std::move(content), absl::Now() + clock_,
                     absl::StrCat("\"tag-", ++num_tags_, "\"")};
  }

 private:
  void Accept() {
    while (true) {
      tcp::socket socket(loop_);
      error_code error;
      acceptor_.accept(socket, error);
      if (ends_ || error) return;
      threads_.emplace_back(
          [this, moved = std::move(socket)]() mutable { Serve(moved); });
    }
  }

  void Serve(tcp::socket& socket) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_.insert(&socket);
    }
    boost::beast::flat_buffer buffer;
    error_code error;
    while (!error && !ends_) {
      http::request_parser<http::string_body> parser;
      parser.body_limit(uint64_t{256} << 20);
      http::read(socket, buffer, parser, error);
      if (error) break;
      Response response;
      if (!Answer(parser.get(), &response)) break;
      http::response_serializer<http::string_body> serializer(response);
      if (parser.get().method() == http::verb::head) {
        http::write_header(socket, serializer, error);
      } else {
        http::write(socket, serializer, error);
      }
    }
    std::lock_guard<std::mutex> lock(mutex_);
    open_.erase(&socket);
    error_code ignored;
    socket.close(ignored);
  }

  // False: cut the connection.
  bool Answer(const Request& request, Response* response) {
    std::lock_guard<std::mutex> lock(mutex_);
    StoreRequest seen = {.number = ++num_requests_,
                         .method = std::string(request.method_string()),
                         .target = std::string(request.target())};
    for (const auto& field : request) {
      seen.headers[absl::AsciiStrToLower(std::string(field.name_string()))] =
          std::string(field.value());
    }
    const StoreFault fault =
        fault_ == nullptr ? StoreFault::kNone : fault_(seen);
    if (fault == StoreFault::kCutBefore) return false;
    response->set(http::field::date, HttpDate(absl::Now() + clock_));
    if (all_status_ != 0) {
      response->result(static_cast<unsigned>(all_status_));
      for (const auto& [name, value] : all_headers_) {
        response->set(name, value);
      }
      response->body() = all_body_;
    } else if (fault == StoreFault::kBusy) {
      Refuse(503, "SlowDown", response);
    } else {
      Do(seen, request.body(), response);
    }
    if (response->find(http::field::content_length) == response->end()) {
      response->prepare_payload();
    }
    return fault != StoreFault::kCutAfter;
  }

  static void Refuse(unsigned status, absl::string_view code,
                     Response* response) {
    response->result(status);
    response->body() = ErrorBody(code);
  }

  void Do(const StoreRequest& request, const std::string& body,
          Response* response) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(request.target, absl::MaxSplits('?', 1));
    std::string path = Decoded(parts.first);
    std::map<std::string, std::string> query;
    for (const absl::string_view entry :
         absl::StrSplit(parts.second, '&', absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> field =
          absl::StrSplit(entry, absl::MaxSplits('=', 1));
      query[Decoded(field.first)] = Decoded(field.second);
    }
    absl::string_view key = path;
    if (!absl::ConsumePrefix(&key, "/bucket/")) {
      return Refuse(404, "NoSuchBucket", response);
    }
    const std::string name(key);
    if (name.empty()) return List(query, response);
    if (query.count("uploads") > 0 || query.count("uploadId") > 0) {
      return Upload(request, name, query, body, response);
    }
    const auto found = objects_.find(name);
    const bool is_there = found != objects_.end();
    const auto header = [&request](const std::string& of) {
      const auto at = request.headers.find(of);
      return at == request.headers.end() ? "" : at->second;
    };
    const std::string match = header("if-match");
    const bool holds =
        (match.empty() || (is_there && found->second.tag == match)) &&
        (header("if-none-match") != "*" || !is_there);
    if (!holds && has_conditions_) {
      return Refuse(412, "PreconditionFailed", response);
    }
    if (request.method == "PUT") {
      Set(name, body);
      response->set(http::field::etag, objects_[name].tag);
      return;
    }
    if (request.method == "DELETE") {
      objects_.erase(name);
      response->result(204u);
      return;
    }
    if (!is_there) return Refuse(404, "NoSuchKey", response);
    const Object& object = found->second;
    response->set(http::field::etag, object.tag);
    response->set(http::field::last_modified, HttpDate(object.written));
    if (request.method == "HEAD") {
      response->content_length(object.content.size());
      return;
    }
    response->body() = object.content;
    const std::string asked = header("range");
    absl::string_view range = asked;
    if (!absl::ConsumePrefix(&range, "bytes=")) return;
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    size_t first = 0, last = 0;
    CHECK(absl::SimpleAtoi(ends[0], &first) &&
          absl::SimpleAtoi(ends[1], &last));
    response->result(206u);
    response->body() = object.content.substr(first, last - first + 1);
  }

  void List(std::map<std::string, std::string>& query, Response* response) {
    const std::string prefix = query["prefix"];
    std::string body = "<?xml version=\"1.0\"?><ListBucketResult>";
    if (query.count("uploads") > 0) {
      body = "<ListMultipartUploadsResult>";
      for (const auto& [id, parts] : uploads_) {
        const std::string key = id.substr(0, id.find('|'));
        absl::StrAppend(&body, "<Upload><Key>", key, "</Key><UploadId>", id,
                        "</UploadId></Upload>");
      }
      response->body() = body + "</ListMultipartUploadsResult>";
      return;
    }
    // Two at a time, so that a long list comes in pieces.
    constexpr size_t kMost = 2;
    std::set<std::string> found;
    for (const auto& [key, object] : objects_) {
      if (!absl::StartsWith(key, prefix)) continue;
      const size_t slash = key.find('/', prefix.size());
      found.insert(query["delimiter"].empty() || slash == std::string::npos
                       ? key
                       : key.substr(0, slash + 1));
    }
    size_t count = 0;
    std::string last;
    for (const std::string& name : found) {
      if (name <= query["continuation-token"]) continue;
      if (count == kMost) {
        absl::StrAppend(&body, "<IsTruncated>true</IsTruncated>",
                        "<NextContinuationToken>", last,
                        "</NextContinuationToken>");
        break;
      }
      ++count;
      last = name;
      absl::StrAppend(
          &body,
          absl::EndsWith(name, "/")
              ? absl::StrCat("<CommonPrefixes><Prefix>", name,
                             "</Prefix></CommonPrefixes>")
              : absl::StrCat("<Contents><Key>", name,
                             "</Key><Owner><ID>x</ID></Owner>", "</Contents>"));
    }
    response->body() = body + "</ListBucketResult>";
  }

  void Upload(const StoreRequest& request, const std::string& name,
              std::map<std::string, std::string>& query,
              const std::string& body, Response* response) {
    if (query.count("uploads") > 0) {
      const std::string id = absl::StrCat(name, "|", ++num_tags_);
      uploads_[id];
      response->body() = absl::StrCat(
          "<InitiateMultipartUploadResult xmlns=\"http://s3\"><UploadId>", id,
          "</UploadId></InitiateMultipartUploadResult>");
      return;
    }
    const auto upload = uploads_.find(query["uploadId"]);
    if (upload == uploads_.end()) return Refuse(404, "NoSuchUpload", response);
    if (request.method == "DELETE") {
      uploads_.erase(upload);
      response->result(204u);
    } else if (request.method == "PUT") {
      int number = 0;
      CHECK(absl::SimpleAtoi(query["partNumber"], &number));
      upload->second[number] = body;
      response->set(http::field::etag, absl::StrCat("\"", number, "\""));
    } else {
      std::string content;
      for (const auto& [number, part] : upload->second) content += part;
      uploads_.erase(upload);
      Set(name, std::move(content));
      response->body() = "<CompleteMultipartUploadResult/>";
    }
  }

  boost::asio::io_context loop_;
  tcp::acceptor acceptor_;
  uint16_t port_ = 0;
  std::atomic<bool> ends_ = false;
  std::thread accepting_;
  std::vector<std::thread> threads_;  // Of accepting_ alone, until it ends.
  std::set<tcp::socket*> open_;
  int64_t num_tags_ = 0;
};

FakeStore::FakeStore() : impl_(std::make_unique<Impl>()) {}
FakeStore::~FakeStore() = default;

ObjectFilesOptions FakeStore::Options() const {
  return {
      .place = {.endpoint = absl::StrCat("http://127.0.0.1:", impl_->port())},
      .environment =
          [](const std::string& name) {
            return std::string(name == "AWS_ACCESS_KEY_ID"       ? "id"
                               : name == "AWS_SECRET_ACCESS_KEY" ? "secret"
                                                                 : "");
          },
      .patience = absl::Seconds(5)};
}

void FakeStore::SetFault(std::function<StoreFault(const StoreRequest&)> fault) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->fault_ = std::move(fault);
}

void FakeStore::AnswerAll(int status, std::string body,
                          std::map<std::string, std::string> headers) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->all_status_ = status;
  impl_->all_body_ = std::move(body);
  impl_->all_headers_ = std::move(headers);
}

void FakeStore::SetHasConditions(bool has_conditions) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->has_conditions_ = has_conditions;
}

void FakeStore::AdvanceClock(absl::Duration by) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->clock_ += by;
}

int64_t FakeStore::num_requests() const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->num_requests_;
}

std::map<std::string, std::string> FakeStore::objects() const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  std::map<std::string, std::string> contents;
  for (const auto& [key, object] : impl_->objects_) {
    contents[key] = object.content;
  }
  return contents;
}

void FakeStore::SetObject(const std::string& key, std::string content) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->Set(key, std::move(content));
}

int64_t FakeStore::num_uploads() const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return static_cast<int64_t>(impl_->uploads_.size());
}

}  // namespace millrace

#include "coordinator/objects/http_client.h"

#include <openssl/ssl.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr absl::Duration kConnectLimit = absl::Seconds(10);
constexpr uint64_t kMaxReplyBytes = 128 << 20;
constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kMaxIdle = 16;
// How soon Abort() is noticed.
constexpr auto kSlice = std::chrono::milliseconds(50);

std::string NameOf(const ObjectEndpoint& endpoint) {
  const bool is_ipv6 = absl::StrContains(endpoint.host, ':');
  const int32_t usual_port = endpoint.is_encrypted ? 443 : 80;
  return absl::StrCat(
      endpoint.is_encrypted ? "https://" : "http://", is_ipv6 ? "[" : "",
      endpoint.host, is_ipv6 ? "]" : "",
      endpoint.port == usual_port ? "" : absl::StrCat(":", endpoint.port));
}

// One connection; used by one request at a time.
class HttpConnection {
 public:
  HttpConnection(asio::ssl::context* tls, const std::atomic<bool>& aborted)
      : aborted_(aborted) {
    if (tls == nullptr) {
      plain_.emplace(loop_);
    } else {
      encrypted_.emplace(loop_, *tls);
    }
    buffer_.reserve(kReadBytes);
  }

  absl::Status Connect(const ObjectEndpoint& endpoint) {
    tcp::resolver resolver(loop_);
    tcp::resolver::results_type addresses;
    error_code error;
    Run(&error, [&](auto done) {
      resolver.async_resolve(
          endpoint.host, absl::StrCat(endpoint.port),
          [&, done](error_code result, tcp::resolver::results_type found) {
            addresses = std::move(found);
            done(result);
          });
    });
    if (error) return Failed("its name is not found", error);
    Run(&error, [&](auto done) {
      lowest().expires_after(absl::ToChronoSeconds(kConnectLimit));
      lowest().async_connect(
          addresses,
          [done](error_code result, const tcp::endpoint&) { done(result); });
    });
    if (error) return Failed("no connection", error);
    lowest().socket().set_option(tcp::no_delay(true), error);
    return encrypted_.has_value() ? ShakeHands(endpoint) : absl::OkStatus();
  }

  absl::StatusOr<HttpReply> Send(const SignedRequest& request,
                                 absl::Duration limit) {
    return encrypted_.has_value() ? SendOver(*encrypted_, request, limit)
                                  : SendOver(*plain_, request, limit);
  }

  bool can_be_kept() const { return can_be_kept_; }

 private:
  beast::tcp_stream& lowest() {
    return encrypted_.has_value() ? beast::get_lowest_layer(*encrypted_)
                                  : *plain_;
  }

  // Begins an operation by `begin`, which is given what to call at its end, and
  // runs the loop until then.
  template <typename Begin>
  void Run(error_code* error, const Begin& begin) {
    bool is_done = false;
    loop_.restart();
    begin([&is_done, error](error_code result) {
      *error = result;
      is_done = true;
    });
    while (!is_done) {
      loop_.run_one_for(kSlice);
      if (aborted_ && !is_done) {
        lowest().cancel();
        // The handler refers to what is on this stack.
        while (!is_done) loop_.run_one();
      }
    }
  }

  absl::Status Failed(absl::string_view what, error_code error) const {
    if (aborted_) return absl::AbortedError("not needed any more");
    return absl::UnavailableError(absl::StrCat(
        what, ": ",
        error == beast::error::timeout ? "it took too long" : error.message()));
  }

  absl::Status ShakeHands(const ObjectEndpoint& endpoint) {
    // The name by which a server of many hosts chooses its certificate.
    if (SSL_set_tlsext_host_name(encrypted_->native_handle(),
                                 endpoint.host.c_str()) != 1) {
      return absl::InternalError("TLS refuses the host's name");
    }
    encrypted_->set_verify_mode(asio::ssl::verify_peer);
    encrypted_->set_verify_callback(
        asio::ssl::host_name_verification(endpoint.host));
    error_code error;
    Run(&error, [&](auto done) {
      lowest().expires_after(absl::ToChronoSeconds(kConnectLimit));
      encrypted_->async_handshake(asio::ssl::stream_base::client,
                                  [done](error_code result) { done(result); });
    });
    if (!error) return absl::OkStatus();
    const long verified = SSL_get_verify_result(encrypted_->native_handle());
    if (verified != X509_V_OK) {
      return absl::PermissionDeniedError(
          absl::StrCat("its certificate is not trusted: ",
                       X509_verify_cert_error_string(verified),
                       "; name the file of its authority in AWS_CA_BUNDLE"));
    }
    return Failed("no TLS", error);
  }

  template <typename Stream>
  absl::StatusOr<HttpReply> SendOver(Stream& stream,
                                     const SignedRequest& request,
                                     absl::Duration limit) {
    can_be_kept_ = false;
    http::request<http::span_body<const char>> message;
    message.version(11);
    message.method_string(request.method);
    message.target(RequestTarget(request));
    for (const auto& [name, value] : request.headers) message.set(name, value);
    message.body() = {request.body.data(), request.body.size()};
    message.content_length(request.body.size());
    error_code error;
    Run(&error, [&](auto done) {
      lowest().expires_after(absl::ToChronoSeconds(limit));
      http::async_write(stream, message,
                        [done](error_code result, size_t) { done(result); });
    });
    // A server that refuses a body may answer before it has it.
    const error_code write_error = error;
    if (write_error && (aborted_ || write_error == beast::error::timeout)) {
      return Failed("the request does not go out", write_error);
    }
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxReplyBytes);
    parser.skip(request.method == "HEAD");
    Run(&error, [&](auto done) {
      lowest().expires_after(absl::ToChronoSeconds(limit));
      http::async_read(stream, buffer_, parser,
                       [done](error_code result, size_t) { done(result); });
    });
    if (error == http::error::body_limit) {
      return absl::ResourceExhaustedError(
          absl::StrCat("its reply has more than ", kMaxReplyBytes, " bytes"));
    }
    if (error) {
      return Failed("no reply", write_error ? write_error : error);
    }
    can_be_kept_ = parser.get().keep_alive() && !write_error;
    HttpReply reply;
    reply.status = static_cast<int>(parser.get().result_int());
    for (const auto& field : parser.get()) {
      const std::string name(field.name_string());
      reply.headers[absl::AsciiStrToLower(name)] = std::string(field.value());
    }
    reply.body = std::move(parser.get().body());
    return reply;
  }

  const std::atomic<bool>& aborted_;
  asio::io_context loop_{1};
  // One of the two.
  std::optional<beast::tcp_stream> plain_;
  std::optional<beast::ssl_stream<beast::tcp_stream>> encrypted_;
  beast::flat_buffer buffer_;
  bool can_be_kept_ = false;
};

}  // namespace

class HttpClient::Impl {
 public:
  explicit Impl(HttpClientOptions options)
      : options_(std::move(options)), name_(NameOf(options_.endpoint)) {}

  absl::Status Start() {
    if (!options_.endpoint.is_encrypted) return absl::OkStatus();
    tls_.emplace(asio::ssl::context::tls_client);
    error_code error;
    tls_->set_options(
        asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, error);
    if (options_.ca_file.empty()) {
      tls_->set_default_verify_paths(error);
    } else {
      tls_->load_verify_file(options_.ca_file, error);
    }
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot read the authorities of TLS certificates ",
                       options_.ca_file, ": ", error.message()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<HttpReply> Send(const SignedRequest& request,
                                 absl::Duration limit) {
    std::unique_ptr<HttpConnection> kept = TakeIdle();
    if (kept != nullptr) {
      absl::StatusOr<HttpReply> reply = SendOn(std::move(kept), request, limit);
      // The server may have closed the connection while nobody used it.
      if (!absl::IsUnavailable(reply.status())) return reply;
    }
    auto fresh = std::make_unique<HttpConnection>(
        tls_.has_value() ? &*tls_ : nullptr, aborted_);
    if (aborted_) return absl::AbortedError("not needed any more");
    const absl::Status connected = fresh->Connect(options_.endpoint);
    if (!connected.ok()) return Named(connected);
    return SendOn(std::move(fresh), request, limit);
  }

  void Abort() { aborted_ = true; }
  bool is_aborted() const { return aborted_; }
  const std::string& name() const { return name_; }

 private:
  absl::Status Named(const absl::Status& status) const {
    return absl::Status(status.code(),
                        absl::StrCat(name_, ": ", status.message()));
  }

  absl::StatusOr<HttpReply> SendOn(std::unique_ptr<HttpConnection> connection,
                                   const SignedRequest& request,
                                   absl::Duration limit) {
    absl::StatusOr<HttpReply> reply = connection->Send(request, limit);
    if (!reply.ok()) return Named(reply.status());
    if (connection->can_be_kept()) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (idle_.size() < kMaxIdle) idle_.push_back(std::move(connection));
    }
    return reply;
  }

  std::unique_ptr<HttpConnection> TakeIdle() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return nullptr;
    std::unique_ptr<HttpConnection> connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }

  const HttpClientOptions options_;
  const std::string name_;
  std::optional<asio::ssl::context> tls_;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::vector<std::unique_ptr<HttpConnection>> idle_;
};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::~HttpClient() = default;
void HttpClient::Abort() { impl_->Abort(); }
bool HttpClient::is_aborted() const { return impl_->is_aborted(); }
const std::string& HttpClient::name() const { return impl_->name(); }

absl::StatusOr<std::unique_ptr<HttpClient>> HttpClient::Create(
    HttpClientOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

absl::StatusOr<HttpReply> HttpClient::Send(const SignedRequest& request,
                                           absl::Duration limit) {
  try {
    return impl_->Send(request, limit);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(name(), ": ", error.what()));
  }
}

}  // namespace millrace

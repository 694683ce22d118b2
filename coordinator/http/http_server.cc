#include "coordinator/http/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

namespace http = boost::beast::http;
using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr auto kConnectionLimit = std::chrono::seconds(10);
constexpr int kMaxConnections = 32;
constexpr uint32_t kMaxRequestBytes = 16 << 10;

using Answerer = std::function<HttpAnswer(const std::string&)>;

// One connection: a request, its answer, the end. Lives as long as one of its
// operations is under way.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(tcp::socket socket, const Answerer& answer, int* num_open)
      : stream_(std::move(socket)), answer_(answer), num_open_(num_open) {
    ++*num_open_;
    parser_.header_limit(kMaxRequestBytes);
    parser_.body_limit(kMaxRequestBytes);
  }
  ~HttpConnection() { --*num_open_; }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  void Start() {
    stream_.expires_after(kConnectionLimit);
    http::async_read(stream_, buffer_, parser_,
                     [self = shared_from_this()](error_code error, size_t) {
                       if (!error) self->Answer();
                     });
  }

 private:
  void Answer() {
    const auto& request = parser_.get();
    const bool is_head = request.method() == http::verb::head;
    HttpAnswer answer;
    if (request.method() != http::verb::get && !is_head) {
      answer = {.status = 405, .body = "GET and HEAD only\n"};
    } else {
      const std::string target(request.target());
      answer = answer_(target.substr(0, target.find('?')));
    }
    response_.version(request.version());
    response_.result(static_cast<unsigned>(answer.status));
    response_.set(http::field::content_type, answer.type);
    response_.set(http::field::cache_control, "no-store");
    if (answer.refresh_s > 0) {
      response_.set("Refresh", absl::StrCat(answer.refresh_s));
    }
    response_.keep_alive(false);
    response_.body() = std::move(answer.body);
    response_.prepare_payload();
    if (is_head) response_.body().clear();
    stream_.expires_after(kConnectionLimit);
    http::async_write(
        stream_, response_,
        [self = shared_from_this()](error_code, size_t) { self->Close(); });
  }

  void Close() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  http::request_parser<http::string_body> parser_;
  http::response<http::string_body> response_;
  const Answerer& answer_;
  int* const num_open_;
};

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(HttpServerOptions options)
      : options_(std::move(options)), acceptor_(loop_) {}

  ~Impl() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    error_code error;
    const auto address = boost::asio::ip::make_address(options_.address, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", options_.address, "' is not an IP address"));
    }
    const tcp::endpoint endpoint(address, static_cast<uint16_t>(options_.port));
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(kMaxConnections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", options_.address, " port ",
                       options_.port, ": ", error.message()));
    }
    Accept();
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  int32_t port() const { return port_; }

 private:
  void Run() {
    // An answer that throws ends its connection alone.
    while (!loop_.stopped()) {
      try {
        loop_.run();
      } catch (const std::exception&) {
      }
    }
  }

  void Accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!error && num_open_ < kMaxConnections) {
        std::make_shared<HttpConnection>(std::move(socket), options_.answer,
                                         &num_open_)
            ->Start();
      }
      if (error != boost::asio::error::operation_aborted) Accept();
    });
  }

  const HttpServerOptions options_;
  int num_open_ = 0;  // Outlives the loop, which holds the connections.
  boost::asio::io_context loop_{1};
  tcp::acceptor acceptor_;
  int32_t port_ = 0;
  std::thread thread_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    HttpServerOptions options) {
  try {
    auto impl = std::make_unique<Impl>(std::move(options));
    if (absl::Status status = impl->Start(); !status.ok()) return status;
    return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve HTTP: ", error.what()));
  }
}

int32_t HttpServer::port() const { return impl_->port(); }

}  // namespace millrace

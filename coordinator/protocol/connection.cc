#include "coordinator/protocol/connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {

using boost::system::error_code;

namespace {

// A proxy or a scanner of ports is neither: it just ends the connection.
bool IsOfTls(const error_code& error) {
  return error.category() == boost::asio::error::get_ssl_category();
}

absl::Status Lost(const error_code& error) {
  return absl::UnavailableError(
      absl::StrCat("connection lost: ", error.message()));
}

}  // namespace

Connection::Connection(boost::asio::ip::tcp::socket socket,
                       boost::asio::ssl::context& context, TlsEnd end)
    : stream_(std::move(socket), context), end_(end) {
  // Step reports are small and latency matters more than packets.
  error_code ignored;
  stream_.lowest_layer().set_option(boost::asio::ip::tcp::no_delay(true),
                                    ignored);
}

void Connection::Start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  stream_.async_handshake(
      end_ == TlsEnd::kCoordinator ? boost::asio::ssl::stream_base::server
                                   : boost::asio::ssl::stream_base::client,
      [self = shared_from_this()](const error_code& error) {
        if (self->closed_) return;
        if (error) {
          self->Close(IsOfTls(error)
                          ? absl::PermissionDeniedError(error.message())
                          : Lost(error));
          return;
        }
        self->proven_ = true;
        // A copy, as in Read().
        const auto on_proven = self->callbacks_.on_proven;
        if (on_proven) on_proven();
        if (!self->closed_) self->Read();
      });
}

void Connection::Send(absl::string_view payload) {
  CHECK(proven_);
  if (closed_ || closing_) return;
  outgoing_.push_back(EncodeFrame(payload));
  if (outgoing_.size() == 1) Write();
}

void Connection::CloseAfterWriting() {
  closing_ = true;
  if (outgoing_.empty()) Close(absl::OkStatus());
}

void Connection::Close(absl::Status reason) {
  if (closed_) return;
  closed_ = true;
  // TLS's own farewell is not needed: frames say how long they are, and what
  // was not acknowledged is sent again.
  error_code ignored;
  auto& socket = stream_.lowest_layer();
  socket.shutdown(boost::asio::ip::tcp::socket::shutdown_both, ignored);
  socket.close(ignored);
  // Moved out first: the callback may drop the last reference to its owner.
  Callbacks callbacks = std::move(callbacks_);
  callbacks_ = {};
  if (callbacks.on_closed) callbacks.on_closed(std::move(reason));
}

void Connection::Read() {
  stream_.async_read_some(
      boost::asio::buffer(read_buffer_),
      [self = shared_from_this()](const error_code& error, size_t num_bytes) {
        if (self->closed_) return;
        if (error) {
          self->Close(IsOfTls(error) ? absl::DataLossError(error.message())
                                     : Lost(error));
          return;
        }
        self->decoder_.Append(
            absl::string_view(self->read_buffer_.data(), num_bytes));
        while (!self->closed_) {
          absl::StatusOr<std::optional<std::string>> payload =
              self->decoder_.Next();
          if (!payload.ok()) {
            self->Close(payload.status());
            return;
          }
          if (!payload->has_value()) break;
          // A copy: handling the message may close the connection, and with it
          // clear the callbacks.
          auto on_message = self->callbacks_.on_message;
          if (on_message) on_message(**std::move(payload));
        }
        if (!self->closed_) self->Read();
      });
}

void Connection::Write() {
  boost::asio::async_write(
      stream_, boost::asio::buffer(outgoing_.front()),
      [self = shared_from_this()](const error_code& error, size_t) {
        if (self->closed_) return;
        if (error) {
          self->Close(Lost(error));
          return;
        }
        self->outgoing_.pop_front();
        if (!self->outgoing_.empty()) {
          self->Write();
        } else if (self->closing_) {
          self->Close(absl::OkStatus());
        }
      });
}

}  // namespace millrace

#include "coordinator/protocol/connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace millrace {

using boost::system::error_code;

Connection::Connection(boost::asio::ip::tcp::socket socket)
    : socket_(std::move(socket)) {
  // Step reports are small and latency matters more than packets.
  error_code ignored;
  socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
}

void Connection::Start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  Read();
}

void Connection::Send(absl::string_view payload) {
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
  error_code ignored;
  socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  // Moved out first: the callback may drop the last reference to its owner.
  Callbacks callbacks = std::move(callbacks_);
  callbacks_ = {};
  if (callbacks.on_closed) callbacks.on_closed(std::move(reason));
}

void Connection::Read() {
  socket_.async_read_some(
      boost::asio::buffer(read_buffer_),
      [self = shared_from_this()](const error_code& error, size_t num_bytes) {
        if (self->closed_) return;
        if (error) {
          self->Close(absl::UnavailableError(
              absl::StrCat("connection lost: ", error.message())));
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
      socket_, boost::asio::buffer(outgoing_.front()),
      [self = shared_from_this()](const error_code& error, size_t) {
        if (self->closed_) return;
        if (error) {
          self->Close(absl::UnavailableError(
              absl::StrCat("connection lost: ", error.message())));
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

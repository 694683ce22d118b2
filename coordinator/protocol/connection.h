// One connection on an Asio event loop: frames over TLS over TCP. Everything,
// callbacks included, happens on the thread that runs the loop.

#ifndef MILLRACE_COORDINATOR_PROTOCOL_CONNECTION_H_
#define MILLRACE_COORDINATOR_PROTOCOL_CONNECTION_H_

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/protocol/framing.h"
#include "coordinator/protocol/tls.h"

namespace millrace {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Callbacks {
    // Once, before any message: the other end has proven to know the secret.
    std::function<void()> on_proven;
    std::function<void(std::string payload)> on_message;
    // Once, whoever closed it; no callback follows. PermissionDenied if the
    // other end failed to prove that it knows the secret, DataLoss if what it
    // sent was damaged, Unavailable if the connection was lost.
    std::function<void(absl::Status reason)> on_closed;
  };

  // `socket` is connected; `context` is one of MakeTlsContext().
  Connection(boost::asio::ip::tcp::socket socket,
             boost::asio::ssl::context& context, TlsEnd end);

  // Begins with the proof. The connection keeps itself alive until it is
  // closed.
  void Start(Callbacks callbacks);
  // Others take over the callbacks.
  void Redirect(Callbacks callbacks) { callbacks_ = std::move(callbacks); }
  // Queues one message; returns at once. Does nothing once closed. Only after
  // on_proven.
  void Send(absl::string_view payload);
  // Closes when everything queued has been written.
  void CloseAfterWriting();
  void Close(absl::Status reason);

 private:
  void Read();
  void Write();

  boost::asio::ssl::stream<boost::asio::ip::tcp::socket> stream_;
  const TlsEnd end_;
  Callbacks callbacks_;
  std::array<char, 16384> read_buffer_;
  FrameDecoder decoder_;
  std::deque<std::string> outgoing_;
  bool proven_ = false;
  bool closing_ = false;
  bool closed_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROTOCOL_CONNECTION_H_

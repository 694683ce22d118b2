// One framed TCP connection on an Asio event loop. Everything, callbacks
// included, happens on the thread that runs the loop.

#ifndef MILLRACE_COORDINATOR_PROTOCOL_CONNECTION_H_
#define MILLRACE_COORDINATOR_PROTOCOL_CONNECTION_H_

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/protocol/framing.h"

namespace millrace {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Callbacks {
    std::function<void(std::string payload)> on_message;
    // Once, whoever closed it; no callback follows.
    std::function<void(absl::Status reason)> on_closed;
  };

  // `socket` is connected.
  explicit Connection(boost::asio::ip::tcp::socket socket);

  // Begins to read. The connection keeps itself alive until it is closed.
  void Start(Callbacks callbacks);
  // Others take over the callbacks.
  void Redirect(Callbacks callbacks) { callbacks_ = std::move(callbacks); }
  // From the next frame read on.
  void LimitFrames(int64_t max_bytes) { decoder_.LimitFrames(max_bytes); }
  // Queues one message; returns at once. Does nothing once closed.
  void Send(absl::string_view payload);
  // Closes when everything queued has been written.
  void CloseAfterWriting();
  void Close(absl::Status reason);

 private:
  void Read();
  void Write();

  boost::asio::ip::tcp::socket socket_;
  Callbacks callbacks_;
  std::array<char, 16384> read_buffer_;
  FrameDecoder decoder_;
  std::deque<std::string> outgoing_;
  bool closing_ = false;
  bool closed_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROTOCOL_CONNECTION_H_

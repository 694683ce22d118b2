// A full mesh of Gloo connections between the members of one group. The only
// file pair that sees Gloo: exceptions become Status here.

#ifndef MILLRACE_WORKER_COMMUNICATE_GLOO_MESH_H_
#define MILLRACE_WORKER_COMMUNICATE_GLOO_MESH_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "worker/communicate/communicator.h"
#include "worker/communicate/rendezvous_store.h"

namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace millrace {

// Messages between two members arrive in the order they were sent. One thread
// may send while another receives; Abort() from any.
class GlooMesh {
 public:
  struct Options {
    CommunicatorKey key;
    std::vector<Rank> members;
    int32_t index;
    RendezvousStore* store;
    std::shared_ptr<gloo::transport::Device> device;
    absl::Duration connect_timeout;
    std::vector<std::string> hosts;  // By rank; may be empty.
  };
  explicit GlooMesh(Options options);
  ~GlooMesh();

  // Publishes this member's addresses, waits for the others' and connects.
  // DeadlineExceeded names the ranks that did not come.
  absl::Status Connect();

  int32_t size() const { return static_cast<int32_t>(options_.members.size()); }
  int32_t index() const { return options_.index; }

  // Memory that messages go from and come to. The record of a region stays
  // until ForgetRegions(), after which nothing is read or written any more.
  class Region;
  absl::StatusOr<Region*> RegionOf(void* data, int64_t num_bytes);

  void ForgetRegions();

  // Starts a message of [offset, offset + num_bytes) of the region; zero bytes
  // are no message.
  absl::Status StartSend(Region* region, int32_t to, int64_t offset,
                         int64_t num_bytes);
  absl::Status StartReceive(Region* region, int32_t from, int64_t offset,
                            int64_t num_bytes);
  // Waits for `count` of the region's started messages to be done.
  absl::Status WaitSends(Region* region, int32_t count);
  absl::Status WaitReceives(Region* region, int32_t count);

  // Thread-safe; peers see this member as gone.
  void Abort();

 private:
  class Context;

  // "3", or "3 (node2)" if its host is known.
  std::string NameOf(Rank rank) const;
  std::string AddressKey(int32_t index) const;
  absl::Status PublishAddresses();
  absl::StatusOr<std::string> WaitForAddress(int32_t peer, absl::Time deadline);
  absl::Status ConnectPeers(const std::vector<std::string>& addresses);
  // Runs `body`, turning exceptions into Status; the first error stays.
  template <typename Body>
  absl::Status Guard(const char* what, Body body);

  const Options options_;
  const std::string name_;  // "tensor group (ranks 0, 1; channel 0)".
  std::shared_ptr<Context> context_;
  std::atomic<bool> aborted_{false};

  std::mutex mutex_;     // Guards regions_ and closing against Abort().
  absl::Status broken_;  // The first error: messages are out of step after it.
  bool pairs_exist_ = false;
  std::map<std::pair<void*, int64_t>, std::unique_ptr<Region>> regions_;
};

// The device all meshes of a process share: one event loop thread. Returns
// InvalidArgument if no interface has `host_address`.
absl::StatusOr<std::shared_ptr<gloo::transport::Device>> CreateGlooDevice(
    const std::string& host_address);

}  // namespace millrace

#endif  // MILLRACE_WORKER_COMMUNICATE_GLOO_MESH_H_

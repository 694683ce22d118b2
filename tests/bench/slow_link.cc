// A network link with a rate and a delay, for kernels without netem: two TAP
// devices, one in the network namespace of each of two processes, and this
// program between them, which hands on every packet when it is due.
//
//   slow_link PID_A NAME_A PID_B NAME_B MBIT DELAY_US
//
// Each direction carries MBIT Mbit/s and queues up to 200 ms; what exceeds that
// is dropped. A packet arrives DELAY_US after its last bit has left. Prints
// "up" once both devices are there, and runs until its input is closed. Packets
// may have 64 KiB, as those that network cards cut into pieces: set the
// devices' MTU to 65000, or this program takes a core at 1 Gbit/s.

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestQueue = std::chrono::milliseconds(200);
constexpr int kPacketsAtOnce = 32;

[[noreturn]] void Fail(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

// The device lives as long as its descriptor.
int MakeTap(const std::string& pid, const std::string& name) {
  const std::string path = "/proc/" + pid + "/ns/net";
  const int space = open(path.c_str(), O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0) Fail(path);
  close(space);
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) Fail("/dev/net/tun");
  ifreq request = {};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::snprintf(request.ifr_name, IFNAMSIZ, "%s", name.c_str());
  if (ioctl(fd, TUNSETIFF, &request) != 0) Fail(name);
  return fd;
}

// One direction of the link.
struct Direction {
  int from;
  int to;
  double bytes_per_s;
  Clock::duration delay;
  Clock::time_point free_at;  // When the last packet's last bit has left.
  struct Packet {
    Clock::time_point due;
    std::vector<char> bytes;
  };
  std::deque<Packet> packets;  // On their way, in order.

  void Take() {
    static std::array<char, 1 << 17> buffer;
    for (int i = 0; i < kPacketsAtOnce; ++i) {
      const ssize_t size = read(from, buffer.data(), buffer.size());
      if (size <= 0) return;
      const Clock::time_point now = Clock::now();
      if (free_at < now) free_at = now;
      if (free_at - now > kLongestQueue) continue;
      free_at += std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(static_cast<double>(size) /
                                        bytes_per_s));
      packets.push_back(
          {free_at + delay, {buffer.data(), buffer.data() + size}});
    }
  }

  void Give() {
    while (!packets.empty() && packets.front().due <= Clock::now()) {
      // A device that is full loses packets, as a card does.
      const auto& bytes = packets.front().bytes;
      const ssize_t written = write(to, bytes.data(), bytes.size());
      static_cast<void>(written);
      packets.pop_front();
    }
  }
};

}  // namespace

int main(int num_arguments, char** arguments) {
  if (num_arguments != 7) {
    std::fprintf(stderr,
                 "usage: slow_link PID_A NAME_A PID_B NAME_B MBIT DELAY_US\n");
    return 2;
  }
  const int a = MakeTap(arguments[1], arguments[2]);
  const int b = MakeTap(arguments[3], arguments[4]);
  const double bytes_per_s = std::atof(arguments[5]) * 1e6 / 8;
  const Clock::duration delay =
      std::chrono::microseconds(std::atol(arguments[6]));
  Direction directions[] = {
      {.from = a, .to = b, .bytes_per_s = bytes_per_s, .delay = delay},
      {.from = b, .to = a, .bytes_per_s = bytes_per_s, .delay = delay}};
  std::puts("up");
  std::fflush(stdout);
  while (true) {
    Clock::duration wait = std::chrono::seconds(1);
    for (const Direction& direction : directions) {
      if (direction.packets.empty()) continue;
      wait = std::min(wait, direction.packets.front().due - Clock::now());
    }
    const auto nanoseconds = std::max<int64_t>(
        0, std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count());
    const timespec timeout = {.tv_sec = nanoseconds / 1000000000,
                              .tv_nsec = nanoseconds % 1000000000};
    pollfd fds[] = {{.fd = a, .events = POLLIN},
                    {.fd = b, .events = POLLIN},
                    {.fd = STDIN_FILENO, .events = POLLIN}};
    ppoll(fds, 3, &timeout, nullptr);
    if (fds[2].revents != 0) return 0;
    for (Direction& direction : directions) {
      direction.Take();
      direction.Give();
    }
  }
}

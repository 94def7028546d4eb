#include "engine/client/discovery_client.hpp"

#include <time.h>
// After <time.h>, because it needs a type from there.
#include <linux/errqueue.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "engine/base/clock.hpp"
#include "engine/base/random.hpp"
#include "engine/base/sys.hpp"
#include "engine/control/discovery.hpp"
#include "engine/wire/discovery_message.hpp"

namespace sidestep::engine {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kFirstWait = 100 * kMillisecond;  // doubled with each question
constexpr size_t kAtOnce = 64;                       // sockets

/// One host that is asked. It has a socket of its own, so that what ICMP reports is about this
/// host.
class Asked {
 public:
  Asked(const Address& host, uint16_t port, const ClusterKey& key) noexcept : key_(key) {
    to_.sin6_family = AF_INET6;
    to_.sin6_port = htons(port);
    std::memcpy(&to_.sin6_addr, host.ip.data(), host.ip.size());
    DiscoveryHeader header;
    header.question = random_number();
    header.from = random_number() | 1;  // 0 stands for nobody
    message_ = {header, datagram::AskHost{host.ip}};
    key.sign(message_);
    open();
  }
  ~Asked() {
    if (fd_ >= 0) sys::close(fd_);
  }
  Asked(const Asked&) = delete;

  int fd() const noexcept { return fd_; }
  bool done() const noexcept { return done_; }
  uint64_t due() const noexcept { return due_; }
  const HostReply& reply() const noexcept { return reply_; }

  void ask(uint64_t now) noexcept {
    // Every other question comes from another port, which reaches another node in case the first
    // has been stopped.
    if (tries_ != 0 && tries_ % 2 == 0) {
      sys::close(fd_);
      open();
      if (done_) return;
    }
    ++tries_;
    due_ = now + wait_;
    wait_ *= 2;
    const long sent =
        sys::sendto(fd_, &message_, sizeof message_, MSG_NOSIGNAL | MSG_DONTWAIT, &to_, sizeof to_);
    // The kernel also reports an earlier question's error here: take_errors() recognizes it.
    if (sent < 0 && sent != -EAGAIN && !take_errors()) end_with(static_cast<int>(-sent));
  }

  void receive() {
    if (take_errors()) return;
    for (;;) {
      unsigned char data[2 * sizeof(DiscoveryMessage)];
      sockaddr_in6 from{};
      socklen_t length = sizeof from;
      const long size = sys::recvfrom(fd_, data, sizeof data, MSG_DONTWAIT, &from, &length);
      if (size == -EINTR) continue;
      if (size < 0) return;
      DiscoveryMessage answer;
      if (!Discovery::parse(data, static_cast<size_t>(size), answer) || !key_.verify(answer) ||
          answer.type() != DiscoveryType::host_reply ||
          answer.header.question != message_.header.question ||
          answer.header.to != message_.header.from || from.sin6_port != to_.sin6_port)
        continue;
      if (std::memcmp(&from.sin6_addr, &to_.sin6_addr, sizeof to_.sin6_addr) == 0) {
        reply_.kind = HostReply::Kind::answered;
        done_ = true;
        return;
      }
      reply_.kind = HostReply::Kind::elsewhere;
      if (const auto address = to_address(reinterpret_cast<const sockaddr*>(&from)))
        reply_.from = ip_text(*address);
    }
  }

 private:
  void open() noexcept {
    fd_ = sys::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) return end_with(-fd_);
    const int off = 0;
    const int on = 1;
    sys::setsockopt(fd_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    // Makes the kernel report ICMP errors although the socket is not connected.
    sys::setsockopt(fd_, IPPROTO_IPV6, IPV6_RECVERR, &on, sizeof on);
    sys::setsockopt(fd_, IPPROTO_IP, IP_RECVERR, &on, sizeof on);
  }

  void end_with(int error) noexcept {
    reply_.kind = error == ECONNREFUSED ? HostReply::Kind::refused : HostReply::Kind::unreachable;
    reply_.error = error;
    done_ = true;
  }

  /// True if an error has come back that ends the asking.
  bool take_errors() noexcept {
    char data[sizeof(DiscoveryMessage)];
    alignas(cmsghdr) char control[512];
    iovec part{data, sizeof data};
    for (;;) {
      msghdr header{};
      header.msg_iov = &part;
      header.msg_iovlen = 1;
      header.msg_control = control;
      header.msg_controllen = sizeof control;
      if (sys::recvmsg(fd_, &header, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return done_;
      for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr;
           item = CMSG_NXTHDR(&header, item)) {
        const bool told = (item->cmsg_level == IPPROTO_IP && item->cmsg_type == IP_RECVERR) ||
                          (item->cmsg_level == IPPROTO_IPV6 && item->cmsg_type == IPV6_RECVERR);
        if (!told) continue;
        note_error(CMSG_DATA(item), item->cmsg_len - CMSG_LEN(0));
      }
    }
  }

  /// `data`: a sock_extended_err, followed by the address of the sender of the ICMP message.
  void note_error(const void* data, size_t size) noexcept {
    struct {
      sock_extended_err error;
      sockaddr_in6 offender;
    } told{};
    std::memcpy(&told, data, std::min(size, sizeof told));
    if (told.error.ee_errno == 0 || told.error.ee_errno == EMSGSIZE) return;
    end_with(static_cast<int>(told.error.ee_errno));
    const auto who = to_address(reinterpret_cast<const sockaddr*>(&told.offender));
    if (who && std::memcmp(who->ip.data(), &to_.sin6_addr, who->ip.size()) != 0)
      reply_.from = ip_text(*who);
  }

  const ClusterKey& key_;
  int fd_ = -1;
  sockaddr_in6 to_{};
  DiscoveryMessage message_;
  HostReply reply_;
  uint64_t due_ = 0;
  uint64_t wait_ = kFirstWait;
  unsigned tries_ = 0;
  bool done_ = false;
};

void ask_some(std::span<const Address> hosts, uint16_t port, const ClusterKey& key, int timeout_ms,
              std::vector<HostReply>& replies) {
  std::vector<std::optional<Asked>> asked(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i) asked[i].emplace(hosts[i], port, key);
  const uint64_t end = now_ns() + static_cast<uint64_t>(timeout_ms) * kMillisecond;
  for (uint64_t now = now_ns(); now < end; now = now_ns()) {
    std::vector<pollfd> waiting;
    std::vector<Asked*> who;
    uint64_t next = end;
    for (std::optional<Asked>& host : asked) {
      if (!host->done() && host->due() <= now) host->ask(now);
      if (host->done()) continue;
      next = std::min(next, host->due());
      waiting.push_back({host->fd(), POLLIN, 0});
      who.push_back(&*host);
    }
    if (waiting.empty()) break;
    const auto wait = static_cast<long>(next > now ? next - now : 0);
    const timespec limit{wait / 1'000'000'000, wait % 1'000'000'000};
    if (sys::ppoll(waiting.data(), waiting.size(), &limit, nullptr) <= 0) continue;
    for (size_t i = 0; i < waiting.size(); ++i)
      if (waiting[i].revents != 0) who[i]->receive();
  }
  for (const std::optional<Asked>& host : asked) replies.push_back(host->reply());
}

}  // namespace

std::vector<HostReply> ask_hosts(std::span<const Address> hosts, uint16_t port,
                                 const ClusterKey& key, int timeout_ms) {
  std::vector<HostReply> replies;
  while (!hosts.empty()) {
    const size_t count = std::min(hosts.size(), kAtOnce);
    ask_some(hosts.first(count), port, key, timeout_ms, replies);
    hosts = hosts.subspan(count);
  }
  return replies;
}

}  // namespace sidestep::engine

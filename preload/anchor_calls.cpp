#include "preload/anchor_calls.hpp"

#include <sys/socket.h>

#include "engine/base/iovec.hpp"
#include "engine/base/sys.hpp"
#include "engine/node/node.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

void help_streams_to_move() noexcept {
  engine::Node* node = engine::Node::running();
  if (node != nullptr && node->progress().attendance().expects_moves()) node->progress().poll();
}

long anchor_call(bool receiving, int fd, const iovec* vector, int count, size_t offset,
                 size_t limit, int flags) noexcept {
  constexpr int kParts = 64;
  iovec parts[kParts];
  int used = 0;
  size_t left = limit;
  engine::for_pieces(vector, count, offset, limit, [&](std::byte* data, size_t size) {
    if (used < kParts) {
      parts[used++] = {data, size};
      left -= size;
    }
  });
  if (used == 1) {  // this costs the kernel less
    const auto [data, size] = parts[0];
    return receiving ? sys::recvfrom(fd, data, size, flags | MSG_DONTWAIT, nullptr, nullptr)
                     : sys::sendto(fd, data, size, flags | MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(used);
  return receiving ? sys::recvmsg(fd, &message, flags | MSG_DONTWAIT)
                   : sys::sendmsg(fd, &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace sidestep::preload

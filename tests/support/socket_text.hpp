#pragma once
/// Sends and receives short texts through a tracked socket without blocking.
#include <string>

#include "tests/support/bound_pair.hpp"

namespace sidestep::tests {

inline ssize_t send(preload::Socket& socket, const std::string& text) {
  const iovec part{const_cast<char*>(text.data()), text.size()};
  return socket.transmit(&part, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

inline std::string receive(preload::Socket& socket, size_t most = 4096, int flags = 0) {
  std::string text(most, '\0');
  const iovec part{text.data(), text.size()};
  const ssize_t count = socket.receive(&part, 1, flags | MSG_DONTWAIT);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

/// Receives `size` bytes in whatever pieces they arrive.
inline std::string receive_all(preload::Socket& socket, size_t size) {
  std::string text;
  eventually([&] {
    text += receive(socket, size - text.size());
    return text.size() == size;
  });
  return text;
}

inline bool is_at_end(preload::Socket& socket) {
  char byte = 0;
  const iovec part{&byte, 1};
  return socket.receive(&part, 1, MSG_DONTWAIT) == 0;
}

}  // namespace sidestep::tests

// Sends what another process of the user may send over a control link, to this process's own node.
// The input is a sequence of messages: each has a byte that says how to fill the header, followed
// by the rest of the message.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"
#include "engine/control/control_link.hpp"
#include "engine/control/node_names.hpp"
#include "engine/node/node.hpp"

using namespace sidestep;
using namespace sidestep::engine;

namespace {
constexpr uint16_t kTypes = static_cast<uint16_t>(ControlType::path_ok) + 2;  // one is no type
}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  log_open(LogLevel::error, "/dev/null");
  return Node::start(config::Config{}) != nullptr ? 0 : 1;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int link = NodeNames().open_link(Node::running()->nid());
  if (link < 0) std::abort();
  const int event = eventfd(0, EFD_CLOEXEC);
  while (size > 1) {
    const uint8_t how = *data++;
    --size;
    ControlMessage message;
    const size_t length = std::min(size, sizeof message);
    auto* bytes = reinterpret_cast<uint8_t*>(&message);
    std::copy_n(data, length, bytes);
    data += length;
    size -= length;
    ControlHeader& header = message.header;
    if ((how & 1) == 0) header.magic = ControlHeader::kMagic;
    if ((how & 2) == 0) header.version = kProtocolVersion;
    if ((how & 4) == 0) header.type = header.type % kTypes;
    if ((how & 0xc0) == 0xc0 || ControlMessage::size_of(header.type) == 0) {
      if (sys::sendto(link, bytes, length, MSG_NOSIGNAL, nullptr, 0) < 0) break;
    } else {
      const int fd = (how & 8) != 0 ? event : -1;
      if (send_message(link, message, fd, (how & 16) != 0 ? fd : -1) < 0) break;
    }
  }
  // The node has read everything once it answers, or has hung up.
  send_message(link, control::Status{});
  for (bool waiting = true; waiting;) {
    pollfd fd{link, POLLIN, 0};
    if (sys::ppoll(&fd, 1, nullptr, nullptr) < 0) break;
    Received received;
    const int result = receive_message(link, received);
    waiting = result == 1 && received.message.type() != ControlType::status_reply;
    if (result == 1) received.close_fds();
  }
  close(event);
  private_fd_close(link);
  return 0;
}

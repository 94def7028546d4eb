// Fuzzes work requests from a peer's memory, for a stream that is bound. Whatever they hold, the
// dispatcher must read only inside them, and must give every buffer back.
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/connection/connection.hpp"
#include "engine/progress/dispatch.hpp"
#include "tests/support/bound_pair.hpp"
#include "tests/support/fake_endpoint.hpp"

using namespace sidestep;
using namespace sidestep::engine;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("SIDESTEP_LOG_FILE", "/dev/null", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > kMaxWorkRequest) return 0;
  tests::FakeEndpoint fake;
  // The buffer is exactly as long as the input, so that reading a byte too far is detected. Headers
  // whose stream is not a multiple of 4 get the ids of the bound stream, which no input could
  // guess.
  std::vector<std::byte> bytes(size);
  if (size != 0) std::memcpy(bytes.data(), data, size);
  RecvBuffer buffers[2];
  size_t used = 0;
  {
    const tests::BoundPair pair;
    Stream& stream = pair.stream(0);
    for (size_t at = 0; at + sizeof(FragmentHeader) <= size;) {
      FragmentHeader header;
      std::memcpy(&header, bytes.data() + at, sizeof header);
      if (header.stream % 4 != 0) {
        header.stream = stream.id();
        header.generation = stream.generation();
        std::memcpy(bytes.data() + at, &header, sizeof header);
      }
      if (header.length > kMaxFragmentPayload) break;
      at += fragment_size(header.length);
    }
    // Delivers one piece, or two as a device that scatters does.
    const size_t cut = size >= 2 * kOrbGrain && (data[size - 1] & 1) != 0
                           ? data[size - 1] % (size / kOrbGrain) * kOrbGrain
                           : 0;
    Connection& connection = *stream.connection();
    Node& node = *Node::running();
    Counter fragments;
    Dispatcher dispatcher(node.streams().table(), fragments);
    node.progress().recv_lock().lock();
    for (const auto& [from, to] : {std::pair{size_t{0}, cut}, std::pair{cut, size}}) {
      if (from == to && to != size) continue;
      RecvBuffer& buffer = buffers[used++];
      buffer.endpoint = &fake;
      buffer.references = RecvBuffer::kPolled;
      dispatcher.dispatch({&connection.endpoint(), bytes.data() + from,
                           static_cast<uint32_t>(to - from), 0, &buffer, to != size, nullptr});
    }
    dispatcher.notify();
    node.progress().recv_lock().unlock();
    char text[256];
    const iovec part{text, sizeof text};
    pair.socket(0).receive(&part, 1, MSG_DONTWAIT | MSG_PEEK);
    pair.socket(0).receive(&part, 1, MSG_DONTWAIT);
    node.streams().lose_connection(connection, "the run is over", PeerProcess::may_live);
  }
  if (buffers[0].references != 0 || buffers[1].references != 0 || fake.released != used)
    std::abort();
  return 0;
}

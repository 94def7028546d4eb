// Plays a peer that writes anything into its own shared memory: descriptors and control words.
#include <cstdlib>
#include <cstring>
#include <span>

#include "engine/base/log.hpp"
#include "tests/support/shm_channel.hpp"

using namespace sidestep::engine;
using namespace sidestep::engine::shm;
using sidestep::tests::HostileChannel;
using sidestep::tests::kChannelOrb;

namespace {

template <typename T>
T take(std::span<const uint8_t>& input) {
  T value{};
  const size_t size = std::min(sizeof value, input.size());
  if (size != 0) std::memcpy(&value, input.data(), size);
  input = input.subspan(size);
  return value;
}

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  log_open(LogLevel::error, "/dev/null");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const uint8_t> input(data, size);
  HostileChannel channel;
  uint64_t number = 0;
  uint64_t posted = 0;
  RecvCompletion last{};
  while (!input.empty()) {
    switch (take<uint8_t>(input) % 8) {
      case 0:
        channel.publish(number++, take<uint32_t>(input));
        break;
      case 1:
        channel.publish(number++, take<uint16_t>(input) & ~31U);
        break;
      case 2: {
        Descriptor& descriptor = channel.peer.descriptors()[take<uint16_t>(input) % kDescriptors];
        descriptor.sequence.store(take<uint64_t>(input));
        descriptor.length.store(take<uint32_t>(input));
        break;
      }
      case 3:
        channel.peer.control().released_position.store(take<uint64_t>(input));
        break;
      case 4:
        channel.peer.control().released_count.store(take<uint64_t>(input));
        break;
      case 5: {
        channel.peer.control().armed.store(take<uint32_t>(input));
        channel.peer.control().want_completions.store(take<uint32_t>(input));
        channel.peer.control().cpu.store(take<int32_t>(input));
        channel.endpoint->ring_if_parked();
        const auto stream = take<uint32_t>(input);
        channel.peer.nap(stream).slept.store(take<uint32_t>(input));
        channel.peer.nap(stream).rung.store(take<uint32_t>(input));
        channel.endpoint->wake_readers({&stream, 1});
        channel.endpoint->nap(stream);
        break;
      }
      case 6: {
        const SendRequest request{posted, 32, 0};
        if (channel.endpoint->post_send({&request, 1}) == 1) posted += 32;
        require(channel.endpoint->completed() <= posted);
        break;
      }
      case 7: {
        RecvCompletion completions[4];
        const size_t count = channel.device->poll_recv(0, completions);
        for (size_t i = 0; i < count; ++i) {
          unsigned sum = 0;
          for (uint32_t at = 0; at < completions[i].length; at += 32)
            sum += std::to_integer<unsigned>(completions[i].data[at]);
          require(sum == 0);  // all of it is mapped and belongs to the peer's empty ring
          if (last.buffer != nullptr) last.buffer->drop(RecvBuffer::kPolled);
          last = completions[i];  // keeps one for a while
        }
        break;
      }
    }
  }
  return 0;
}

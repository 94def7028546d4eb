#pragma once
/// The command line of pair as data: what an end does.
#include <cstddef>
#include <cstdint>
#include <string>

namespace pair {

enum class Mode { kBlock, kPoll, kSelect, kEpollLevel, kEpollEdge, kEpollOneshot };
/// kRaw makes system calls that no library sees.
enum class Io { kMixed, kRead, kSend, kVector, kMessage, kRaw };

struct Options {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  uint32_t connections = 1;
  uint32_t threads = 1;
  uint64_t bytes_up = 64 << 20;
  uint64_t bytes_down = 64 << 20;
  uint64_t seed = 1;
  size_t max_size = 1 << 20;
  unsigned timeout = 120;
  Mode mode = Mode::kBlock;
  Io io = Io::kMixed;
};

}  // namespace pair

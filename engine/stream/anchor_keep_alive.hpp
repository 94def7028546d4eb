#pragma once
/// The kernel's keepalive on an anchor that carries nothing (anchor_keep_alive.cpp).
#include <optional>

namespace sidestep::engine {

class Stream;

class AnchorKeepAlive {
 public:
  explicit AnchorKeepAlive(Stream& stream) noexcept : stream_(stream) {}
  AnchorKeepAlive(const AnchorKeepAlive&) = delete;

  /// True for options that are set here where the program has not set them. The program's own
  /// values are set under Receiver::mutex(), after end_locked().
  static bool concerns(int level, int name) noexcept;
  /// Has the kernel keep the anchor alive, if the engine carries the stream. Under
  /// Receiver::mutex(), like the next.
  void begin_locked(int seconds) noexcept;
  void end_locked() noexcept;
  /// The value that the program has set, if the kernel has something else. Any thread.
  std::optional<int> hidden(int level, int name) noexcept;

 private:
  Stream& stream_;
  struct Kept {
    bool on = false;
    int idle = 0, interval = 0, count = 0;  // the program's values
  } kept_;
};

}  // namespace sidestep::engine

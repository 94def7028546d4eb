#pragma once
/// Decides how long a call waits for what peers have to do. The call has one deadline in all,
/// sleeps meanwhile, and does not wait for a process that cannot answer (SIGSTOP, a debugger, a
/// paused container).
///
/// A call does wait for a peer that is only slow because it has no processor. The kernel says of
/// such a process that it runs. A peer that was asked and sleeps all the same is held in a way that
/// its state does not show (a frozen cgroup). Once a peer was found not to answer, later calls do
/// not wait for it either, as long as nothing has come from it and its state is unchanged.
#include <cstdint>

namespace sidestep::engine {

class Connection;

class Patience {
 public:
  explicit Patience(uint64_t nanoseconds) noexcept;

  /// Called between two looks at what is waited for: sleeps, at first for less than a wake-up
  /// takes. When the time is up, returns false and does not sleep.
  bool pause() noexcept;
  /// What the call waits for: an answer from the peer's engine, which never sleeps over one, or
  /// something that the peer's program has to do.
  enum class Awaits : uint8_t { engine, program };
  /// True if it is of no use to wait for the peer of this connection. Called while the caller waits
  /// for it.
  bool is_vain(Connection& connection, Awaits what) noexcept;
  bool is_over() const noexcept;

 private:
  const uint64_t start_;
  const uint64_t limit_;
  unsigned rounds_ = 0;
};

}  // namespace sidestep::engine

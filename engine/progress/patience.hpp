#pragma once
/// How long a call waits for what peers have to do: it has one deadline in all, sleeps meanwhile,
/// and does not wait for a process that can't answer (SIGSTOP, a debugger, a container that is
/// paused).
///
/// A peer that is only slow, because it has no processor, is waited for. It runs, as the kernel
/// calls that; one that was asked, and sleeps all the same, is held in a way that its state does
/// not tell (a frozen cgroup). Whoever was found not to answer is not waited for by later calls
/// either, as long as nothing has come from it and it is as it was.
#include <cstdint>

namespace sidestep::engine {

class Connection;

class Patience {
 public:
  explicit Patience(uint64_t nanoseconds) noexcept;

  /// Between two looks at what is waited for: sleeps, at first for less than a wake-up takes.
  /// False, and does not, when the time is up.
  bool pause() noexcept;
  /// What is waited for: an answer of the peer's engine, which never sleeps over one, or something
  /// that its program has to do.
  enum class Awaits : uint8_t { engine, program };
  /// It is of no use to wait for the peer of this connection. To be asked while it is waited for.
  bool is_vain(Connection& connection, Awaits what) noexcept;
  bool is_over() const noexcept;

 private:
  const uint64_t start_;
  const uint64_t limit_;
  unsigned rounds_ = 0;
};

}  // namespace sidestep::engine

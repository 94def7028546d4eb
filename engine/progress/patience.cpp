#include "engine/progress/patience.hpp"

#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "engine/base/process_state.hpp"
#include "engine/connection/connection.hpp"
#include "engine/progress/tick.hpp"

namespace sidestep::engine {

namespace {
constexpr uint64_t kMillisecond = 1'000'000;
/// Most answers take less time; nobody's state is looked at before.
constexpr uint64_t kAsks = 5 * kMillisecond;
constexpr uint64_t kBetweenLooks = 2 * kMillisecond;
/// Looks in a row that find it stopped: a tracer stops a process at each system call for a moment.
constexpr unsigned kStopped = 3;
/// Peers do not ring the doorbell while a process looks by itself now and then
/// (ProgressThread::run).
constexpr uint64_t kAsleep = 250 * kMillisecond;
static_assert(kAsleep > kLongestTick * kMillisecond);
/// The same for a peer that has been found silent before.
constexpr uint64_t kAsleepAgain = 20 * kMillisecond;
}  // namespace

Patience::Patience(uint64_t nanoseconds) noexcept
    : start_(now_ns()), limit_(start_ + nanoseconds) {}

bool Patience::is_over() const noexcept {
  return now_ns() >= limit_;
}

bool Patience::pause() noexcept {
  const uint64_t now = now_ns();
  if (now >= limit_) return false;
  constexpr unsigned kYields = 50;
  if (rounds_ < kYields) {
    ++rounds_;
    sys::sched_yield();
    return true;
  }
  // A sixteenth of the time waited so far: nobody is late by more than that.
  const uint64_t length = std::clamp<uint64_t>((now - start_) / 16, 50'000, 2 * kMillisecond);
  const timespec moment{0, static_cast<long>(std::min(length, limit_ - now))};
  sys::ppoll(nullptr, 0, &moment, nullptr);
  return true;
}

bool Patience::is_vain(Connection& connection, Awaits what) noexcept {
  const PeerName& peer = connection.peer();
  if (peer.is_remote() || peer.pid <= 0 || peer.pid == getpid()) return false;
  Silence& silence = connection.silence;
  const std::lock_guard guard(silence.lock);
  const uint64_t now = now_ns();
  const uint64_t received = connection.received.get();
  if (silence.received != received) {
    silence.received = received;
    silence.found = false;
    silence.asked_at = 0;
  }
  if (silence.asked_at < start_) {
    silence.asked_at = silence.found ? start_ : std::max(now, start_);
    silence.looked_at = 0;
    silence.asleep_since = 0;
    silence.stopped = 0;
  }
  if (!silence.found && now - silence.asked_at < kAsks) return false;
  const uint64_t last = silence.looked_at;
  const bool was_vain = silence.found && last != 0 && silence.stopped != 0;
  if (last != 0 && now - last < kBetweenLooks) return was_vain;
  silence.looked_at = now;
  switch (state_of_process(peer.pid)) {
    case ProcessState::stopped:
      ++silence.stopped;
      silence.asleep_since = 0;
      if (silence.found || silence.stopped >= kStopped) {
        silence.found = true;
        return true;
      }
      return false;
    case ProcessState::sleeps:
      silence.stopped = 0;
      if (what == Awaits::program) return false;
      if (silence.asleep_since == 0) silence.asleep_since = now;
      if (now - silence.asleep_since < (silence.found ? kAsleepAgain : kAsleep)) return false;
      silence.found = true;
      silence.stopped = 1;  // as good as stopped, for the moments until it is looked at again
      return true;
    case ProcessState::runs:
    case ProcessState::unknown:
      silence.stopped = 0;
      silence.asleep_since = 0;
      return false;
  }
  return false;
}

}  // namespace sidestep::engine

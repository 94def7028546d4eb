#include "engine/stream/clearance.hpp"

#include "engine/stream/stream.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {

std::atomic<std::optional<bool> (*)() noexcept> Clearance::may_wait_unseen{nullptr};
std::atomic<bool> Clearance::waits_unseen{false};

bool Clearance::is_given() const noexcept {
  return cleared_.load(std::memory_order_seq_cst) &&
         (seen_waiting_.load(std::memory_order_seq_cst) ||
          !waits_unseen.load(std::memory_order_seq_cst));
}

void Clearance::ask() noexcept {
  // seq_cst: admits() has set what is wanted before this, and bind() has set the phase. One of the
  // two gets here with both set.
  if (!stream_.is_decided() || asked_.exchange(true, std::memory_order_seq_cst)) return;
  stream_.services().look_for_waiters(stream_);
}

bool Clearance::admits(Use use) noexcept {
  if (is_given()) return true;
  wanted_.fetch_or(static_cast<uint32_t>(use), std::memory_order_seq_cst);
  if (may_wait_unseen.load(std::memory_order_acquire) == nullptr)
    cleared_.store(true, std::memory_order_seq_cst);
  if (is_given()) return true;
  ask();
  return false;
}

void Clearance::give() noexcept {
  // seq_cst: either admits() sees this store, or this function sees what is wanted.
  cleared_.store(true, std::memory_order_seq_cst);
  const uint32_t wanted = wanted_.load(std::memory_order_seq_cst);
  if ((wanted & static_cast<uint32_t>(Use::reading)) != 0) stream_.receiver().begin_use();
  if ((wanted & static_cast<uint32_t>(Use::writing)) != 0) stream_.sender().begin_use();
}

}  // namespace sidestep::engine

#include "preload/thread_sleep.hpp"

namespace sidestep::preload {

void ThreadSleep::prepare(bool asks_kernel) noexcept {
  using Way = engine::Sleeper::Way;
  // A handler that the mask lets in for the sleep only must find the thread inside the kernel.
  by_word_ = mask_ == nullptr && !asks_kernel && bells().empty();
  // A thread that sleeps on a word is woken by its handlers.
  if (!by_word_ && !gate_) gate_.emplace(mask_);
  sleeper_.prepare(by_word_ ? Way::word : bells().empty() ? Way::poll : Way::doorbells);
  if (answered_) parking_->rearm();
  naps_ = by_word_ && !napped_.empty();
  for (size_t i = 0; i < napped_.size(); ++i) {
    const Napped& one = napped_[i];
    if (naps_) {
      words_[i] = engine::prepare_nap(*progress_, *one.waker, *one.stream, *one.waiter);
    } else {
      one.waiter->nap({});
    }
  }
}

int ThreadSleep::wait(std::span<pollfd> fds, const timespec* limit) noexcept {
  if (naps_) return sleeper_.nap({words_, napped_.size()}, limit);
  if (by_word_) return sleeper_.sleep(limit);
  std::copy(bells().begin(), bells().end(), bells_in(fds).begin());
  const size_t alarm = fds.size() - kOwnFds;
  return sleeper_.poll(fds.first(alarm + 1 + bells().size()), alarm, limit, gate_->mask());
}

bool ThreadSleep::kernel_has_found(std::span<const pollfd> fds) const noexcept {
  const auto asked = fds.first(fds.size() - kOwnFds);
  return !by_word_ &&
         std::any_of(asked.begin(), asked.end(), [](const pollfd& fd) { return fd.revents != 0; });
}

}  // namespace sidestep::preload

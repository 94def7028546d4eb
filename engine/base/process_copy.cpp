#include "engine/base/process_copy.hpp"

#include <linux/kcmp.h>

#include "engine/base/sys.hpp"

namespace sidestep::engine {

constinit WipedPage wiped_page;
constinit std::atomic<bool> watches_for_copies{false};

void watch_for_copies() noexcept {
  if (sys::call(SYS_madvise, &wiped_page, sizeof wiped_page, MADV_WIPEONFORK) != 0) return;
  wiped_page.state.store(WipedPage::kOriginal, std::memory_order_relaxed);
  watches_for_copies.store(true, std::memory_order_relaxed);
}

void forget_that_it_is_copy() noexcept {
  watches_for_copies.store(false, std::memory_order_relaxed);
}

void settle_copy_by(void (*settle)() noexcept) noexcept {
  uint32_t wiped = WipedPage::kWiped;
  if (wiped_page.state.compare_exchange_strong(wiped, WipedPage::kBeingSettled,
                                               std::memory_order_relaxed)) {
    settle();
    // release pairs with the acquire below.
    watches_for_copies.store(false, std::memory_order_release);
    return;
  }
  while (watches_for_copies.load(std::memory_order_acquire) && is_copy()) sys::sched_yield();
}

bool may_share_descriptors_with(int pid) noexcept {
  const long own = sys::call(SYS_getpid);
  return own == pid || sys::call(SYS_kcmp, own, pid, KCMP_FILES, 0, 0) <= 0;
}

}  // namespace sidestep::engine

#pragma once
/// Whether this process is a copy of one that has an engine, made past the library: by clone(2) as
/// a bare instruction, or by a fork inside the C library. Such a copy has the streams, locks and
/// descriptors of an engine whose threads did not come along.
///
/// A page that the kernel hands to a copy as zeros (MADV_WIPEONFORK) tells the two apart, at the
/// cost of one load. A child of vfork() shares the memory and is no copy.
#include <atomic>
#include <cstdint>

namespace sidestep::engine {

struct alignas(4096) WipedPage {
  static constexpr uint32_t kWiped = 0;
  static constexpr uint32_t kOriginal = 1;
  static constexpr uint32_t kBeingSettled = 2;
  std::atomic<uint32_t> state{kWiped};
  /// For HazardGuard, which looks more closely if this is false.
  std::atomic<bool> has_membarrier{false};
};
extern constinit WipedPage wiped_page;
extern constinit std::atomic<bool> watches_for_copies;

/// Makes copies of this process recognizable from now on. Does nothing on kernels before 4.14.
void watch_for_copies() noexcept;
/// Called in the child of a fork, once the child has been set up as one.
void forget_that_it_is_copy() noexcept;

/// relaxed: whoever copies a process does not run beside this code in the copy.
inline bool is_copy() noexcept {
  return watches_for_copies.load(std::memory_order_relaxed) &&
         wiped_page.state.load(std::memory_order_relaxed) != WipedPage::kOriginal;
}

/// Called in a copy: runs `settle` in one thread only, and returns when that is done.
void settle_copy_by(void (*settle)() noexcept) noexcept;

/// True if process `pid` and the caller share one descriptor table, or if that cannot be
/// determined.
bool may_share_descriptors_with(int pid) noexcept;

}  // namespace sidestep::engine

#pragma once
/// Whether this process is a copy of one that has an engine, made past the library: by clone(2) as
/// an instruction, or a fork inside of the C library. Its streams, locks and descriptors are those
/// of an engine whose threads did not come along.
///
/// A page that the kernel hands to a copy as zeros (MADV_WIPEONFORK) tells, for one load. A child
/// of vfork(), which shares the memory, is no copy.
#include <atomic>
#include <cstdint>

namespace sidestep::engine {

struct alignas(4096) WipedPage {
  static constexpr uint32_t kWiped = 0;
  static constexpr uint32_t kOriginal = 1;
  static constexpr uint32_t kBeingSettled = 2;
  std::atomic<uint32_t> state{kWiped};
  /// Of Visit, which takes a way that looks closer where it is false.
  std::atomic<bool> has_membarrier{false};
};
extern constinit WipedPage wiped_page;
extern constinit std::atomic<bool> watches_for_copies;

/// From now on copies of this process are known. Nothing happens on kernels before 4.14.
void watch_for_copies() noexcept;
/// In the child of a fork, which has been made what such a child is.
void forget_that_it_is_copy() noexcept;

/// relaxed: who copies a process does not run beside it in the copy.
inline bool is_copy() noexcept {
  return watches_for_copies.load(std::memory_order_relaxed) &&
         wiped_page.state.load(std::memory_order_relaxed) != WipedPage::kOriginal;
}

/// In a copy: calls `settle`, in one thread, and returns when that is done.
void settle_copy_by(void (*settle)() noexcept) noexcept;

/// Whether the process with this number and the caller have one table of descriptors, or that can't
/// be known.
bool may_share_descriptors_with(int pid) noexcept;

}  // namespace sidestep::engine

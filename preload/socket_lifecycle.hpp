#pragma once
/// What becomes of all tracked sockets together: before fork() and exec, in a child, when the
/// engine ends, and when the process ends.
#include <atomic>

#include "engine/base/reason.hpp"

namespace sidestep::preload {

class AllSockets {
 public:
  /// Called before fork and exec. Brings every stream down, and puts unread bytes of the engine
  /// where parent and child share them.
  static void bring_all_down(engine::Reason reason) noexcept;
  /// Called before exec. Returns false if a standard stream of the next program would lack bytes
  /// because only this process can read them. For any other descriptor, which that program probably
  /// does not know of, this is only logged.
  static bool can_be_inherited() noexcept;
  /// If `closes_descriptors` is false, the library's own descriptors stay open, because they are
  /// the parent's as well. Returns true if a stream is_torn().
  static bool after_fork_in_child(bool closes_descriptors = true) noexcept;
  /// Called when the engine is about to end and the streams have been brought down. Stops tracking
  /// the kernel's streams; a thread that sleeps in a call on one of them begins the call anew.
  /// Streams that are lost with the engine end with ECONNRESET.
  static void stop_tracking() noexcept;
  /// Called when the process ends. The peers get an end of file, as they would from the kernel.
  static void finish_all() noexcept;
  /// True while some thread is in finish_all().
  static bool is_finishing() noexcept {
    // acquire pairs with the release stores in finish_all().
    return finishing_.load(std::memory_order_acquire);
  }

 private:
  static std::atomic<bool> finishing_;
};

}  // namespace sidestep::preload

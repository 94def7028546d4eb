#pragma once
/// Holds a tracked socket for the length of one step that does not wait, without a locked
/// instruction.
///
/// Counting references costs two locked instructions per call, which is a fifth of a small send. A
/// guard is a hazard pointer instead: the thread announces the socket with a plain store and looks
/// at the table once more. The thread that closes the last descriptor (the closer) first takes the
/// socket out of the table, then makes every running thread pass a barrier (membarrier(2), private
/// expedited), and waits until no thread announces the socket. Without membarrier the guard pays
/// for a barrier of its own.
///
///   guard:  announced = s; [compiler barrier] table[fd] == s ? go on : withdraw
///   closer: table[fd] = null; membarrier; wait until nobody announces s
///
/// A barrier in all threads costs more than a short connection can gain. Therefore a socket may be
/// held so only after it has been used while its stream was no longer undecided
/// (FdTable::admit_guards). Its table entry says so, and the closer of a socket with such an
/// entry waits.
///
/// The thread must not sleep under a guard, which must not outlive the step.
#include <atomic>

#include "engine/base/held_locks.hpp"
#include "engine/base/process_copy.hpp"
#include "preload/fd_table.hpp"

namespace sidestep::preload {

/// One for each thread that has ever had a guard; never freed, but reused by later threads.
struct HazardRecord {
  std::atomic<const Socket*> announced{nullptr};
  HazardRecord* next = nullptr;  // all records
  std::atomic<bool> in_use{true};
};

class HazardGuard {
 public:
  explicit HazardGuard(int fd) noexcept {
    Socket* socket = FdTable::peek_guardable(fd);
    if (socket == nullptr) [[likely]]
      return;
    announce(fd, socket);
  }
  ~HazardGuard() {
    if (socket_ != nullptr) withdraw();
  }
  HazardGuard(const HazardGuard&) = delete;
  explicit operator bool() const noexcept { return socket_ != nullptr; }
  Socket* operator->() const noexcept { return socket_; }

  /// Waits until no guard holds `socket`, which is no longer in the table.
  static void wait_for_end(const Socket& socket) noexcept;
  /// Called in the child: the guards of the parent's other threads will never end.
  static void forget_after_fork() noexcept;

 private:
  // A guard counts as a lock: a signal handler waits for its end.
  void announce(int fd, Socket* socket) noexcept {
    engine::enter_lock();
    not_cancelled_.enter(engine::held_locks.calls + engine::held_locks.count == 1);
    record_ = mine();
    if (record_ == nullptr || record_->announced.load(std::memory_order_relaxed) != nullptr) {
      engine::leave_lock();  // no memory, or this is a handler that could not wait
      return;
    }
    record_->announced.store(socket, std::memory_order_relaxed);
    if (engine::wiped_page.has_membarrier.load(std::memory_order_relaxed)) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else if (engine::is_copy()) {  // a SocketRef takes care of that case
      withdraw();
      return;
    } else {
      record_->announced.exchange(socket, std::memory_order_seq_cst);
    }
    if (FdTable::peek_guardable(fd) == socket) {
      socket_ = socket;
    } else {
      withdraw();
    }
  }
  void withdraw() noexcept {
    // release: everything that was done with the socket under the guard is done before the closer
    // goes on.
    record_->announced.store(nullptr, std::memory_order_release);
    engine::leave_lock();
  }
  static HazardRecord* mine() noexcept {
    return record_of_thread_ != nullptr ? record_of_thread_ : make_record();
  }
  static HazardRecord* make_record() noexcept;

  static constinit thread_local HazardRecord* record_of_thread_
      __attribute__((tls_model("initial-exec")));

  engine::NotCancelled not_cancelled_;
  Socket* socket_ = nullptr;
  HazardRecord* record_ = nullptr;
};

}  // namespace sidestep::preload

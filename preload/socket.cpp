#include "preload/socket.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/node/node.hpp"
#include "preload/event_set.hpp"
#include "preload/fd_table.hpp"
#include "preload/hazard_guard.hpp"
#include "preload/residue.hpp"
#include "preload/socket_pool.hpp"

namespace sidestep::preload {

using engine::Phase;
namespace sys = engine::sys;

// ---- references

bool Socket::try_ref() noexcept {
  int count = references_.load(std::memory_order_relaxed);
  while (count > 0)
    if (references_.compare_exchange_weak(count, count + 1, std::memory_order_acquire,
                                          std::memory_order_relaxed))
      return true;
  return false;
}

void Socket::unref() noexcept {
  // acq_rel: everything that other threads did with the socket is done before it is taken apart.
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) last_reference_gone();
}

void Socket::open(engine::Stream& stream, bool nonblocking) noexcept {
  stream_ = &stream;
  nonblocking_.store(nonblocking, std::memory_order_relaxed);
  descriptors_.store(1, std::memory_order_relaxed);
  in_use_.store(true, std::memory_order_relaxed);
  // release pairs with the acquire in try_ref(): the socket is complete.
  references_.store(1, std::memory_order_release);
}

bool Socket::says_the_rest() noexcept {
  engine::Node* const node = engine::Node::running();
  const uint64_t limit = engine::now_ns() + 1'000'000'000;
  const auto has_said = [this] {
    return stream_->phase() == Phase::kernel ? !sender().has_replay() : sender().has_told_end();
  };
  while (node != nullptr && !has_said() && engine::now_ns() < limit) {
    node->progress().poll();
    sys::sched_yield();
  }
  return has_said();
}

void Socket::last_reference_gone() noexcept {
  // relaxed: the thread that set it held a reference.
  if (expects_guards_.load(std::memory_order_relaxed)) HazardGuard::wait_for_end(*this);
  drop_memberships();  // of sets that it joined while its number was being closed
  engine::Node* node = engine::Node::running();
  engine::Stream& stream = *stream_;
  const auto end_own_parts = [this] {
    engine::private_fd_close(private_anchor_);
    Residue::release(residue_);
    SocketPool::give_back(*this);
  };
  // Most of a server's short connections end here, before anybody has asked for their other end.
  if (node != nullptr && !stream.is_detached() && node->streams().close_undecided(stream))
    return end_own_parts();
  // If the stream were joined to its peer after this, nobody would end it there.
  if (node != nullptr && !stream.is_bound() && !stream.is_kernels_for_good())
    node->streams().keep_on_kernel(stream);
  const End end = end_stream();
  int spare = -1;
  if (!end.marked) spare = engine::private_fd_duplicate(anchor());
  const bool whole = end.marked || spare >= 0 || says_the_rest();
  // As with unread bytes, a reset is better than an end that looks orderly.
  if (end.reset || !whole) {
    const linger now{1, 0};
    sys::setsockopt(anchor(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  if (stream.is_detached()) {
    delete &stream;
  } else if (node != nullptr) {
    node->streams().close(stream, spare);
  }
  end_own_parts();
}

// ---- descriptors

bool Socket::is_named_by(int fd) noexcept {
  struct stat own {};
  struct stat other {};
  bool told = false;
  {
    const engine::SideGuard guard(sender());  // for the anchor
    told = sys::fstat(anchor(), &own) == 0 && sys::fstat(fd, &other) == 0;
  }
  return told && own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

void Socket::add_fd() noexcept {
  references_.fetch_add(1, std::memory_order_relaxed);
  descriptors_.fetch_add(1, std::memory_order_relaxed);
}

int Socket::other_number(int fd) const noexcept {
  // Searches upward from `fd`, where the next number usually is, and then from the beginning.
  for (int number = FdTable::next(fd + 1); number >= 0; number = FdTable::next(number + 1))
    if (FdTable::peek(number) == this) return number;
  for (int number = FdTable::next(0); number >= 0 && number < fd;
       number = FdTable::next(number + 1))
    if (FdTable::peek(number) == this) return number;
  return -1;
}

void Socket::remove_fd(int fd) noexcept {
  // acq_rel: the thread that removes the last descriptor sees what was done with the others.
  const bool last = descriptors_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  // Done here and not with the last reference, which a guarded call may hold: the caller is about
  // to give the number back, and whatever another thread gets under it has memberships of its own.
  if (last) drop_memberships(fd);
  int expected = 1;
  if (last && references_.compare_exchange_strong(expected, 0, std::memory_order_acq_rel)) {
    last_reference_gone();  // nobody is inside: ends the stream before the caller closes the anchor
    return;
  }
  bool moves = false;
  {
    // Under the lock: a thread that closes the number found here has taken it out of the table
    // before it gets here.
    const std::lock_guard guard(fds_lock_);
    moves = anchor() == fd;
    if (moves) {
      // Calls that are inside, guarded ones too, go on with another descriptor of the same socket.
      // It is possible that none is in the table yet, or any more.
      int number = last ? -1 : other_number(fd);
      if (number < 0 && private_anchor_ < 0) private_anchor_ = engine::private_fd_duplicate(fd);
      if (number < 0) number = private_anchor_;
      move_anchor(number);
    }
  }
  if (moves)
    stream_->signal(engine::kReadable | engine::kWritable);  // sleepers still poll the old number
  unref();
}

void Socket::lose_fd(int fd) noexcept {
  bool moves = false;
  {
    const std::lock_guard guard(fds_lock_);
    moves = anchor() == fd;
    if (moves) move_anchor(other_number(fd));
  }
  if (moves) stream_->signal(engine::kReadable | engine::kWritable);
  remove_fd(fd);
}

void Socket::move_anchor(int fd) noexcept {
  // Under both locks, the anchor changes between two steps of calls that are inside:
  // none of them can meet the old number in its next life.
  const engine::SideGuard sending(sender());
  const engine::SideGuard receiving(receiver());
  stream_->set_anchor(fd);
}

Socket::Memberships Socket::take_memberships() noexcept {
  const std::lock_guard guard(fds_lock_);
  return std::exchange(sets_, {});
}

void Socket::drop_memberships(int closing) noexcept {
  for (const auto& [set, fd] : take_memberships())
    if (const auto alive = set.lock()) alive->drop(fd, *this, closing);
}

void Socket::leave_sets() noexcept {
  for (const auto& [set, fd] : take_memberships())
    if (const auto alive = set.lock()) alive->release(fd, *this);
}

bool Socket::join_set(const std::shared_ptr<EventSet>& set, int fd) noexcept {
  const std::lock_guard guard(fds_lock_);
  std::erase_if(sets_, [&](const auto& entry) {
    const auto known = entry.first.lock();
    return known == nullptr || (known == set && entry.second == fd);
  });
  try {
    sets_.emplace_back(set, fd);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace sidestep::preload

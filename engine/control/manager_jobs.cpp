#include "engine/control/manager_jobs.hpp"

#include <sys/epoll.h>

#include <mutex>
#include <new>

#include "engine/base/clock.hpp"
#include "engine/base/sys.hpp"

namespace sidestep::engine {

bool YoungStreams::add(const Young& one) noexcept {
  const std::lock_guard guard(lock_);
  const bool first = streams_.empty();
  try {
    streams_.push_back(one);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return first;
}

std::optional<YoungStreams::Young> YoungStreams::take(uint64_t limit) noexcept {
  const std::lock_guard guard(lock_);
  std::optional<Young> found;
  if (!streams_.empty() && streams_.front().due <= limit) {
    found = streams_.front();
    streams_.pop_front();
  }
  next_due_ = streams_.empty() ? 0 : streams_.front().due;
  return found;
}

void ManagerJobs::open(int epoll_fd, int writable) noexcept {
  // release pairs with the acquire in wake().
  writable_.store(writable, std::memory_order_relaxed);
  epoll_fd_.store(epoll_fd, std::memory_order_release);
}

void ManagerJobs::query(uint32_t stream, uint32_t generation) noexcept {
  post({.kind = Job::Kind::query, .stream = stream, .generation = generation});
}

void ManagerJobs::query_later(uint32_t stream, uint32_t generation) noexcept {
  if (unasked_.add({stream, generation, now_ns() + ask_after_})) wake();
}

void ManagerJobs::list_later(uint32_t stream, uint32_t generation) noexcept {
  if (unlisted_.add({stream, generation, now_ns() + ask_after_ / 2})) wake();
}

void ManagerJobs::look_for_waiters(uint32_t stream, uint32_t generation) noexcept {
  post({.kind = Job::Kind::look, .stream = stream, .generation = generation});
}

void ManagerJobs::tell(uint32_t stream, uint32_t generation) noexcept {
  post({.kind = Job::Kind::tell, .stream = stream, .generation = generation});
}

void ManagerJobs::report_broken(uint32_t connection, const Endpoint& endpoint) noexcept {
  post({.kind = Job::Kind::broken, .connection = connection, .endpoint = &endpoint});
}

void ManagerJobs::grow(Device& device) noexcept {
  post({.kind = Job::Kind::grow, .device = &device});
}

void ManagerJobs::sweep() noexcept {
  if (!sweep_wanted_.exchange(true, std::memory_order_relaxed)) post({.kind = Job::Kind::sweep});
}

void ManagerJobs::meet_other_hosts() noexcept {
  // relaxed: the job carries what the manager has to know.
  if (!talks_to_other_hosts() || meets_others_.load(std::memory_order_relaxed) ||
      meets_others_.exchange(true, std::memory_order_relaxed))
    return;
  post({.kind = Job::Kind::meet});
}

void ManagerJobs::post(const Job& job) noexcept {
  bool first = false;
  {
    const std::lock_guard guard(lock_);
    first = jobs_.empty();
    try {
      jobs_.push_back(job);
    } catch (const std::bad_alloc&) {
      // A query that is lost leaves its stream on the kernel.
    }
  }
  if (first) wake();
}

std::deque<ManagerJobs::Job> ManagerJobs::take() {
  std::deque<Job> jobs;
  const std::lock_guard guard(lock_);
  jobs.swap(jobs_);
  return jobs;
}

void ManagerJobs::wake() noexcept {
  // This needs no descriptor of its own: it waits once for one that is always ready, as an eventfd
  // is for writing. The kernel checks it now, and wakes the thread that waits for the epoll set.
  const int set = epoll_fd_.load(std::memory_order_acquire);
  epoll_event waking{};
  waking.events = EPOLLOUT | EPOLLONESHOT;
  waking.data.fd = writable_.load(std::memory_order_relaxed);
  if (set >= 0) sys::epoll_ctl(set, EPOLL_CTL_MOD, waking.data.fd, &waking);
}

}  // namespace sidestep::engine

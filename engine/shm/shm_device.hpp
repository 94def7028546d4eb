#pragma once
/// The same-host device: channels of shared memory between processes of one user (shm/layout.hpp).
///
/// The control links (control_link.hpp) set up a channel by passing the memfds and doorbells; this
/// file is what the engine then drives through device.hpp. A node connected to itself has one
/// channel whose two ends are the same memory.
#include <array>
#include <memory>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/lock.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/device/half_open.hpp"
#include "engine/shm/region.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine::shm {

class ShmDevice;

class ShmEndpoint final : public Endpoint {
 public:
  /// This side writes `outgoing`; `incoming` and the eventfd `doorbell` are the peer's.
  ShmEndpoint(Region outgoing, Region incoming, std::shared_ptr<const PrivateFd> doorbell);
  /// True if there was memory for all of it; otherwise the endpoint is of no use.
  bool is_whole() const noexcept { return buffers_ != nullptr; }

  std::span<std::byte> orb_memory() noexcept override { return outgoing_.orb(); }
  uint32_t max_request() const noexcept override { return kMaxWorkRequest; }
  size_t send_room() noexcept override;
  size_t post_send(std::span<const SendRequest> chain) noexcept override;
  void post_window(uint32_t) noexcept override {}  // the ring is the window
  void poke() noexcept override {}                 // the control link tells
  void ring_if_parked() noexcept override;
  bool wakes_readers() const noexcept override { return true; }
  Nap nap(uint32_t stream) noexcept override;
  bool has_rung(uint32_t stream, uint32_t value) const noexcept override;
  void wake_readers(std::span<const uint32_t> streams) noexcept override;
  void wake_all_readers() noexcept override;
  void use_reserve() noexcept override { reserve_.store(0, std::memory_order_relaxed); }
  bool is_flushed() noexcept override { return true; }  // the peer has the memory too
  void leave() noexcept override;
  bool peer_has_left() const noexcept override;
  bool has_arrived(uint64_t) noexcept override { return true; }
  uint64_t completed() noexcept override;
  void want_completions(bool wanted) noexcept override;
  bool may_have_received() const noexcept override;
  bool peer_wants_release() const noexcept override;
  uint64_t unreleased() const noexcept override;
  bool is_held_up(unsigned quarters) const noexcept override;
  void release(RecvBuffer& buffer) noexcept override;
  int peer_cpu() const noexcept override;
  void publish_cpu(int cpu) noexcept override;
  uint64_t peer_crowded_until() const noexcept override;
  void publish_crowded_until(uint64_t until) noexcept override;
  bool is_broken() const noexcept override { return broken_.load(std::memory_order_relaxed); }
  void stop() noexcept override {}  // what was not polled was not released

 private:
  friend class ShmDevice;
  friend class ShmHalfOpen;
  size_t poll(std::span<RecvCompletion> completions) noexcept;
  void publish_released() noexcept;
  /// Descriptors that have been polled and that the peer can't use again yet. A hint.
  uint64_t held_descriptors() const noexcept {
    return polled_count_.load(std::memory_order_relaxed) -
           outgoing_.control().released_count.load(std::memory_order_relaxed);
  }
  void fail(const char* what) noexcept;

  Region outgoing_;
  Region incoming_;
  const std::shared_ptr<const PrivateFd> doorbell_;
  std::atomic<bool> broken_{false};
  std::atomic<uint32_t> rung_epoch_{0};
  // The peer's NapWords::slept that this side last rang for. relaxed: ringing twice for one value
  // only wakes threads for nothing.
  std::array<std::atomic<uint32_t>, kNaps> rung_naps_{};
  char posted_edge_ = 0;  // aliased.hpp
  char released_edge_ = 0;

  // Sending, under the connection's post lock.
  alignas(64) uint64_t posted_count_ = 0;
  std::atomic<uint64_t> posted_position_{0};
  uint64_t reusable_count_ = 0;  // the last released_count seen
  // Descriptors kept back for the end, when a whole ring of bytes may have to go at once.
  std::atomic<uint32_t> reserve_;

  uint64_t polled_when_aged_ = 0;  // polled_count_, when its age was last looked at
  // Receiving. polled_*: written under the lane's lock; released_*: under release_lock_.
  alignas(64) std::atomic<uint64_t> polled_count_{0};
  std::atomic<uint64_t> polled_position_{0};
  // Received pieces that are not empty, in all.
  alignas(64) std::atomic<uint64_t> outstanding_{0};
  Mutex release_lock_;
  uint64_t released_count_ = 0;
  std::atomic<uint64_t> released_position_{0};
  const std::unique_ptr<RecvBuffer[]> buffers_;
};

class ShmDevice final : public Device {
 public:
  /// Null if the kernel gives no eventfd (logged) or there is no memory. `orb_size`: for the
  /// connections that it makes.
  static std::unique_ptr<ShmDevice> create(uint64_t orb_size) noexcept;
  ~ShmDevice() override;

  const char* name() const noexcept override { return "shm"; }
  DeviceKind kind() const noexcept override { return DeviceKind::shm; }
  std::unique_ptr<HalfOpen> begin() noexcept override;
  void add(Endpoint& endpoint) override;
  void remove(Endpoint& endpoint) noexcept override;
  size_t poll_recv(uint32_t lane, std::span<RecvCompletion> completions) noexcept override;
  size_t polls_to_drain(uint32_t lane) const noexcept override;
  void arm() noexcept override;
  void disarm() noexcept override;
  bool is_armed() const noexcept override {
    return (epoch_.load(std::memory_order_relaxed) & 1U) != 0;
  }
  int event_fd() const noexcept override { return event_fd_; }
  void clear_event() noexcept override;
  bool rings_any_thread() const noexcept override { return true; }
  void ring() noexcept override;

 private:
  ShmDevice(int event_fd, uint64_t orb_size) noexcept : event_fd_(event_fd), orb_size_(orb_size) {}
  void store_epoch(uint32_t epoch) noexcept;

  /// Each poll looks at the first `hot` endpoints; every kColdEvery-th poll, and one that is asked
  /// to, looks at all (paper 002, sections 3.3 and 4.6: the polling set). So one list stands in for
  /// two: arrivals promote an endpoint into its hot part, and age demotes the endpoint again.
  struct alignas(64) PollingSet {
    std::vector<ShmEndpoint*> endpoints;  // see arm_lock_
    // All of it under the lane's lock.
    size_t hot = 0;
    size_t next = 0;  // where the next poll starts, so that no endpoint can starve the others
    uint32_t polls = 0;
  };
  /// Promotes the endpoints from which something has come since they were demoted. Then, if `ages`,
  /// demotes those from which nothing has come since the last call with `ages`.
  void sort(PollingSet& set, bool ages) noexcept;

  const int event_fd_;
  const uint64_t orb_size_;
  // Guards epoch_ against concurrent changes, and the lists of endpoints, which change only under
  // both this lock and that of their lane.
  Mutex arm_lock_;
  std::atomic<uint32_t> epoch_{0};
  std::array<PollingSet, kLanes> sets_;
};

}  // namespace sidestep::engine::shm

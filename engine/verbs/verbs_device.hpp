#pragma once
/// InfiniBand verbs: reliable connected queue pairs, one for each pair of nodes, with one shared
/// receive queue, one completion queue for receives and one for sends (Ibdxnet, section 8).
///
/// A work request is a piece of the ORB, sent without a copy, with two SGEs where the ring wraps
/// around, and the trailer behind it (trailer.hpp), which confirms what came the other way; a small
/// one has a shorter form of both (brief.hpp).
/// Immediate data carry the sender's NID and, in their low half, the count of work requests
/// that the receiver of the immediate may have posted in all (mod 2^16): the window. A peer is
/// given no more than stand in the shared receive queue for it, so that the queue does not run dry
/// (RNR); but for one or two, without which it would wait for peers that were given the rest and
/// have nothing to say. Where no traffic carries them back, a work request without fragments does:
/// empty for a window alone, with nothing but a trailer for a confirmation.
///
/// Locks: what receives is under the node's receive lock, what sends under the connection's post
/// lock, the queue of send completions under send_lock_. The table of queue pairs is changed under
/// the first and the last of them and read under either.
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "engine/base/lock.hpp"
#include "engine/device/device.hpp"
#include "engine/device/half_open.hpp"
#include "engine/verbs/memory.hpp"
#include "engine/verbs/port.hpp"
#include "engine/verbs/receive_pool.hpp"
#include "engine/verbs/trailer.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine::verbs {

class VerbsDevice;

struct VerbsOptions {
  PortChoice port;
  uint64_t pool_size;  ///< bytes
  uint64_t orb_size;   ///< bytes
  uint32_t max_connections;
  uint8_t timeout;  ///< of ibv_qp_attr: 4.096 us * 2^timeout
};

class VerbsEndpoint final : public Endpoint {
 public:
  VerbsEndpoint(VerbsDevice& device, Memory ring, Memory trailers, ibv_qp* pair,
                uint32_t inline_size) noexcept;
  ~VerbsEndpoint() override;

  std::span<std::byte> orb_memory() noexcept override { return ring_.bytes(); }
  uint32_t max_request() const noexcept override { return request_size_; }
  uint32_t post_batch() const noexcept override;
  size_t send_room() noexcept override;
  size_t post_send(std::span<const SendRequest> chain) noexcept override;
  void post_window(uint32_t immediate) noexcept override;
  void poke() noexcept override;
  void ring_if_parked() noexcept override {}
  bool has_doorbell() const noexcept override { return false; }  // VerbsDevice::arm()
  bool is_flushed() noexcept override;
  bool has_arrived(uint64_t position) noexcept override;
  bool is_ordered() const noexcept override { return false; }
  uint64_t completed() noexcept override;
  void watch(uint64_t now) noexcept override;
  void want_completions(bool wanted) noexcept override;
  bool peer_wants_release() const noexcept override;
  uint64_t unreleased() const noexcept override {
    return handed_on_.load(std::memory_order_relaxed) - released_.load(std::memory_order_relaxed);
  }
  void release(RecvBuffer& buffer) noexcept override;
  int peer_cpu() const noexcept override { return -1; }
  void publish_cpu(int) noexcept override {}
  bool is_broken() const noexcept override { return broken_.load(std::memory_order_relaxed); }
  void stop() noexcept override;

  uint32_t pair_number() const noexcept { return pair_->qp_num; }

 private:
  friend class VerbsDevice;
  friend class VerbsHalfOpen;

  static constexpr uint32_t kQueue = 128;         // work requests under way
  static constexpr uint32_t kWindowRequests = 4;  // places beyond them, for those without payload
  static constexpr uint32_t kSendPieces = 3;      // a ring that wraps, and the trailer
  static constexpr size_t kChain = 8;             // work requests of one post at most
  static constexpr uint32_t kPlaces = kQueue + kWindowRequests;
  static constexpr uint32_t kUnconfirmed = 256;  // work requests with payload; a power of two

  bool connect(const EndpointAddress& own, const EndpointAddress& peer, const Gid* gid) noexcept;
  uint32_t places() const noexcept;
  uint32_t window() const noexcept;
  bool post(ibv_send_wr& first, uint32_t& posted) noexcept;
  void on_sent(uint64_t number) noexcept;
  void on_window(uint32_t immediate) noexcept;
  /// Checks what has arrived, and takes the trailer off the last piece. False: it must not be used.
  /// `header`: where a short form's goes.
  bool accept(std::span<ReceivePool::Piece> pieces, uint32_t length,
              FragmentHeader& header) noexcept;
  /// The same of one form. Bytes of the ring that it stands for, and what its trailer says.
  [[gnu::noinline]] std::optional<uint32_t> accept_ordinary(std::span<ReceivePool::Piece> pieces,
                                                            uint32_t length,
                                                            Trailer& trailer) const noexcept;
  std::optional<uint32_t> accept_brief(std::span<ReceivePool::Piece> pieces, uint32_t length,
                                       FragmentHeader& header, Trailer& trailer) const noexcept;
  void on_confirmed(uint32_t received) noexcept;
  bool owes_confirmation() const noexcept;
  /// Describe a piece of the ring and what stands behind it, as the short form (brief.hpp) if it
  /// has one, or as it is. Under the post lock, as the next three.
  bool describe_brief(ibv_send_wr& request, uint64_t number, uint64_t offset,
                      uint32_t length) noexcept;
  void describe(ibv_send_wr& request, uint64_t number, uint64_t offset, uint32_t length) noexcept;
  /// Of the next work request, but for its check.
  Trailer next_trailer() noexcept;
  std::span<std::byte, sizeof(Trailer)> trailer_place(uint64_t number) noexcept;
  /// Fills the trailer of the next work request and describes it.
  ibv_sge write_trailer(uint64_t number, const std::byte* payload, uint32_t length) noexcept;
  void ask_completion(ibv_send_wr& request, uint64_t bytes) noexcept;
  void ask_about_all() noexcept;
  [[gnu::cold]] void fail(const char* what) noexcept;

  VerbsDevice& device_;
  const Memory ring_;
  const Memory trailers_;  // one for each place
  ibv_qp* const pair_;
  const uint32_t inline_size_;
  uint32_t request_size_ = 0;   // fragments that fit into one work request
  bool hashed_ = false;         // trailers cover the bytes
  uint64_t confirm_bytes_ = 0;  // received bytes after which the peer waits for a confirmation
  std::atomic<bool> broken_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> poked_{false};
  std::atomic<bool> wants_completions_{false};

  // Sending, under the connection's post lock.
  alignas(64) uint32_t unsignalled_ =
      0;  // work requests since the last that asked for a completion
  uint64_t unsignalled_bytes_ = 0;
  std::atomic<uint64_t> posted_{0};  // work requests
  uint64_t posted_position_ = 0;
  uint32_t sequence_ = 0;               // trailers
  std::atomic<uint32_t> windowed_{0};   // work requests with payload: they count for the window
  std::atomic<uint32_t> announced_{0};  // of granted_
  std::atomic<uint32_t> confirmed_received_{0};            // of received_, told to the peer
  std::atomic<uint64_t> confirmed_received_bytes_{0};      // of received_bytes_
  std::atomic<uint64_t> ends_[kPlaces] = {};               // ORB positions behind each work request
  std::atomic<uint64_t> payload_ends_[kUnconfirmed] = {};  // the same, for those with payload

  // What post_send() hands over. Here, so that what is the same in all is written once.
  ibv_send_wr requests_[kChain] = {};
  ibv_sge pieces_[kChain * kSendPieces];

  // Completions of sends, under the device's send lock.
  alignas(64) std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> completed_position_{0};

  // It has been asked about the work requests before this one. Relaxed: at worst somebody asks
  // twice.
  std::atomic<uint64_t> flush_at_{0};

  // Receiving, under the node's receive lock.
  alignas(64) std::atomic<uint32_t> peer_window_{0};  // work requests that may be posted in all
  std::atomic<uint32_t> granted_{0};                  // that the peer may post in all
  std::atomic<uint32_t> confirmed_{0};                // of windowed_: the peer's engine has them
  std::atomic<uint64_t> confirmed_position_{0};       // ORB position behind them
  std::atomic<uint32_t> received_{0};                 // work requests with payload
  std::atomic<uint64_t> received_bytes_{0};
  uint64_t watched_ = 0;        // completed_ as watch() saw it
  uint64_t watched_since_ = 0;  // and when it first did
  uint32_t expected_ = 0;       // sequence of the next trailer
  bool damaged_ = false;        // something did not arrive: nothing behind it is taken either
  bool counted_ = false;        // in the device's sum of grants
  // Bytes of the ring's pieces that were handed on, and those that came back, by any thread.
  std::atomic<uint64_t> handed_on_{0};
  std::atomic<uint64_t> released_{0};
};

class VerbsDevice final : public Device {
 public:
  /// Null when verbs can't be used; `why` is a sentence that says what is missing.
  static std::unique_ptr<VerbsDevice> create(const VerbsOptions& options, std::string& why);
  ~VerbsDevice() override;

  const char* name() const noexcept override { return name_.c_str(); }
  DeviceKind kind() const noexcept override { return DeviceKind::verbs; }
  uint32_t max_connections() const noexcept override { return options_.max_connections; }
  std::unique_ptr<HalfOpen> begin() noexcept override;
  void add(Endpoint& endpoint) override;
  void remove(Endpoint& endpoint) noexcept override;
  size_t poll_recv(uint32_t lane, std::span<RecvCompletion> completions) noexcept override;
  size_t polls_to_drain(uint32_t) const noexcept override {
    return 1 + 2 * pool_->geometry().requests / kReceives;  // one queue, in order
  }
  bool is_lost() const noexcept override { return lost_.load(std::memory_order_relaxed); }
  bool wants_memory() noexcept override;
  void grow() noexcept override;
  void arm() noexcept override;
  void disarm() noexcept override { armed_.store(false, std::memory_order_relaxed); }
  bool is_armed() const noexcept override { return armed_.load(std::memory_order_relaxed); }
  int event_fd() const noexcept override { return event_fd_; }
  void clear_event() noexcept override;

  const Port& port() const noexcept { return port_; }
  const ReceivePool& pool() const noexcept { return *pool_; }

 private:
  friend class VerbsEndpoint;
  friend class VerbsHalfOpen;

  VerbsDevice(const Library& library, Port port, const VerbsOptions& options);
  bool open(std::string& why);
  /// Soft-RoCE or Soft-iWARP: what arrives is not trusted to be what was sent.
  bool is_software() const noexcept;
  bool open_pool(std::string& why);
  bool watch(int& fd) noexcept;
  VerbsEndpoint* find(uint32_t pair_number) const noexcept;
  VerbsEndpoint* find_receiver(uint32_t pair_number) noexcept;
  /// The window of one of so many endpoints.
  uint32_t window_of(size_t endpoints) const noexcept;
  /// What a peer may post, up to the window again, but not more than `share` of what nobody else
  /// was promised; it is told where no answer will tell it.
  void grant(VerbsEndpoint& endpoint, uint32_t share) noexcept;
  /// The same to all whose turn it is, in equal shares.
  void grant_all() noexcept;
  /// Work requests in the queue that no peer was promised.
  uint32_t spare() const noexcept {
    return pool_->posted() > granted_ ? pool_->posted() - granted_ : 0;
  }
  bool is_grant_due(const VerbsEndpoint& endpoint) const noexcept;
  bool is_told_little(const VerbsEndpoint& endpoint) const noexcept;
  bool must_tell(const VerbsEndpoint& endpoint) const noexcept;
  void poll_sends() noexcept;
  void on_async_event(const ibv_async_event& event) noexcept;
  /// Nothing of this device works any more.
  void lose(const char* why) noexcept;
  void wake() noexcept;

  const Library& ibv_;
  Port port_;
  VerbsOptions options_;
  const std::string name_;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* receives_ = nullptr;
  ibv_cq* sends_ = nullptr;
  std::unique_ptr<ReceivePool> pool_;
  int event_fd_ = -1;  // an epoll set of the three below
  int wake_fd_ = -1;

  Mutex arm_lock_;
  std::atomic<bool> armed_{false};
  bool requested_ = false;       // the adapter will tell of the next receive
  std::atomic<int> wanting_{0};  // endpoints that wait for send completions
  Mutex send_lock_;
  std::unordered_map<uint32_t, VerbsEndpoint*> pairs_;
  std::atomic<bool> lost_{false};    // the adapter is gone, or has failed as a whole
  std::atomic<bool> in_use_{false};  // pairs_ is not empty, for those who hold neither lock
  // Under the node's receive lock, as all that follows.
  VerbsEndpoint* last_ = nullptr;  // of find()
  VerbsEndpoint* owed_ = nullptr;  // grant() is due, and can wait for a poll that finds nothing
  static constexpr size_t kReceives = 16;      // of one poll
  static constexpr uint32_t kLeastWindow = 2;  // one is posted while the other is told of
  FragmentHeader headers_[kReceives];          // of those that came in the short form
  uint32_t target_window_ = 0;                 // of each endpoint
  std::atomic<bool> short_{false};  // a peer had to wait for a window, or a buffer was missing
  uint32_t granted_ = 0;            // work requests that peers may still post, all together
  bool wants_spare_ = false;        // some peer was granted less than its window for want of them
};

}  // namespace sidestep::engine::verbs

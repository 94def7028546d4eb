#pragma once
/// InfiniBand verbs: reliable connected queue pairs, one for each pair of nodes, with one shared
/// receive queue, one completion queue for receives and one for sends (Ibdxnet, section 8).
///
/// A work request is a piece of the ORB, sent without a copy (with two SGEs if the ring wraps
/// around), followed by the trailer (trailer.hpp), which confirms what came the other way. A small
/// work request has a compact form of both (compact_form.hpp).
/// Immediate data carry the sender's NID and, in their low half, the window: how many work requests
/// the receiver of the immediate may have posted in all (mod 2^16). A peer is granted no more than
/// stand in the shared receive queue for it, so that the queue does not run dry (RNR). The
/// exception is one or two that it always gets; without them it would wait for peers that were
/// granted the rest and have nothing to say. If no traffic carries windows and confirmations back,
/// a work request without fragments does: an empty one for a window alone, one with nothing but a
/// trailer for a confirmation.
///
/// Locks: the node's receive lock protects receiving, the connection's post lock protects sending,
/// and send_lock_ protects the queue of send completions. The table of queue pairs is changed under
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
  static constexpr uint32_t kWindowRequests = 4;  // extra places, for those without payload
  static constexpr uint32_t kSendPieces = 3;      // a ring that wraps, and the trailer
  static constexpr size_t kChain = 8;             // work requests in one post at most
  static constexpr uint32_t kPlaces = kQueue + kWindowRequests;
  static constexpr uint32_t kUnconfirmed = 256;  // work requests with payload; a power of two

  bool connect(const EndpointAddress& own, const EndpointAddress& peer, const Gid* gid) noexcept;
  uint32_t places() const noexcept;
  uint32_t window() const noexcept;
  bool post(ibv_send_wr& first, uint32_t& posted) noexcept;
  void on_sent(uint64_t number) noexcept;
  void on_window(uint32_t immediate) noexcept;
  /// Checks what has arrived, and takes the trailer off the last piece. False if it must not be
  /// used. `header` gets the header of a compact form.
  bool accept(std::span<ReceivePool::Piece> pieces, uint32_t length,
              FragmentHeader& header) noexcept;
  /// Do the same for one of the two forms. Return the bytes of the ring that it stands for;
  /// `trailer` gets what its trailer says.
  [[gnu::noinline]] std::optional<uint32_t> accept_ordinary(std::span<ReceivePool::Piece> pieces,
                                                            uint32_t length,
                                                            Trailer& trailer) const noexcept;
  std::optional<uint32_t> accept_compact(std::span<ReceivePool::Piece> pieces, uint32_t length,
                                         FragmentHeader& header, Trailer& trailer) const noexcept;
  void on_confirmed(uint32_t received) noexcept;
  bool owes_confirmation() const noexcept;
  /// Describe a piece of the ring and what stands behind it: in the compact form (compact_form.hpp)
  /// if it has one, or as it is. Under the post lock, like the next three.
  bool describe_compact(ibv_send_wr& request, uint64_t number, uint64_t offset,
                        uint32_t length) noexcept;
  void describe(ibv_send_wr& request, uint64_t number, uint64_t offset, uint32_t length) noexcept;
  /// The trailer of the next work request, except for its check.
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
  uint32_t request_size_ = 0;   // bytes of fragments that fit into one work request
  bool hashed_ = false;         // trailers cover the bytes, not only their number
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
  std::atomic<uint32_t> windowed_{0};   // work requests with payload: those count for the window
  std::atomic<uint32_t> announced_{0};  // granted_ as the peer was told
  std::atomic<uint32_t> confirmed_received_{0};            // received_ as the peer was told
  std::atomic<uint64_t> confirmed_received_bytes_{0};      // the same of received_bytes_
  std::atomic<uint64_t> ends_[kPlaces] = {};               // ORB positions behind each work request
  std::atomic<uint64_t> payload_ends_[kUnconfirmed] = {};  // the same, for those with payload

  // What post_send() hands over. It is kept here so that the parts that are always the same are
  // written only once.
  ibv_send_wr requests_[kChain] = {};
  ibv_sge pieces_[kChain * kSendPieces];

  // Completions of sends, under the device's send lock.
  alignas(64) std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> completed_position_{0};

  // A completion has been requested that covers the work requests before this one. Relaxed: at
  // worst somebody requests it twice.
  std::atomic<uint64_t> flush_at_{0};

  // Receiving, under the node's receive lock.
  alignas(64) std::atomic<uint32_t> peer_window_{0};  // work requests that may be posted in all
  std::atomic<uint32_t> granted_{0};                  // the same for the peer
  std::atomic<uint32_t> confirmed_{0};                // of windowed_: the peer's engine has them
  std::atomic<uint64_t> confirmed_position_{0};       // ORB position behind them
  std::atomic<uint32_t> received_{0};                 // work requests with payload
  std::atomic<uint64_t> received_bytes_{0};
  uint64_t watched_ = 0;        // completed_ as watch() saw it
  uint64_t watched_since_ = 0;  // and when it first did
  uint32_t expected_ = 0;       // sequence of the next trailer
  bool damaged_ = false;        // something did not arrive as sent: nothing behind it is taken
  bool counted_ = false;        // included in the device's sum of grants
  // Bytes of received pieces that were handed on, and bytes that came back, by any thread.
  std::atomic<uint64_t> handed_on_{0};
  std::atomic<uint64_t> released_{0};
};

class VerbsDevice final : public Device {
 public:
  /// Returns null if verbs can't be used; `why` is then a sentence that says what is missing.
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
  /// True for Soft-RoCE or Soft-iWARP: what arrives is not trusted to be what was sent.
  bool is_software() const noexcept;
  bool open_pool(std::string& why);
  bool watch(int& fd) noexcept;
  VerbsEndpoint* find(uint32_t pair_number) const noexcept;
  VerbsEndpoint* find_receiver(uint32_t pair_number) noexcept;
  /// The window of each of `endpoints` endpoints.
  uint32_t window_of(size_t endpoints) const noexcept;
  /// Raises what a peer may post to the full window again, but takes no more than `share` of what
  /// nobody else was promised. Tells the peer if no answer will tell it.
  void grant(VerbsEndpoint& endpoint, uint32_t share) noexcept;
  /// Does the same for all endpoints that are due, in equal shares.
  void grant_all() noexcept;
  /// How many work requests in the queue no peer was promised.
  uint32_t spare() const noexcept {
    return pool_->posted() > granted_ ? pool_->posted() - granted_ : 0;
  }
  bool is_grant_due(const VerbsEndpoint& endpoint) const noexcept;
  bool is_told_little(const VerbsEndpoint& endpoint) const noexcept;
  bool must_tell(const VerbsEndpoint& endpoint) const noexcept;
  void poll_sends() noexcept;
  void on_async_event(const ibv_async_event& event) noexcept;
  /// Called when nothing of this device works any more.
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
  int event_fd_ = -1;  // an epoll set of three, see open()
  int wake_fd_ = -1;

  Mutex arm_lock_;
  std::atomic<bool> armed_{false};
  bool requested_ = false;       // the adapter will report the next receive
  std::atomic<int> wanting_{0};  // endpoints that wait for send completions
  Mutex send_lock_;
  std::unordered_map<uint32_t, VerbsEndpoint*> pairs_;
  std::atomic<bool> lost_{false};    // the adapter is gone, or has failed as a whole
  std::atomic<bool> in_use_{false};  // pairs_ is not empty, for threads that hold neither lock
  // Under the node's receive lock, like all that follows.
  VerbsEndpoint* last_ = nullptr;  // the last result of find()
  VerbsEndpoint* owed_ = nullptr;  // its grant() is due, but can wait until a poll finds nothing
  static constexpr size_t kReceives = 16;      // in one poll
  static constexpr uint32_t kLeastWindow = 2;  // one is posted while the other is announced
  FragmentHeader headers_[kReceives];          // of receives in the compact form
  uint32_t target_window_ = 0;                 // for each endpoint
  std::atomic<bool> short_{false};  // a peer had to wait for a window, or a buffer was missing
  uint32_t granted_ = 0;            // work requests that peers may still post, all together
  bool wants_spare_ = false;        // some peer got less than its window for lack of spare ones
};

}  // namespace sidestep::engine::verbs

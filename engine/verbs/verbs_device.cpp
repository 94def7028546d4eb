#include "engine/verbs/verbs_device.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"

namespace sidestep::engine::verbs {
namespace {

std::string kib(uint64_t bytes) {
  return std::to_string(bytes / 1024) + " KiB";
}

std::string failed(const char* what) {
  return std::string(what) + ": " + std::strerror(errno != 0 ? errno : ENOMEM);
}

}  // namespace

VerbsDevice::VerbsDevice(const Library& library, Port port, const VerbsOptions& options)
    : ibv_(library), port_(std::move(port)), options_(options), name_("verbs:" + port_.name) {}

std::unique_ptr<VerbsDevice> VerbsDevice::create(const VerbsOptions& options, std::string& why) {
  const char* fault = nullptr;
  const Library* const library = Library::get(&fault);
  if (library == nullptr) {
    why = fault;
    return nullptr;
  }
  const uint64_t start = now_ns();
  Port port;
  if (!open_port(*library, options.port, port, why)) return nullptr;
  std::unique_ptr<VerbsDevice> device(new VerbsDevice(*library, std::move(port), options));
  if (!device->open(why)) return nullptr;
  log(LogLevel::info, "%s: port %u, MTU %u, %u receives of %u bytes; opened in %llu ms",
      device->name(), device->port_.number, bytes_of(device->port_.mtu),
      device->pool_->geometry().requests, device->pool_->geometry().request_size(),
      static_cast<unsigned long long>((now_ns() - start) / 1'000'000));
  return device;
}

bool VerbsDevice::watch(int& fd) noexcept {
  fd = private_fd_adopt(fd);
  const long flags = sys::fcntl(fd, F_GETFL, 0);
  if (flags >= 0) sys::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return sys::epoll_ctl(event_fd_, EPOLL_CTL_ADD, fd, &event) >= 0;
}

bool VerbsDevice::open(std::string& why) {
  // These descriptors belong to the library and must survive a program that closes all it finds.
  port_.context->cmd_fd = private_fd_adopt(port_.context->cmd_fd);
  event_fd_ = private_fd_adopt(sys::epoll_create());
  wake_fd_ = sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd_ < 0 || wake_fd_ < 0 || !watch(wake_fd_) || !watch(port_.context->async_fd)) {
    why = "no descriptors for its events";
    return false;
  }
  domain_ = ibv_.ibv_alloc_pd(port_.context);
  if (domain_ == nullptr) {
    why = failed("ibv_alloc_pd");
    return false;
  }
  if (!open_pool(why)) return false;
  channel_ = ibv_.ibv_create_comp_channel(port_.context);
  if (channel_ == nullptr || !watch(channel_->fd)) {
    why = failed("ibv_create_comp_channel");
    return false;
  }
  // Each queue has room for all that the queue pairs can have under way, because an overflow would
  // be the end of the queue, and a failing port flushes all queue pairs at once.
  const auto most = static_cast<uint32_t>(port_.device.max_cqe);
  const uint32_t receives = std::min(2 * pool_->geometry().requests, most);
  const uint32_t per_pair = VerbsEndpoint::kPlaces;
  options_.max_connections = std::clamp<uint32_t>(most / per_pair, 1, options_.max_connections);
  const uint32_t sends = options_.max_connections * per_pair;
  receives_ = ibv_.ibv_create_cq(port_.context, static_cast<int>(receives), nullptr, channel_, 0);
  sends_ = ibv_.ibv_create_cq(port_.context, static_cast<int>(sends), nullptr, channel_, 0);
  if (receives_ == nullptr || sends_ == nullptr) {
    why = failed("ibv_create_cq");
    return false;
  }
  return true;
}

bool VerbsDevice::is_software() const noexcept {
  constexpr uint32_t kSoftRoce = 0xffffff;
  constexpr uint32_t kSoftIwarp = 0x626d74;
  return port_.device.vendor_id == kSoftRoce || port_.device.vendor_id == kSoftIwarp;
}

bool VerbsDevice::open_pool(std::string& why) {
  const uint64_t pinnable = pinnable_bytes();
  if (pinnable < kLeastPinned) {
    why = "RLIMIT_MEMLOCK is " + kib(pinnable) + ", and at least " + kib(kLeastPinned) +
          " of pinned memory are needed; raise it (ulimit -l, LimitMEMLOCK= in systemd)";
    return false;
  }
  const auto [pool, orb] = plan_pinned(pinnable, options_.pool_size, options_.orb_size);
  if (pool < options_.pool_size || orb < options_.orb_size)
    log(LogLevel::warn,
        "verbs: RLIMIT_MEMLOCK is %s: the receive pool gets %s instead of %s, each ring %s instead "
        "of %s; raise it (ulimit -l, LimitMEMLOCK= in systemd)",
        kib(pinnable).c_str(), kib(pool).c_str(), kib(options_.pool_size).c_str(), kib(orb).c_str(),
        kib(options_.orb_size).c_str());
  options_.orb_size = orb;
  const ibv_device_attr& caps = port_.device;
  const uint32_t pieces = std::min(static_cast<uint32_t>(std::max(caps.max_srq_sge, 1)), 8U);
  const auto requests = static_cast<uint32_t>(std::max(caps.max_srq_wr, 1));
  const PoolGeometry geometry = PoolGeometry::plan(
      pool, pieces, std::min(requests, static_cast<uint32_t>(std::max(caps.max_cqe / 2, 1))));
  errno = 0;
  pool_ = ReceivePool::create(ibv_, domain_, geometry);
  if (pool_ == nullptr) {
    why = failed("the receive pool");
    return false;
  }
  return true;
}

VerbsDevice::~VerbsDevice() {
  // Runs only for a device that could not be opened, or in a test.
  const auto close = [](int fd) { private_fd_close(fd); };
  if (receives_ != nullptr) ibv_.ibv_destroy_cq(receives_);
  if (sends_ != nullptr) ibv_.ibv_destroy_cq(sends_);
  pool_.reset();
  if (channel_ != nullptr) {
    private_fd_release(channel_->fd);
    ibv_.ibv_destroy_comp_channel(channel_);
  }
  if (domain_ != nullptr) ibv_.ibv_dealloc_pd(domain_);
  private_fd_release(port_.context->cmd_fd);
  private_fd_release(port_.context->async_fd);
  ibv_.ibv_close_device(port_.context);
  close(wake_fd_);
  close(event_fd_);
}

// ---- endpoints in use

void VerbsDevice::add(Endpoint& endpoint) {
  auto& added = static_cast<VerbsEndpoint&>(endpoint);
  {
    const std::lock_guard guard(send_lock_);
    pairs_[added.pair_number()] = &added;
    in_use_.store(true, std::memory_order_relaxed);
  }
  if (is_lost()) added.fail("its device was lost");  // meanwhile; lose() did not see the endpoint
  target_window_ = window_of(pairs_.size());
  added.counted_ = true;
  granted_ += added.granted_.load(std::memory_order_relaxed);
  // arm() requests no notification while the device has no endpoints, so do it now.
  if (is_armed()) arm();
}

void VerbsDevice::remove(Endpoint& endpoint) noexcept {
  auto& removed = static_cast<VerbsEndpoint&>(endpoint);
  removed.want_completions(false);
  {
    const std::lock_guard guard(send_lock_);
    pairs_.erase(removed.pair_number());
    last_ = nullptr;
    if (owed_ == &removed) owed_ = nullptr;
    target_window_ = window_of(pairs_.size());
    in_use_.store(!pairs_.empty(), std::memory_order_relaxed);
  }
  if (!removed.counted_) return;
  removed.counted_ = false;
  granted_ -= removed.granted_.load(std::memory_order_relaxed) -
              removed.received_.load(std::memory_order_relaxed);
  if (wants_spare_) wake();  // the next poll gives it to others
}

VerbsEndpoint* VerbsDevice::find(uint32_t pair_number) const noexcept {
  const auto found = pairs_.find(pair_number);
  return found != pairs_.end() ? found->second : nullptr;
}

uint32_t VerbsDevice::window_of(size_t endpoints) const noexcept {
  // An eighth is left for empty work requests. There are at least four shares; otherwise the first
  // peers would have to give up what was promised to them.
  const auto shares = static_cast<uint32_t>(std::max<size_t>(endpoints, 4));
  return std::max(pool_->requests() / 8 * 7 / shares, kLeastWindow);
}

bool VerbsDevice::wants_memory() noexcept {
  // relaxed: this is a hint. A plain load comes first, because the answer is nearly always no.
  return short_.load(std::memory_order_relaxed) &&
         short_.exchange(false, std::memory_order_relaxed) && pool_->can_grow();
}

void VerbsDevice::grow() noexcept {
  if (pool_->grow()) wake();
}

// ---- events

void VerbsDevice::arm() noexcept {
  // unlock() is a full barrier before the caller's last poll.
  const std::lock_guard guard(arm_lock_);
  armed_.store(true, std::memory_order_relaxed);
  if (in_use_.load(std::memory_order_relaxed)) {
    if (!requested_) {
      requested_ = true;
      ibv_req_notify_cq(receives_, 0);
    }
    // seq_cst pairs with want_completions(): one of the two sees the other.
    if (wanting_.load(std::memory_order_seq_cst) != 0) ibv_req_notify_cq(sends_, 0);
  }
}

void VerbsDevice::clear_event() noexcept {
  uint64_t count = 0;
  sys::read(wake_fd_, &count, sizeof count);
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (ibv_.ibv_get_cq_event(channel_, &queue, &context) == 0) {
    ibv_.ibv_ack_cq_events(queue, 1);
    if (queue != receives_) continue;
    const std::lock_guard guard(arm_lock_);
    requested_ = false;
  }
  ibv_async_event event{};
  errno = 0;
  while (ibv_.ibv_get_async_event(port_.context, &event) == 0) {
    on_async_event(event);
    ibv_.ibv_ack_async_event(&event);
  }
  // The kernel's side of the device has gone, whether or not it has said so.
  if ((errno == EIO || errno == ENODEV) && !is_lost()) lose(std::strerror(errno));
}

void VerbsDevice::lose(const char* why) noexcept {
  lost_.store(true, std::memory_order_relaxed);
  log(LogLevel::warn, "%s is lost (%s)", name(), why);
  // A descriptor whose other end is gone would report an error forever.
  for (const int fd : {port_.context->async_fd, channel_->fd})
    sys::epoll_ctl(event_fd_, EPOLL_CTL_DEL, fd, nullptr);
  const std::lock_guard guard(send_lock_);
  for (const auto& [number, endpoint] : pairs_) endpoint->fail(why);
}

void VerbsDevice::on_async_event(const ibv_async_event& event) noexcept {
  const char* const text = ibv_.ibv_event_type_str(event.event_type);
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR: {
      const std::lock_guard guard(send_lock_);
      if (VerbsEndpoint* endpoint = find(event.element.qp->qp_num)) endpoint->fail(text);
      break;
    }
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
      if (!is_lost()) lose(text);
      break;
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      pool_->on_limit();  // the thread that takes events polls next, which refills the queue
      break;
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
      // A queue pair survives what its retries survive; one that does not survive says so itself.
      log(LogLevel::warn, "%s reports of port %d: %s", name(), event.element.port_num, text);
      break;
    default:
      log(LogLevel::debug, "%s reports: %s", name(), text);
      break;
  }
}

void VerbsDevice::wake() noexcept {
  const uint64_t one = 1;
  sys::write(wake_fd_, &one, sizeof one);
}

}  // namespace sidestep::engine::verbs

#pragma once
/// An endpoint that only counts, for tests that need an endpoint but must not have a device.
#include <vector>

#include "engine/device/device.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::tests {

class FakeEndpoint final : public engine::Endpoint {
 public:
  std::span<std::byte> orb_memory() noexcept override { return {memory_.data(), kOrb}; }
  uint32_t max_request() const noexcept override { return engine::kMaxWorkRequest; }
  size_t send_room() noexcept override { return 16; }
  size_t post_send(std::span<const engine::SendRequest> chain) noexcept override {
    return chain.size();
  }
  void post_window(uint32_t) noexcept override {}
  void poke() noexcept override {}
  void ring_if_parked() noexcept override {}
  bool is_flushed() noexcept override { return true; }
  bool has_arrived(uint64_t) noexcept override { return true; }
  uint64_t completed() noexcept override { return 0; }
  void want_completions(bool) noexcept override {}
  bool peer_wants_release() const noexcept override { return false; }
  uint64_t unreleased() const noexcept override { return 0; }
  void release(engine::RecvBuffer&) noexcept override { ++released; }
  int peer_cpu() const noexcept override { return -1; }
  void publish_cpu(int) noexcept override {}
  bool is_broken() const noexcept override { return false; }
  void stop() noexcept override {}

  size_t released = 0;  ///< buffers whose last reference was dropped

 private:
  static constexpr size_t kOrb = 64 * 1024;
  std::vector<std::byte> memory_ = std::vector<std::byte>(2 * kOrb);
};

}  // namespace sidestep::tests

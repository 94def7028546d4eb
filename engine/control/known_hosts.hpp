#pragma once
/// The hosts of SIDESTEP_NODES, and whether a node answers there (Ibdxnet, section 7.1: nodes are
/// discovered before anybody needs them). A separate thread reads the list and looks up the names
/// again and again, because a file may change and a name server may take seconds.
///
/// The manager asks; this class says whom and when. One thread makes all calls except those of the
/// separate thread itself. Functions that allocate may throw std::bad_alloc. Times are those of
/// now_ns().
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/address.hpp"
#include "engine/base/lock.hpp"

namespace sidestep::engine {

class KnownHosts {
 public:
  using Ip = std::array<uint8_t, 16>;
  static constexpr uint64_t kSecond = 1'000'000'000;
  static constexpr uint64_t kReadEvery = 5 * kSecond;
  static constexpr unsigned kUnanswered = 3;  // in a row; then the host counts as absent
  static constexpr size_t kMost = 4096;

  /// Starts the thread if it has anything to do. `nodes` is as in config/nodes.hpp. Another thread
  /// calls `tell` with `whom` when there is a new list.
  void start(const std::string& nodes, void (*tell)(void*), void* whom);

  /// Adopts a new list. Hosts that were there before keep what is known of them.
  void update(const std::vector<Address>& addresses, uint64_t now);
  /// Calls update() with what the thread has found since the last call.
  void take_news(uint64_t now);

  /// Returns the hosts to ask now, and counts each of them as asked. Adds to `gone` those that have
  /// not answered for too long, if they had answered before or are new.
  std::vector<Address> due(uint64_t now, std::vector<Address>& gone);
  /// Notes that a node there has answered. True if that is news.
  bool answered(const Ip& ip, uint64_t now);
  /// Called when something there has gone away: makes the host due at once.
  void ask_soon(const Ip& ip, uint64_t now);
  /// The time at which due() has something to return; 0: never.
  uint64_t next_at() const noexcept;

  /// Returns the addresses of hosts given by name or number, each address once. Leaves out hosts
  /// that can't be found. May wait for a name server.
  static std::vector<Address> look_up(const std::vector<std::string>& hosts);

 private:
  enum class State : uint8_t { unknown, present, absent };
  struct Host {
    State state = State::unknown;
    unsigned unanswered = 0;
    uint64_t ask_at = 0;
  };

  static void* entry(void* self) noexcept;
  void run();

  std::map<Ip, Host> hosts_;
  std::string nodes_;
  void (*tell_)(void*) = nullptr;
  void* whom_ = nullptr;
  Mutex news_lock_;
  bool has_news_ = false;
  std::vector<Address> news_;
};

}  // namespace sidestep::engine

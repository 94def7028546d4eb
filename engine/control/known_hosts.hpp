#pragma once
/// The hosts of SIDESTEP_NODES, and whether a node answers there (Ibdxnet, section 7.1: nodes are
/// discovered before anybody needs them). A thread of its own reads the list and looks the names
/// up, again and again, because a file may change and a name server may take seconds.
///
/// Asking is the manager's; this says whom, and when. All calls but those of the thread itself are
/// made by one thread. What allocates may throw std::bad_alloc. Times are those of now_ns().
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
  static constexpr unsigned kUnanswered = 3;  // in a row, and nobody is believed to be there
  static constexpr size_t kMost = 4096;

  /// Starts the thread if there is anything to do for it. `nodes` as in config/nodes.hpp.
  /// `tell` is called with `whom` by another thread when there is a new list.
  void start(const std::string& nodes, void (*tell)(void*), void* whom);

  /// Takes a new list over. Hosts that were there before keep what is known of them.
  void update(const std::vector<Address>& addresses, uint64_t now);
  /// update() with what the thread has found since.
  void take_news(uint64_t now);

  /// The hosts to be asked at this time, each of which is then taken to have been asked. Those in
  /// `gone` have not answered for too long, and did before or are new.
  std::vector<Address> due(uint64_t now, std::vector<Address>& gone);
  /// A node there has answered. True when that is news.
  bool answered(const Ip& ip, uint64_t now);
  /// Something there has gone away: it is to be asked at once.
  void ask_soon(const Ip& ip, uint64_t now);
  /// When due() has something to say; 0: never.
  uint64_t next_at() const noexcept;

  /// The addresses of hosts by name or number, each once; those that can't be found are left out.
  /// May wait for a name server.
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

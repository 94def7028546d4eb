#pragma once
/// One connection of a checked transfer: both of its streams and the calls that move their bytes.
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/programs/options.hpp"
#include "tests/programs/pattern.hpp"

namespace pair {

/// The first thing that the client sends.
struct Header {
  static constexpr uint64_t kMagic = 0x5349444553544550U;
  uint64_t magic;
  uint64_t seed;
  uint64_t number;
  uint64_t bytes_up;
  uint64_t bytes_down;
};

/// The greater of two outcomes is the worse one.
enum class Outcome { kNone, kComplete, kReset, kShortEof, kCorrupt, kFailed };

struct Direction {
  uint64_t total = 0;  ///< payload bytes
  uint64_t bytes = 0;  ///< payload bytes sent so far, or received and found correct
  std::atomic<Outcome> outcome = Outcome::kNone;
  int error = 0;
  double at = 0;

  bool open() const { return outcome == Outcome::kNone; }
  void finish(Outcome result, int err = 0);
  void finish_with_errno(int err);
};

enum class Step { kMore, kWouldBlock, kEnded };

/// At most one thread may receive and one may send at a time.
class Connection {
 public:
  /// Takes ownership of the descriptor. The client passes the header; the server waits for it.
  Connection(int fd, const Options& options, const Header* header);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  int fd() const { return fd_; }
  /// True if this end has the header or will never get it.
  bool known() const { return known_; }
  void wait_known() const { known_.wait(false); }
  bool wants_read() const { return rx_.open(); }
  bool wants_write() const { return known_ && tx_.open(); }
  bool done() const { return !rx_.open() && (!tx_.open() || !known_); }

  /// Makes one receive call. `blocking` says whether the descriptor blocks.
  Step receive(bool blocking);
  /// Makes one send call.
  Step send_some();

  Outcome worst() const;
  std::string json() const;

 private:
  void know(const Header& header);
  void give_up_sending();
  void append_out(const void* data, size_t n);
  bool fill();
  bool consume(std::span<const char> got);
  bool peek_is_right(std::span<const char> got) const;
  Io pick(Random& random) const;
  ssize_t receive_call(size_t size, bool blocking, bool& peeked);
  ssize_t send_call(std::span<char> data);

  int fd_;
  const Options& options_;
  const bool client_;
  uint64_t number_ = 0;
  std::atomic<bool> known_ = false;
  Header header_{};
  size_t header_fill_ = 0;
  uint64_t trailer_ = 0;
  size_t trailer_fill_ = 0;
  bool trailer_sent_ = false;
  Direction rx_;
  Direction tx_;
  Pattern rx_pattern_{0};
  Pattern tx_pattern_{0};
  Random in_random_{0};
  Random out_random_{0};
  std::vector<char> in_;
  std::vector<char> out_;
  size_t out_at_ = 0;
};

using Connections = std::vector<std::unique_ptr<Connection>>;

}  // namespace pair

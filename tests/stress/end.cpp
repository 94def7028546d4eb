#include "tests/stress/end.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sidestep::tests {

std::atomic<uint64_t> g_progress{0};
std::atomic<bool> g_stop{false};

Pattern::Pattern(uint64_t seed) : bytes_(kPeriod + kLongest) {
  std::mt19937_64 dice(seed);
  for (size_t i = 0; i < kPeriod; ++i) bytes_[i] = static_cast<uint8_t>(dice() >> 32);
  std::copy_n(bytes_.begin(), kLongest, bytes_.begin() + kPeriod);
}

int64_t Pattern::find(const uint8_t* bytes, size_t size) const noexcept {
  const auto found = std::search(bytes_.begin(), bytes_.end(), bytes, bytes + size);
  return found != bytes_.end() ? found - bytes_.begin() : -1;
}

End::End(int fd, preload::Socket& socket, Plan plan, bool begins, uint64_t seed, size_t largest)
    : fd_(fd),
      socket_(socket),
      plan_(plan),
      begins_(begins),
      largest_(largest),
      pattern_(seed * 2 + (begins ? 1 : 0)),
      seed_(seed),
      send_dice_(seed * 31 + (begins ? 7 : 5)),
      receive_dice_(seed * 17 + (begins ? 3 : 2)),
      buffer_(Pattern::kLongest) {
  arriving_end_ = piece(0);
}

uint64_t End::piece(uint64_t number) const noexcept {
  uint64_t hash = (number + 1) * 0x9e3779b97f4a7c15U ^ seed_;
  hash = (hash ^ hash >> 31) * 0xff51afd7ed558ccdU;
  hash ^= hash >> 29;
  // Most pieces are small, because the number of wake-ups is what counts.
  return 1 + (hash >> 8) % (uint64_t{1} << (hash % 14));
}

size_t End::random_size(std::mt19937_64& dice) const {
  const unsigned bits = static_cast<unsigned>(dice() % 19);
  return std::min<size_t>(1 + dice() % (size_t{1} << bits), largest_);
}

void End::fail(const char* what, uint64_t position) const {
  std::fprintf(stderr, "FAILED: %s at byte %llu: errno %d\n  %s\n  %s\n", what,
               static_cast<unsigned long long>(position), errno, describe().c_str(),
               other_->describe().c_str());
  std::abort();
}

bool End::wants_to_send() const noexcept {
  if (send_over_) return false;
  if (plan_ == Plan::flood) return true;
  if (sent_.load(std::memory_order_relaxed) < piece_end_) return true;
  const uint64_t turns = pieces_received_.load(std::memory_order_acquire) + (begins_ ? 1 : 0);
  return pieces_sent_ < turns || receive_over_;
}

End::Outcome End::send(bool may_block) {
  if (send_over_) return Outcome::over;
  const uint64_t position = sent_.load(std::memory_order_relaxed);
  size_t size = random_size(send_dice_);
  if (plan_ == Plan::ping_pong) {
    if (position == piece_end_) {
      const uint64_t turns = pieces_received_.load(std::memory_order_acquire) + (begins_ ? 1 : 0);
      if (pieces_sent_ >= turns && !receive_over_) return Outcome::waits;
      if (!receive_over_ && !(begins_ && g_stop)) piece_end_ += piece(pieces_sent_++);
    }
    size = std::min<size_t>(size, piece_end_ - position);
  } else if (g_stop) {
    size = 0;
  }
  if (size == 0) {
    announced_.store(position, std::memory_order_release);
    if (socket_.shutdown(SHUT_WR) != 0) fail("shutdown", position);
    send_over_ = true;
    g_progress.fetch_add(1, std::memory_order_relaxed);
    return Outcome::over;
  }
  // Sends in two parts now and then, to exercise the gathering paths.
  auto* data = const_cast<uint8_t*>(pattern_.at(position));
  const size_t first = send_dice_() % 4 == 0 ? send_dice_() % (size + 1) : size;
  const iovec parts[2] = {{data, first}, {data + first, size - first}};
  const bool wait = may_block && send_dice_() % 4 != 0;
  const ssize_t result =
      socket_.transmit(parts, first == size ? 1 : 2, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
  if (result < 0 && errno == EAGAIN && !wait) return Outcome::blocked;
  if (result <= 0 || static_cast<size_t>(result) > size) fail("send", position);
  if (wait && static_cast<size_t>(result) != size) fail("a blocking send sent less", position);
  sent_.store(position + static_cast<uint64_t>(result), std::memory_order_release);
  g_progress.fetch_add(1, std::memory_order_relaxed);
  return Outcome::moved;
}

End::Outcome End::receive(bool may_block) {
  if (receive_over_) return Outcome::over;
  const uint64_t position = received_.load(std::memory_order_relaxed);
  size_t size = random_size(receive_dice_);
  const bool wait = may_block && receive_dice_() % 4 != 0;
  int flags = wait ? 0 : MSG_DONTWAIT;
  const uint64_t kind = receive_dice_() % 8;
  if (kind == 0) flags |= MSG_PEEK;
  // In a ping-pong, bytes beyond the piece would never come.
  if (plan_ == Plan::ping_pong && kind == 1) size = std::min(size, arriving_end_ - position);
  if (kind == 1) flags |= MSG_WAITALL;
  const size_t first = receive_dice_() % 4 == 0 ? receive_dice_() % (size + 1) : size;
  const iovec parts[2] = {{buffer_.data(), first}, {buffer_.data() + first, size - first}};
  const ssize_t result = socket_.receive(parts, first == size ? 1 : 2, flags);
  if (result < 0 && errno == EAGAIN && !wait) return Outcome::blocked;
  if (result < 0 || static_cast<size_t>(result) > size) fail("recv", position);
  const auto length = static_cast<size_t>(result);
  if (std::memcmp(buffer_.data(), other_->pattern_.at(position), length) != 0) {
    const uint8_t* expected = other_->pattern_.at(position);
    size_t at = 0;
    while (buffer_[at] == expected[at]) ++at;
    size_t wrong = 0;
    for (size_t i = at; i < length; ++i) wrong += buffer_[i] != expected[i] ? 1 : 0;
    const int64_t elsewhere =
        other_->pattern_.find(buffer_.data() + at, std::min<size_t>(16, length - at));
    std::fprintf(
        stderr,
        "recv of %zu (first part %zu, flags %#x): %zu bytes, %zu of them wrong from %zu on; what "
        "is there belongs to byte %lld (expected: %llu) of every %zu\n",
        size, first, static_cast<unsigned>(flags), length, wrong, at,
        static_cast<long long>(elsewhere),
        static_cast<unsigned long long>((position + at) % Pattern::kPeriod), Pattern::kPeriod);
    fail("a wrong byte", position + at);
  }
  g_progress.fetch_add(1, std::memory_order_relaxed);
  if (length == 0) {
    if (position != other_->announced_.load(std::memory_order_acquire))
      fail("end of file before the end", position);
    receive_over_ = true;
    return Outcome::over;
  }
  if ((flags & MSG_PEEK) != 0) return Outcome::moved;
  if (wait && kind == 1 && length != size &&
      position + length != other_->announced_.load(std::memory_order_acquire))
    fail("MSG_WAITALL came back early", position);
  received_.store(position + length, std::memory_order_relaxed);
  if (plan_ == Plan::ping_pong) {
    if (position + length > arriving_end_) fail("more than the other end has sent", position);
    if (position + length == arriving_end_) {
      const uint64_t number = pieces_received_.load(std::memory_order_relaxed) + 1;
      arriving_end_ += piece(number);
      pieces_received_.store(number, std::memory_order_release);
    }
  }
  return Outcome::moved;
}

std::string End::describe() const {
  const engine::Stream& stream = socket_.stream();
  static constexpr const char* kPhases[] = {"undecided", "bound", "kernel"};
  const auto carrier = [](engine::Carrier value) {
    return value == engine::Carrier::engine ? "engine" : "kernel";
  };
  char text[512];
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::snprintf(text, sizeof text,
                "fd %d %s%s sent %llu%s received %llu%s | %s (%s) tx %s %llu+%llu rx %s %llu+%llu "
                "queued %llu "
                "sequences %u %u%s%s",
                fd_, plan_ == Plan::flood ? "flood" : "ping-pong", begins_ ? " begins" : "",
                number(sent_.load()), send_over_ ? " (over)" : "", number(received_.load()),
                receive_over_ ? " (over)" : "", kPhases[static_cast<size_t>(stream.phase())],
                engine::text_of(stream.reason()), carrier(stream.sender().carrier()),
                number(stream.sender().kernel_bytes()), number(stream.sender().engine_bytes()),
                carrier(stream.receiver().carrier()), number(stream.receiver().kernel_bytes()),
                number(stream.receiver().engine_bytes()), number(stream.receiver().queued()),
                stream.receiver().sequence(), stream.sender().sequence(),
                stream.is_aborted() ? " aborted" : "",
                stream.receiver().is_receive_ready() ? " ready" : "");
  return text;
}

}  // namespace sidestep::tests

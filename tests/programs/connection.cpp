#include "tests/programs/connection.hpp"
#include "tests/programs/raw_call.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace pair {

namespace {

constexpr std::array kOutcomeNames{"none", "complete", "reset", "short_eof", "corrupt", "failed"};

uint64_t stream_key(const Header& header, bool up) {
  return mix(mix(header.seed) ^ (header.number << 1) ^ (up ? 1U : 0U));
}

double now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::string json_of(const Direction& d) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(),
                R"({"outcome": "%s", "errno": %d, "bytes": %llu, "total": %llu, "at": %.6f})",
                kOutcomeNames.at(static_cast<size_t>(d.outcome.load())), d.error,
                static_cast<unsigned long long>(d.bytes), static_cast<unsigned long long>(d.total),
                d.at);
  return text.data();
}

void announce_streaming() {
  static std::atomic_flag said;
  if (!said.test_and_set()) {
    std::puts("streaming");
    std::fflush(stdout);
  }
}

// Splits a buffer into up to four pieces of random size.
std::vector<iovec> pieces(char* data, size_t size, Random& random) {
  std::vector<iovec> v;
  while (size > 0 && v.size() < 3) {
    const size_t n = std::min<size_t>(size, random.below(size + 1));
    v.push_back({data, n});  // an empty piece is allowed
    data += n;
    size -= n;
  }
  if (size > 0) v.push_back({data, size});
  return v;
}

}  // namespace

void Direction::finish(Outcome result, int err) {
  at = now();
  error = err;
  outcome = result;
}

void Direction::finish_with_errno(int err) {
  const bool lost = err == ECONNRESET || err == EPIPE;
  finish(lost ? Outcome::kReset : Outcome::kFailed, err);
}

Connection::Connection(int fd, const Options& options, const Header* header)
    : fd_(fd), options_(options), client_(header != nullptr) {
  if (client_) {
    know(*header);
    append_out(header, sizeof *header);
  }
}

Connection::~Connection() {
  close(fd_);
}

Step Connection::receive(bool blocking) {
  if (!rx_.open()) return Step::kEnded;
  size_t size = in_random_.size(options_.max_size);
  if (!known_) size = sizeof(Header) - header_fill_;
  in_.resize(std::max(in_.size(), size));
  bool peeked = false;
  const ssize_t n = receive_call(size, blocking, peeked);
  if (n < 0) {
    if (errno == EINTR) return Step::kMore;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Step::kWouldBlock;
    rx_.finish_with_errno(errno);
    give_up_sending();
    return Step::kEnded;
  }
  if (n == 0) {
    const bool whole = known_ && rx_.bytes == rx_.total && trailer_fill_ == sizeof(uint64_t);
    rx_.finish(whole ? Outcome::kComplete : Outcome::kShortEof);
    give_up_sending();
    return Step::kEnded;
  }
  std::span<const char> got(in_.data(), static_cast<size_t>(n));
  const bool right = peeked ? peek_is_right(got) : consume(got);
  if (!right) {
    rx_.finish(Outcome::kCorrupt);
    shutdown(fd_, SHUT_RDWR);
    return Step::kEnded;
  }
  return Step::kMore;
}

Step Connection::send_some() {
  if (!tx_.open()) return Step::kEnded;
  if (out_at_ == out_.size() && !fill()) {
    if (shutdown(fd_, SHUT_WR) != 0) {
      tx_.finish_with_errno(errno);
    } else {
      tx_.finish(Outcome::kComplete);
    }
    return Step::kEnded;
  }
  const ssize_t n = send_call({out_.data() + out_at_, out_.size() - out_at_});
  if (n < 0) {
    if (errno == EINTR) return Step::kMore;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Step::kWouldBlock;
    tx_.finish_with_errno(errno);
    return Step::kEnded;
  }
  out_at_ += static_cast<size_t>(n);
  return Step::kMore;
}

Outcome Connection::worst() const {
  return std::max(rx_.outcome.load(), tx_.outcome.load());
}

std::string Connection::json() const {
  return "{\"number\": " + std::to_string(number_) + ", \"tx\": " + json_of(tx_) +
         ", \"rx\": " + json_of(rx_) + "}";
}

// A server that never learned what to send has nothing to send.
void Connection::give_up_sending() {
  if (known_) return;
  tx_.finish(Outcome::kShortEof);
  known_ = true;
  known_.notify_all();
}

void Connection::know(const Header& header) {
  number_ = header.number;
  rx_.total = client_ ? header.bytes_down : header.bytes_up;
  tx_.total = client_ ? header.bytes_up : header.bytes_down;
  rx_pattern_ = Pattern(stream_key(header, !client_));
  tx_pattern_ = Pattern(stream_key(header, client_));
  in_random_ = Random(stream_key(header, client_) + 1);
  out_random_ = Random(stream_key(header, client_) + 2);
  known_ = true;
  known_.notify_all();
}

void Connection::append_out(const void* data, size_t n) {
  const char* p = static_cast<const char*>(data);
  out_.insert(out_.end(), p, p + n);
}

// Puts the next piece into out_. Returns false when everything has been sent.
bool Connection::fill() {
  out_.clear();
  out_at_ = 0;
  const size_t size = out_random_.size(options_.max_size);
  while (out_.size() < size && tx_.bytes < tx_.total) {
    const auto piece =
        tx_pattern_.at(tx_.bytes, std::min(tx_.total - tx_.bytes, size - out_.size()));
    append_out(piece.data(), piece.size());
    tx_.bytes += piece.size();
  }
  if (tx_.bytes == tx_.total && !trailer_sent_) {
    append_out(&tx_.total, sizeof tx_.total);
    trailer_sent_ = true;
  }
  return !out_.empty();
}

bool Connection::consume(std::span<const char> got) {
  if (!known_) {
    std::memcpy(reinterpret_cast<char*>(&header_) + header_fill_, got.data(), got.size());
    header_fill_ += got.size();
    if (header_fill_ < sizeof header_) return true;
    if (header_.magic != Header::kMagic) return false;
    know(header_);
    return true;
  }
  while (!got.empty() && rx_.bytes < rx_.total) {
    const auto expected = rx_pattern_.at(rx_.bytes, std::min(got.size(), rx_.total - rx_.bytes));
    if (std::memcmp(expected.data(), got.data(), expected.size()) != 0) {
      std::fprintf(stderr, "connection %u: wrong bytes between %llu and %llu\n",
                   static_cast<unsigned>(number_), static_cast<unsigned long long>(rx_.bytes),
                   static_cast<unsigned long long>(rx_.bytes + expected.size()));
      return false;
    }
    if (rx_.bytes == 0) announce_streaming();
    rx_.bytes += expected.size();
    got = got.subspan(expected.size());
  }
  if (got.size() > sizeof trailer_ - trailer_fill_) return false;
  if (!got.empty()) {
    std::memcpy(reinterpret_cast<char*>(&trailer_) + trailer_fill_, got.data(), got.size());
    trailer_fill_ += got.size();
  }
  return trailer_fill_ < sizeof trailer_ || trailer_ == rx_.total;
}

// Compares peeked bytes like the others, but they stay in the stream.
bool Connection::peek_is_right(std::span<const char> got) const {
  for (uint64_t at = rx_.bytes; !got.empty() && at < rx_.total;) {
    const auto expected = rx_pattern_.at(at, std::min(got.size(), rx_.total - at));
    if (std::memcmp(expected.data(), got.data(), expected.size()) != 0) return false;
    at += expected.size();
    got = got.subspan(expected.size());
  }
  return true;
}

Io Connection::pick(Random& random) const {
  if (options_.io != Io::kMixed) return options_.io;
  constexpr std::array kinds{Io::kRead, Io::kSend, Io::kVector, Io::kMessage};
  return kinds.at(random.below(kinds.size()));
}

namespace {
ssize_t by_instruction(long number, int fd, const void* data, size_t size, int flags) {
  const long result =
      raw_call(number, fd, reinterpret_cast<long>(data), static_cast<long>(size), flags);
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}
}  // namespace

ssize_t Connection::receive_call(size_t size, bool blocking, bool& peeked) {
  if (options_.io == Io::kRaw) return by_instruction(SYS_recvfrom, fd_, in_.data(), size, 0);
  const uint64_t extra = in_random_.below(16);
  if (known_ && extra == 0) {
    peeked = true;
    return recv(fd_, in_.data(), size, MSG_PEEK);
  }
  switch (pick(in_random_)) {
    case Io::kRead:
      return read(fd_, in_.data(), size);
    case Io::kVector: {
      const auto v = pieces(in_.data(), size, in_random_);
      return readv(fd_, v.data(), static_cast<int>(v.size()));
    }
    case Io::kMessage: {
      auto v = pieces(in_.data(), size, in_random_);
      msghdr m{};
      m.msg_iov = v.data();
      m.msg_iovlen = v.size();
      return recvmsg(fd_, &m, 0);
    }
    default:
      return recv(fd_, in_.data(), size, blocking && extra < 6 ? MSG_WAITALL : 0);
  }
}

ssize_t Connection::send_call(std::span<char> data) {
  switch (pick(out_random_)) {
    case Io::kRead:
      return write(fd_, data.data(), data.size());
    case Io::kVector: {
      const auto v = pieces(data.data(), data.size(), out_random_);
      return writev(fd_, v.data(), static_cast<int>(v.size()));
    }
    case Io::kMessage: {
      auto v = pieces(data.data(), data.size(), out_random_);
      msghdr m{};
      m.msg_iov = v.data();
      m.msg_iovlen = v.size();
      return sendmsg(fd_, &m, MSG_NOSIGNAL);
    }
    case Io::kRaw:
      return by_instruction(SYS_sendto, fd_, data.data(), data.size(), MSG_NOSIGNAL);
    default:
      return send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
  }
}

}  // namespace pair

#include "engine/control/cluster_key.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "config/text.hpp"
#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"

namespace sidestep::engine {
namespace {

/// Says what is wrong with the file; null if nothing is. Whoever can read the key is a member of
/// the cluster, and whoever can write the file decides what the key is. As with the keys of ssh,
/// only the owner may do either. But a group may read root's file, so that several users can have
/// it.
const char* fault_of(const struct stat& file) noexcept {
  if (!S_ISREG(file.st_mode)) return "it is not a regular file";
  if (file.st_uid != 0 && file.st_uid != geteuid()) return "it belongs to another user";
  if ((file.st_mode & (S_IROTH | S_IWOTH)) != 0) return "everybody can read or write it";
  if ((file.st_mode & S_IWGRP) != 0) return "its group can write it";
  if ((file.st_mode & S_IRGRP) != 0 && file.st_uid != 0) return "its group can read it";
  return nullptr;
}

std::string error_text(const char* what, long result) {
  return config::text::joined({what, ": ", std::strerror(static_cast<int>(-result))});
}

/// Reads the file, at most `size` bytes. Returns the number of bytes, or -errno.
long read_all(int fd, uint8_t* data, size_t size) noexcept {
  size_t done = 0;
  while (done < size) {
    const long got = sys::read(fd, data + done, size - done);
    if (got == -EINTR) continue;
    if (got < 0) return got;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return static_cast<long>(done);
}

struct OwnFd {
  int number;
  ~OwnFd() {
    if (number >= 0) private_fd_close(number);
  }
};

}  // namespace

ClusterKey::ClusterKey(const void* data, size_t size) noexcept : state_(State::unusable) {
  if (size < kShortest || size > kLongest) return;
  key_ = sha256(data, size);
  state_ = State::usable;
}

const char* ClusterKey::allowed() noexcept {
  return "a regular file of 16 to 4096 bytes that belongs to this user or to root, and that nobody "
         "else can read (or, if it is root's, its group only)";
}

ClusterKey ClusterKey::read(const std::string& path, std::string& why) {
  if (path.empty()) return {};
  ClusterKey key;
  key.state_ = State::unusable;
  // O_NONBLOCK: a pipe given by mistake must not block the program.
  const OwnFd fd{
      private_fd_adopt(sys::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY))};
  struct stat file {};
  if (fd.number < 0) {
    why = error_text("it can't be opened", fd.number);
  } else if (const int result = sys::fstat(fd.number, &file); result < 0) {
    why = error_text("it can't be examined", result);
  } else if (const char* const fault = fault_of(file)) {
    why = fault;
  } else {
    uint8_t data[kLongest + 1];  // one more: a longer file must not look right
    const long size = read_all(fd.number, data, sizeof data);
    if (size < 0) {
      why = error_text("it can't be read", size);
    } else if (static_cast<size_t>(size) > kLongest) {
      why = "it is too long";
    } else if (static_cast<size_t>(size) < kShortest) {
      why = config::text::joined({"it has only ", std::to_string(size), " bytes"});
    } else {
      key = ClusterKey(data, static_cast<size_t>(size));
    }
    explicit_bzero(data, sizeof data);
  }
  return key;
}

ClusterKey ClusterKey::missing() noexcept {
  ClusterKey key;
  key.state_ = State::missing;
  return key;
}

ClusterKey ClusterKey::load(const config::Config& config) noexcept try {
  const std::string& path = config.key_file;
  if (path.empty() && !config.allow_no_key) return missing();
  std::string why;
  const ClusterKey key = read(path, why);
  if (key.state() == State::unusable)
    log(LogLevel::error,
        "SIDESTEP_KEY_FILE: '%s' can't be used: %s; it must be %s. Other hosts are neither asked "
        "nor answered, and streams to them stay on the kernel",
        config::text::printable(path).c_str(), why.c_str(), allowed());
  return key;
} catch (const std::exception&) {
  ClusterKey key;
  key.state_ = State::unusable;
  return key;
}

Digest ClusterKey::mac_of(const DiscoveryMessage& message) const noexcept {
  if (state_ != State::usable) return {};
  return hmac_sha256(key_.data(), key_.size(), &message, offsetof(DiscoveryMessage, mac));
}

void ClusterKey::sign(DiscoveryMessage& message) const noexcept {
  message.mac = mac_of(message);
}

bool ClusterKey::verify(const DiscoveryMessage& message) const noexcept {
  return lets_talk() && same_digest(message.mac, mac_of(message));
}

}  // namespace sidestep::engine

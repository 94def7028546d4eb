#pragma once
/// Descriptors that belong to Sidestep and not to the program.
///
/// They are moved to high numbers, so that the program gets the low ones that POSIX promises it,
/// and are listed here, so that the shim can keep a program that closes "everything" away from
/// them. Thread-safe.
#include <cstddef>
#include <utility>

namespace sidestep::engine {

/// Takes `fd` over: moves it high if there is room, marks it close-on-exec and private; returns the
/// number to use. A negative `fd` is returned as it is.
int private_fd_adopt(int fd) noexcept;
/// Closes a private descriptor, or puts it into the reserve.
void private_fd_close(int fd) noexcept;
/// Returns a private duplicate of `fd`, or -errno. When the program has used up its descriptors,
/// the number comes from the reserve, which serves as many duplicates at a time as it has places. A
/// duplicate that is closed goes back there.
int private_fd_duplicate(int fd) noexcept;
inline constexpr size_t kMostInReserve = 2;
/// Fills `places` places of the reserve, each only once: later it would take the numbers that the
/// program has just given back. `blank`: a private descriptor that stays open; the descriptors in
/// the reserve refer to the same open file. Returns false if there are not enough numbers. One
/// thread at a time.
bool private_fd_make_reserve(int blank, size_t places) noexcept;
/// Forgets `fd`: somebody else will close it.
void private_fd_release(int fd) noexcept;
bool is_private_fd(int fd) noexcept;
/// Returns the smallest of them that is not below `fd` (at least 0), or a negative number.
int next_private_fd(int fd) noexcept;
/// Closes all of them. Called in a child of fork, and when the node could not start.
void private_fd_close_all() noexcept;
/// Returns another number after private_fd_close_all(). What was adopted before that is gone, and
/// its number may be in use again, even for another private descriptor.
unsigned private_fd_epoch() noexcept;

/// Owns one private descriptor, or none (negative).
class PrivateFd {
 public:
  explicit PrivateFd(int fd = -1) noexcept : fd_(fd) {}
  ~PrivateFd() {
    if (fd_ >= 0) private_fd_close(fd_);
  }
  PrivateFd(PrivateFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PrivateFd& operator=(PrivateFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

}  // namespace sidestep::engine

#include "preload/io_arguments.hpp"

#include <array>
#include <atomic>
#include <cerrno>

#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

int fault_of(const iovec* vector, size_t count) noexcept {
  if (count > IOV_MAX) return EINVAL;
  if (count != 0 && !engine::is_readable(vector, count * sizeof *vector)) return EFAULT;
  for (size_t i = 0; i < count; ++i) {
    if (vector[i].iov_len > SSIZE_MAX) return EINVAL;
    if (!engine::is_in_user_space(vector[i].iov_base, vector[i].iov_len)) return EFAULT;
  }
  return 0;
}

int fault_of(const msghdr* message) noexcept {
  if (!engine::is_readable(message, sizeof *message)) return EFAULT;
  if (message->msg_iovlen > IOV_MAX) return EMSGSIZE;
  return fault_of(message->msg_iov, message->msg_iovlen);
}

bool kernel_takes(int flags) noexcept {
  if (flags == 0) return true;
  static std::array<std::atomic<char>, 256> answers;  // 0: not known
  const bool kept = flags > 0 && static_cast<size_t>(flags) < answers.size();
  if (const char known =
          kept ? answers[static_cast<size_t>(flags)].load(std::memory_order_relaxed) : char{0};
      known != 0)
    return known == 'y';
  const int fd = sys::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return (flags & ~RWF_NOWAIT) == 0;
  char byte = 0;
  const iovec part{&byte, 1};
  const bool takes = sys::call(SYS_preadv2, fd, &part, 1, -1L, -1L, flags) == -ENOTCONN;
  sys::close(fd);
  if (kept) answers[static_cast<size_t>(flags)].store(takes ? 'y' : 'n', std::memory_order_relaxed);
  return takes;
}

}  // namespace sidestep::preload

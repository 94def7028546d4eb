#pragma once
/// The results of poll(2) and epoll(7) as text.
#include <poll.h>

#include <string>
#include <utility>

namespace conformance {

/// Returns poll's event mask as text. Epoll uses the same bits.
inline std::string mask_text(unsigned events) {
  const std::pair<unsigned, const char*> names[] = {
      {POLLIN, "IN"},         {POLLPRI, "PRI"},       {POLLOUT, "OUT"},      {POLLERR, "ERR"},
      {POLLHUP, "HUP"},       {POLLNVAL, "NVAL"},     {POLLRDHUP, "RDHUP"},  {POLLRDNORM, "RDNORM"},
      {POLLWRNORM, "WRNORM"}, {POLLRDBAND, "RDBAND"}, {POLLWRBAND, "WRBAND"}};
  std::string text;
  for (const auto& [bit, name] : names)
    if ((events & bit) != 0) text += std::string(text.empty() ? "" : " ") + name;
  return text.empty() ? "none" : text;
}

}  // namespace conformance

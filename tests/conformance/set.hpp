#pragma once
/// An epoll set whose events are returned as text.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/transcript.hpp"

namespace conformance {

class Set {
 public:
  Set() : fd_(epoll_create1(EPOLL_CLOEXEC)) {}
  ~Set() {
    if (fd_ >= 0) close(fd_);
  }
  Set(const Set&) = delete;
  int fd() const { return fd_; }
  int control(int operation, int fd, unsigned events, uint64_t data = 0) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return epoll_ctl(fd_, operation, fd, &event);
  }
  int add(int fd, unsigned events, uint64_t data = 0) const {
    return control(EPOLL_CTL_ADD, fd, events, data);
  }
  int modify(int fd, unsigned events, uint64_t data = 0) const {
    return control(EPOLL_CTL_MOD, fd, events, data);
  }
  int remove(int fd) const { return epoll_ctl(fd_, EPOLL_CTL_DEL, fd, nullptr); }
  /// Returns the events as "data:IN OUT, ...", sorted as text; "" if there are none.
  std::string wait(int milliseconds = 0, int most = 16) const {
    std::vector<epoll_event> found(static_cast<size_t>(most));
    const int count = epoll_wait(fd_, found.data(), most, milliseconds);
    if (count < 0) return "-1 " + errno_name(errno);
    std::vector<std::string> texts;
    for (int i = 0; i < count; ++i) {
      std::string text = std::to_string(found[static_cast<size_t>(i)].data.u64) + ":";
      const std::pair<unsigned, const char*> names[] = {{EPOLLIN, "IN"},       {EPOLLOUT, "OUT"},
                                                        {EPOLLRDHUP, "RDHUP"}, {EPOLLHUP, "HUP"},
                                                        {EPOLLERR, "ERR"},     {EPOLLPRI, "PRI"}};
      for (const auto& [bit, name] : names)
        if ((found[static_cast<size_t>(i)].events & bit) != 0) text += std::string(" ") + name;
      texts.push_back(text);
    }
    std::sort(texts.begin(), texts.end());
    std::string all;
    for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + text;
    return all;
  }

 private:
  int fd_;
};

/// Milliseconds. A wait that must find nothing has to last as long as a late event may take.
inline constexpr int kLong = 30;

}  // namespace conformance

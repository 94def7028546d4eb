#include "tests/bench/message_pipe.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>

#include "engine/base/clock.hpp"
#include "tests/bench/failure.hpp"

namespace sidestep::bench {

void MessagePipe::send(const nlohmann::json& message) {
  const std::string line = message.dump() + '\n';
  for (size_t done = 0; done < line.size();) {
    const ssize_t written = write(write_fd_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw Failure("has gone");
    done += static_cast<size_t>(written);
  }
}

nlohmann::json MessagePipe::receive(double seconds) {
  const uint64_t limit = engine::now_ns() + static_cast<uint64_t>(seconds * 1e9);
  for (;;) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      const std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return nlohmann::json::parse(line);
    }
    const uint64_t now = engine::now_ns();
    const int left = now < limit ? static_cast<int>((limit - now) / 1'000'000 + 1) : 0;
    pollfd readable{read_fd_, POLLIN, 0};
    const int ready = poll(&readable, 1, left);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) throw Failure("does not answer");
    char buffer[65536];
    const ssize_t got = read(read_fd_, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw Failure("has gone");
    pending_.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace sidestep::bench

#include "tests/bench/node_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "engine/base/clock.hpp"
#include "tests/bench/failure.hpp"

namespace sidestep::bench {
namespace {

/// Runs in the child and never returns. Makes the pipes to the coordinator its standard input and
/// output.
[[noreturn]] void become_node(int commands, int answers, pid_t coordinator, const char* number) {
  // If the coordinator is killed, its nodes die with it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == coordinator && dup2(commands, STDIN_FILENO) >= 0 &&
      dup2(answers, STDOUT_FILENO) >= 0)
    execl("/proc/self/exe", "engine_bench", kNodeRole, number, nullptr);
  _exit(127);
}

}  // namespace

NodeProcess::NodeProcess(unsigned number, const Options& options) : number_(number) {
  int commands[2];
  int answers[2];
  if (pipe2(commands, O_CLOEXEC) < 0) throw Failure(fmt::format("pipe: {}", strerror(errno)));
  to_node_ = commands[1];
  if (pipe2(answers, O_CLOEXEC) < 0) {
    const int error = errno;
    close(commands[0]);
    close(commands[1]);
    throw Failure(fmt::format("pipe: {}", strerror(error)));
  }
  from_node_ = answers[0];
  const std::string text = std::to_string(number);
  const pid_t self = getpid();
  pid_ = fork();
  if (pid_ == 0) become_node(commands[0], answers[1], self, text.c_str());
  const int error = errno;
  close(commands[0]);
  close(answers[1]);
  if (pid_ < 0) {
    close(to_node_);
    close(from_node_);
    throw Failure(fmt::format("fork: {}", strerror(error)));
  }
  pipe_ = std::make_unique<MessagePipe>(from_node_, to_node_);
  send({{"nodes", options.nodes},
        {"pattern", static_cast<int>(options.pattern)},
        {"streams", options.streams},
        {"threads", options.threads},
        {"raw", options.raw}});
}

NodeProcess::~NodeProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    reap(10);
  }
  close(to_node_);
  close(from_node_);
}

bool NodeProcess::reap(double seconds) {
  const uint64_t limit = engine::now_ns() + static_cast<uint64_t>(seconds * 1e9);
  while (pid_ > 0) {
    const pid_t done = waitpid(pid_, &status_, WNOHANG);
    if (done == pid_ || (done < 0 && errno == ECHILD)) {
      pid_ = -1;
    } else if (engine::now_ns() >= limit) {
      return false;
    } else {
      usleep(1000);
    }
  }
  return true;
}

void NodeProcess::fail(const char* how) {
  if (!reap(0.5)) throw Failure(fmt::format("node {} {}", number_, how));
  if (WIFSIGNALED(status_))
    throw Failure(fmt::format("node {} was killed by signal {}", number_, WTERMSIG(status_)));
  throw Failure(fmt::format("node {} ended with exit code {}", number_, WEXITSTATUS(status_)));
}

void NodeProcess::send(const nlohmann::json& message) {
  try {
    pipe_->send(message);
  } catch (const Failure& failure) {
    fail(failure.what());
  }
}

nlohmann::json NodeProcess::receive(double seconds) {
  nlohmann::json message;
  try {
    message = pipe_->receive(seconds);
  } catch (const Failure& failure) {
    fail(failure.what());
  }
  if (message.contains("error"))
    throw Failure(fmt::format("node {}: {}", number_, message["error"].get<std::string>()));
  return message;
}

void NodeProcess::join(double seconds) {
  if (!reap(seconds)) throw Failure(fmt::format("node {} does not end", number_));
  if (status_ != 0) fail("failed");
}

}  // namespace sidestep::bench

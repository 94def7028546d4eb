// The conformance suite: what a program sees of its TCP sockets, with and without Sidestep.
//
//   CONFORMANCE_FILE=f conformance                             writes what the kernel does
//   CONFORMANCE_FILE=f CONFORMANCE_MODE=engine conformance     compares, under LD_PRELOAD
//   CONFORMANCE_FILE=f CONFORMANCE_MODE=switching conformance
//
// CONFORMANCE_REPEAT=n runs every case n times. CONFORMANCE_NEIGHBOUR=1 runs the cases beside a
// thread that sleeps on another stream. Boost.Test's options may follow.
// integration/test_conformance.py runs all of it.
#include <execinfo.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

namespace ut = boost::unit_test;
using Lines = std::vector<std::string>;

struct Case {
  std::string name;
  std::function<void()> body;
};

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

std::map<std::string, Lines> g_transcripts;  // the kernel's run: written or read
Lines g_lines;
std::string g_running;
constexpr unsigned kMostSeconds = 30;
const pid_t g_pid = getpid();

std::string file_name() {
  const char* const name = std::getenv("CONFORMANCE_FILE");
  return name != nullptr ? name : "";
}

/// Prints which call each thread is in, to help find out why a case hangs. It takes no lock and
/// allocates no memory: the library may be what hangs, and it sees these calls, too.
void show_threads() {
  const auto say = [](const char* text) {
    syscall(SYS_write, STDERR_FILENO, text, std::strlen(text));
  };
  say("it hangs in:\n");
  void* frames[40];
  backtrace_symbols_fd(frames, backtrace(frames, 40), STDERR_FILENO);
  const auto tasks =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY));
  alignas(long) char entries[8192];
  const long length = syscall(SYS_getdents64, tasks, entries, sizeof entries);
  for (long at = 0; at < length;) {
    // linux_dirent64: d_ino, d_off, d_reclen, d_type, d_name
    unsigned short size = 0;
    std::memcpy(&size, entries + at + 16, sizeof size);
    const char* const thread = entries + at + 19;
    at += size;
    if (*thread == '.') continue;
    for (const char* what : {"comm", "syscall"}) {
      char path[64];
      char text[256];
      std::snprintf(path, sizeof path, "%s/%s", thread, what);
      const auto fd = static_cast<int>(syscall(SYS_openat, tasks, path, O_RDONLY));
      const long got = syscall(SYS_read, fd, text, sizeof text);
      if (got > 0) syscall(SYS_write, STDERR_FILENO, text, got);
    }
  }
}

/// Ends the run: a call that hangs is a failure like any other, but leaves nothing to go on with.
void give_up(int) {
  const char* const parts[] = {"\nhangs: ", g_running.c_str(), "; what it has seen:\n"};
  for (const char* part : parts) (void)!write(STDERR_FILENO, part, std::strlen(part));
  for (const std::string& line : g_lines) {
    (void)!write(STDERR_FILENO, line.data(), line.size());
    (void)!write(STDERR_FILENO, "\n", 1);
  }
  show_threads();
  std::_Exit(3);
}

void compare(const Lines& expected) {
  for (size_t i = 0; i < std::max(expected.size(), g_lines.size()); ++i) {
    const std::string there = i < expected.size() ? expected[i] : "(nothing)";
    const std::string here = i < g_lines.size() ? g_lines[i] : "(nothing)";
    BOOST_TEST(here == there, g_running << ", step " << i + 1 << "\n  kernel:   " << there
                                        << "\n  Sidestep: " << here);
    if (here != there) return;  // differences that follow from it are of no interest
  }
}

void run(const Case& one) {
  const char* const repeat = std::getenv("CONFORMANCE_REPEAT");
  for (int left = repeat != nullptr ? std::atoi(repeat) : 1; left > 0; --left) {
    g_running = one.name;
    g_lines.clear();
    alarm(kMostSeconds);
    try {
      std::optional<Neighbour> neighbour;
      if (std::getenv("CONFORMANCE_NEIGHBOUR") != nullptr) neighbour.emplace();
      one.body();
    } catch (const std::exception& error) {
      if (getpid() == g_pid) throw;
      std::fprintf(stderr, "error: in a child of %s: %s\n", one.name.c_str(), error.what());
      std::_Exit(99);  // only the parent runs the rest of the suite
    }
    alarm(0);
    BOOST_TEST(!g_lines.empty(), one.name << " has seen nothing");
    if (mode() == Mode::kernel) {
      g_transcripts[one.name] = g_lines;
    } else {
      const auto found = g_transcripts.find(one.name);
      BOOST_TEST_REQUIRE((found != g_transcripts.end()),
                         one.name << ": the kernel's run is missing");
      compare(found->second);
    }
  }
}

/// Registers the cases with Boost.Test. In "suite.what.case", the first word is the suite.
void register_cases() {
  std::map<std::string, ut::test_suite*> suites;
  for (const Case& one : cases()) {
    const size_t dot = one.name.find('.');
    ut::test_suite*& suite = suites[one.name.substr(0, dot)];
    if (suite == nullptr) {
      suite = BOOST_TEST_SUITE(one.name.substr(0, dot));
      ut::framework::master_test_suite().add(suite);
    }
    suite->add(
        ut::make_test_case([&one] { run(one); }, one.name.substr(dot + 1), __FILE__, __LINE__));
  }
}

bool init() {
  std::signal(SIGALRM, give_up);
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads what give_up() needs for backtrace()
  register_cases();
  if (mode() == Mode::kernel) return true;
  std::ifstream file(file_name());
  if (!file) {
    std::fprintf(stderr, "CONFORMANCE_FILE: cannot read %s\n", file_name().c_str());
    return false;
  }
  g_transcripts = nlohmann::json::parse(file);
  return true;
}

}  // namespace

Mode mode() {
  static const Mode chosen = [] {
    const char* const name = std::getenv("CONFORMANCE_MODE");
    const std::string text = name != nullptr ? name : "kernel";
    return text == "engine" ? Mode::engine : text == "switching" ? Mode::switching : Mode::kernel;
  }();
  return chosen;
}

void add_case(std::string name, std::function<void()> body) {
  cases().push_back({std::move(name), std::move(body)});
}

void add_line(std::string_view what, std::string_view result) {
  g_lines.push_back(std::string(what) + " = " + std::string(result));
}

std::string errno_name(int error) {
  const char* const name = strerrorname_np(error);
  return name != nullptr ? name : std::to_string(error);
}

}  // namespace conformance

int main(int argc, char** argv) {
  const int result = boost::unit_test::unit_test_main(conformance::init, argc, argv);
  if (conformance::mode() == conformance::Mode::kernel && !conformance::file_name().empty())
    std::ofstream(conformance::file_name()) << nlohmann::json(conformance::g_transcripts).dump(1);
  return result;
}

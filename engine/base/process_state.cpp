#include "engine/base/process_state.hpp"

#include <dirent.h>
#include <fcntl.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "engine/base/sys.hpp"

namespace sidestep::engine {
namespace {

/// Returns the state letter of /proc/PID/stat, or 0 if it cannot be read (the thread has ended).
char state_in(const char* path) noexcept {
  const int fd = sys::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[256];  // "PID (NAME) S": a name has 64 bytes at most
  const long size = sys::read(fd, text, sizeof text - 1);
  sys::close(fd);
  if (size <= 0) return 0;
  text[size] = '\0';
  const char* const name_end = std::strrchr(text, ')');
  return name_end != nullptr && name_end[1] == ' ' ? name_end[2] : '\0';
}

struct Tally {
  bool runs = false;
  bool sleeps = false;
  bool stopped = false;

  void add(char state) noexcept {
    switch (state) {
      case 'T':
      case 't':
        stopped = true;
        break;
      case 'S':
      case 'I':
        sleeps = true;
        break;
      case 'R':
      case 'D':
        runs = true;
        break;
      default:  // it has ended, or is about to
        break;
    }
  }
};

}  // namespace

ProcessState state_of_process(int pid) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task", pid);
  const int directory = sys::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return ProcessState::unknown;
  Tally tally;
  alignas(8) char entries[2048];
  while (!tally.runs) {
    const long size = sys::call(SYS_getdents64, directory, entries, sizeof entries);
    if (size <= 0) break;
    for (long at = 0; at < size && !tally.runs;) {
      // struct linux_dirent64: number, offset, length of the record, type, name
      uint16_t length = 0;
      std::memcpy(&length, entries + at + 16, sizeof length);
      const char* const name = entries + at + 19;
      if (name[0] != '.') {
        char file[96];
        std::snprintf(file, sizeof file, "%s/%.16s/stat", path, name);
        tally.add(state_in(file));
      }
      at += length;
    }
  }
  sys::close(directory);
  if (tally.runs) return ProcessState::runs;
  if (tally.sleeps) return ProcessState::sleeps;  // a debugger may hold a single thread
  return tally.stopped ? ProcessState::stopped : ProcessState::unknown;
}

}  // namespace sidestep::engine

#pragma once
/// Files that look like those of the kernel for a control group with a CPU quota.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.hpp"

namespace sidestep::tests {

class FakeControlGroup {
 public:
  /// Makes a group of version 2 at `path` below the mount; "" means the mounted group itself.
  explicit FakeControlGroup(const std::string& path) : group_(folder_.path() / path) {
    std::filesystem::create_directories(group_);
    write("cpu.max", "100000 100000\n");
    throttle(1'000'000);  // has happened before anybody looks
  }

  std::string mounts() const { return folder_.path(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(group_ / name) << text;
  }
  /// Adds `time` nanoseconds to the throttled time.
  void throttle(uint64_t time) {
    throttled_ += time;
    write("cpu.stat", "usage_usec 12345\nnr_throttled 3\nthrottled_usec " +
                          std::to_string(throttled_ / 1000) + "\nnr_bursts 0\n");
  }

 private:
  TemporaryFolder folder_;
  std::filesystem::path group_;
  uint64_t throttled_ = 0;
};

}  // namespace sidestep::tests

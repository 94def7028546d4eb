#pragma once
/// For how long a CPU quota has kept the threads of this process from running.
///
/// The quota is that of the process's own control group, as it is when the first device is opened:
/// cpu.max or cpu.cfs_quota_us (cgroups(7), and the kernel's admin-guide/cgroup-v2.rst and
/// scheduler/sched-bwc.rst). Where there is none, nothing is held; where there is one, a private
/// descriptor of cpu.stat.
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/private_fd.hpp"

namespace sidestep::engine {

class CpuQuota {
 public:
  /// Looks for a quota, the first time. One thread, before the others ask.
  void open() noexcept;
  /// The same of a process of which /proc/PID/cgroup says this, with the file systems of control
  /// groups below `mounts`.
  void open(std::string_view cgroup, const std::string& mounts);
  bool exists() const noexcept { return stat_.get() >= 0; }
  /// In nanoseconds, of all processors together, since open(); 0 where there is no quota.
  /// Any thread. A system call.
  uint64_t throttled() const noexcept;

 private:
  uint64_t throttled_in_all() const noexcept;

  bool has_looked_ = false;
  PrivateFd stat_;
  uint64_t before_ = 0;  // open()
};

}  // namespace sidestep::engine

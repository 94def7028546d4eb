#pragma once
/// How long a CPU quota has kept the threads of this process from running.
///
/// The quota is that of the process's own control group at the time the first device is opened:
/// cpu.max or cpu.cfs_quota_us (cgroups(7), and the kernel's admin-guide/cgroup-v2.rst and
/// scheduler/sched-bwc.rst). If there is a quota, the object holds a private descriptor of
/// cpu.stat; if there is none, it holds nothing.
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/private_fd.hpp"

namespace sidestep::engine {

class CpuQuota {
 public:
  /// Looks for a quota on the first call. Called by one thread, before the others ask.
  void open() noexcept;
  /// Looks for the quota of a process whose /proc/PID/cgroup contains `cgroup`. The control group
  /// file systems are below `mounts`.
  void open(std::string_view cgroup, const std::string& mounts);
  bool exists() const noexcept { return stat_.get() >= 0; }
  /// Returns the throttled time since open() in nanoseconds, summed over all processors; 0 if there
  /// is no quota. Any thread. One system call.
  uint64_t throttled() const noexcept;

 private:
  uint64_t throttled_in_all() const noexcept;

  bool has_looked_ = false;
  PrivateFd stat_;
  uint64_t before_ = 0;  // at open()
};

}  // namespace sidestep::engine

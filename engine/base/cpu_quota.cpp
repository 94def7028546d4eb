#include "engine/base/cpu_quota.hpp"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <optional>
#include <utility>

#include "engine/base/sys.hpp"

namespace sidestep::engine {
namespace {

constexpr const char* kMounts = "/sys/fs/cgroup";

/// The beginning of a file. The files that are read here are no longer than that.
class Text {
 public:
  explicit Text(const PrivateFd& file) noexcept {
    if (file.get() < 0) return;
    const long got = sys::call(SYS_pread64, file.get(), data_, sizeof data_, 0);
    size_ = got > 0 ? static_cast<size_t>(got) : 0;
  }
  std::string_view view() const noexcept { return {data_, size_}; }

 private:
  char data_[4096];
  size_t size_ = 0;
};

PrivateFd open_file(const std::string& path) noexcept {
  return PrivateFd(private_fd_adopt(sys::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
}

/// Calls `visit` with each line until it returns true.
template <typename Visit>
void for_lines(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (visit(text.substr(0, end))) return;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// Returns the number that follows `name` and a space at the beginning of a line.
std::optional<uint64_t> number_of(std::string_view text, std::string_view name) noexcept {
  std::optional<uint64_t> found;
  for_lines(text, [&](std::string_view line) {
    if (!line.starts_with(name) || line.substr(name.size()).substr(0, 1) != " ") return false;
    line.remove_prefix(name.size() + 1);
    uint64_t number = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), number).ec == std::errc())
      found = number;
    return true;
  });
  return found;
}

bool has_quota(const std::string& group) noexcept {
  const Text max{open_file(group + "/cpu.max")};
  const Text quota{open_file(group + "/cpu.cfs_quota_us")};
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text[0] >= '0' && text[0] <= '9';
  };
  return is_number(max.view()) || is_number(quota.view());
}

/// Visits the directories below the mounts where the control group that manages processors may be.
/// In a container its path may be that of the host, while the mount is the group itself.
template <typename Visit>
void for_groups(std::string_view cgroup, const std::string& mounts, Visit visit) {
  for_lines(cgroup, [&](std::string_view line) {
    const size_t controllers = line.find(':') + 1;
    const size_t path = controllers == 0 ? 0 : line.find(':', controllers) + 1;
    if (path == 0) return false;
    const std::string_view names = line.substr(controllers, path - 1 - controllers);
    const std::string own(line.substr(path) == "/" ? "" : line.substr(path));
    std::string mount;
    if (names.empty()) {  // version 2
      mount = mounts;
    } else if (names == "cpu" || names.starts_with("cpu,") || names.find(",cpu,") != names.npos ||
               names.ends_with(",cpu")) {
      mount = mounts + "/" + std::string(names);
    } else {
      return false;
    }
    return visit(mount + own) || (!own.empty() && visit(mount));
  });
}

}  // namespace

void CpuQuota::open() noexcept try {
  if (std::exchange(has_looked_, true)) return;
  const Text cgroup{open_file("/proc/self/cgroup")};
  open(cgroup.view(), kMounts);
} catch (const std::bad_alloc&) {
  // As if there were no quota.
}

void CpuQuota::open(std::string_view cgroup, const std::string& mounts) {
  for_groups(cgroup, mounts, [&](const std::string& group) {
    if (!has_quota(group)) return false;
    stat_ = open_file(group + "/cpu.stat");
    return exists();
  });
  before_ = throttled_in_all();
}

uint64_t CpuQuota::throttled() const noexcept {
  const uint64_t now = exists() ? throttled_in_all() : 0;
  return now > before_ ? now - before_ : 0;
}

uint64_t CpuQuota::throttled_in_all() const noexcept {
  constexpr uint64_t kMicrosecond = 1000;
  const Text text{stat_};
  if (const auto time = number_of(text.view(), "throttled_usec")) return *time * kMicrosecond;
  return number_of(text.view(), "throttled_time").value_or(0);
}

}  // namespace sidestep::engine

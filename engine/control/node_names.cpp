#include "engine/control/node_names.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "engine/base/private_fd.hpp"
#include "engine/base/random.hpp"
#include "engine/base/sys.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {
namespace {

constexpr const char* kPrefix = "sidestep.";

struct SocketAddress {
  sockaddr_un address{};
  socklen_t length = 0;
};

/// sun_path[0] stays 0: this is an abstract name, which needs no file and ends with its process.
SocketAddress abstract(const char* name) noexcept {
  SocketAddress result;
  result.address.sun_family = AF_UNIX;
  const size_t length = std::min(std::strlen(name), sizeof result.address.sun_path - 1);
  std::memcpy(result.address.sun_path + 1, name, length);
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return result;
}

/// The address of a file. Its length is 0 if the path is too long.
SocketAddress file(const std::string& folder, const char* name) noexcept {
  SocketAddress result;
  result.address.sun_family = AF_UNIX;
  const int length = std::snprintf(result.address.sun_path, sizeof result.address.sun_path, "%s/%s",
                                   folder.c_str(), name);
  if (length > 0 && static_cast<size_t>(length) < sizeof result.address.sun_path)
    result.length = sizeof result.address;
  return result;
}

int new_link() noexcept {
  return private_fd_adopt(sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int closed_with(int fd, long error) noexcept {
  private_fd_close(fd);
  return static_cast<int>(error);
}

int listen_on(int fd, const SocketAddress& at) noexcept {
  const int bound = sys::bind(fd, &at.address, at.length);
  return bound == 0 ? sys::listen(fd, 4096) : bound;
}

long unlink(const char* path) noexcept {
  return sys::call(SYS_unlinkat, AT_FDCWD, path, 0);
}

uint16_t nid_of(const char* digits) noexcept {
  char* end = nullptr;
  const unsigned long nid = std::strtoul(digits, &end, 10);
  const bool is_one = end != digits && (*end == '\n' || *end == '\0') && nid >= 1 && nid <= 0xffff;
  return is_one ? static_cast<uint16_t>(nid) : uint16_t{0};
}

void sort_out(std::vector<uint16_t>& nids) {
  std::sort(nids.begin(), nids.end());
  nids.erase(std::unique(nids.begin(), nids.end()), nids.end());
}

bool is_shortage(long error) noexcept {
  return error == -EMFILE || error == -ENFILE || error == -ENOMEM;
}

}  // namespace

NodeNames::Name NodeNames::of_node(uint16_t nid) noexcept {
  Name name;
  std::snprintf(name.text, sizeof name.text, "%s%u.%u", kPrefix, unsigned{kProtocolVersion},
                unsigned{nid});
  return name;
}

NodeNames::Name NodeNames::of_directory(uid_t user, unsigned seat) noexcept {
  Name name;
  std::snprintf(name.text, sizeof name.text, "%s%u.directory.%u.%u", kPrefix,
                unsigned{kProtocolVersion}, user, seat);
  return name;
}

int NodeNames::listen_at(const Name& name) const noexcept {
  const int fd = new_link();
  if (fd < 0) return fd;
  if (!are_files()) {
    const int result = listen_on(fd, abstract(name.text));
    return result == 0 ? fd : closed_with(fd, result);
  }
  // The socket listens under a draft name first, which nobody looks for, so whoever finds the right
  // name finds it listening. Others can't know the draft name and take it before.
  char draft[sizeof name.text];
  std::snprintf(draft, sizeof draft, ".%016llx", static_cast<unsigned long long>(random_number()));
  const SocketAddress before = file(folder_, draft);
  const SocketAddress after = file(folder_, name.text);
  if (before.length == 0 || after.length == 0) return closed_with(fd, -ENAMETOOLONG);
  long result = listen_on(fd, before);
  // Whoever may see the folder may connect, as with an abstract name; this node checks who it is.
  if (result == 0) result = sys::call(SYS_fchmodat, AT_FDCWD, before.address.sun_path, 0666);
  if (result == 0)
    result = sys::call(SYS_linkat, AT_FDCWD, before.address.sun_path, AT_FDCWD,
                       after.address.sun_path, 0);
  unlink(before.address.sun_path);
  if (result == -EEXIST) result = -EADDRINUSE;  // the name itself exists
  return result == 0 ? fd : closed_with(fd, result);
}

int NodeNames::claim(const Name& name) const noexcept {
  const int fd = listen_at(name);
  if (fd != -EADDRINUSE || !are_files()) return fd;
  // A process that was killed may have left it.
  const int other = open_at(name);
  private_fd_close(other);
  if (other != -ECONNREFUSED) return fd;
  sweep();
  return listen_at(name);
}

int NodeNames::open_at(const Name& name) const noexcept {
  const SocketAddress at = are_files() ? file(folder_, name.text) : abstract(name.text);
  if (at.length == 0) return -ENAMETOOLONG;
  const int fd = new_link();
  if (fd < 0) return fd;
  const int result = sys::connect(fd, &at.address, at.length);
  if (result == 0) return fd;
  // A missing file means the same as a missing abstract name.
  return closed_with(fd, result == -ENOENT ? -ECONNREFUSED : result);
}

int NodeNames::listen_as(uint16_t nid) const noexcept {
  return claim(of_node(nid));
}

int NodeNames::listen_for_directory(unsigned seat) const noexcept {
  return claim(of_directory(getuid(), seat));
}

int NodeNames::open_link(uint16_t nid) const noexcept {
  return open_at(of_node(nid));
}

int NodeNames::open_link_to_directory(uid_t user, unsigned seat) const noexcept {
  return open_at(of_directory(user, seat));
}

std::vector<uint16_t> NodeNames::parse(const std::string& text) {
  std::vector<uint16_t> nids;
  char prefix[64];
  std::snprintf(prefix, sizeof prefix, " @%s%u.", kPrefix, unsigned{kProtocolVersion});
  const size_t skip = std::strlen(prefix);
  for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at + 1))
    if (const uint16_t nid = nid_of(text.c_str() + at + skip); nid != 0) nids.push_back(nid);
  sort_out(nids);  // accepted sockets carry the listener's name, too
  return nids;
}

int NodeNames::list_files(std::vector<std::string>& names) const {
  const int fd = sys::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return fd;
  alignas(dirent64) char buffer[8192];
  for (long n; (n = sys::call(SYS_getdents64, fd, buffer, sizeof buffer)) > 0;)
    for (long at = 0; at < n;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(buffer + at);
      names.emplace_back(entry->d_name);
      at += entry->d_reclen;
    }
  sys::close(fd);
  return 0;
}

uint16_t NodeNames::nid_of_file(const std::string& name) noexcept {
  char prefix[64];
  std::snprintf(prefix, sizeof prefix, "%s%u.", kPrefix, unsigned{kProtocolVersion});
  const size_t skip = std::strlen(prefix);
  return name.starts_with(prefix) ? nid_of(name.c_str() + skip) : uint16_t{0};
}

std::optional<std::vector<uint16_t>> NodeNames::list() const {
  std::vector<uint16_t> nids;
  if (are_files()) {
    std::vector<std::string> names;
    if (is_shortage(list_files(names))) return std::nullopt;
    for (const std::string& name : names)
      if (const uint16_t nid = nid_of_file(name); nid != 0) nids.push_back(nid);
    sort_out(nids);
    return nids;
  }
  const int fd = sys::open("/proc/net/unix", O_RDONLY | O_CLOEXEC);
  if (is_shortage(fd)) return std::nullopt;
  if (fd < 0) return nids;
  std::string text;
  char buffer[16384];
  for (long n; (n = sys::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  sys::close(fd);
  return parse(text);
}

void NodeNames::sweep() const noexcept try {
  if (!are_files()) return;
  // Only one process sweeps at a time: a name that another one has just removed may exist anew
  // before this one gets to it.
  char name[64];
  std::snprintf(name, sizeof name, ".lock.%u", getuid());
  const std::string lock = folder_ + "/" + name;
  const int fd = sys::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  if (sys::call(SYS_flock, fd, LOCK_EX | LOCK_NB) == 0) {
    std::vector<std::string> names;
    list_files(names);
    for (const std::string& one : names) {
      const SocketAddress at = file(folder_, one.c_str());
      struct stat status {};
      if (!one.starts_with(kPrefix) || at.length == 0 ||
          sys::call(SYS_newfstatat, AT_FDCWD, at.address.sun_path, &status, AT_SYMLINK_NOFOLLOW) !=
              0 ||
          status.st_uid != getuid() || !S_ISSOCK(status.st_mode))
        continue;
      const int link = new_link();
      const bool is_left = link >= 0 && sys::connect(link, &at.address, at.length) == -ECONNREFUSED;
      private_fd_close(link);
      if (is_left) unlink(at.address.sun_path);
    }
  }
  sys::close(fd);
} catch (const std::bad_alloc&) {
  // The next sweep looks at them again.
}

void NodeNames::take_away(uint16_t nid) const noexcept {
  if (are_files()) unlink(file(folder_, of_node(nid).text).address.sun_path);
}

void NodeNames::take_away_directory(unsigned seat) const noexcept {
  if (are_files()) unlink(file(folder_, of_directory(getuid(), seat).text).address.sun_path);
}

}  // namespace sidestep::engine

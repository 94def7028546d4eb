// Checks of what every node needs: settings, shared memory, unix sockets, the kernel's list of
// connections, and the discovery port.
#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "config/text.hpp"
#include "engine/client/control_client.hpp"
#include "engine/client/discovery_client.hpp"
#include "engine/control/end_proof.hpp"
#include "preload/tool/check_parts.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace sidestep::tool {
namespace {

namespace fs = std::filesystem;

constexpr int kOwnAnswerMs = 1000;

/// A descriptor that the destructor closes.
class Fd {
 public:
  explicit Fd(int fd) noexcept : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(Fd const&) = delete;
  operator int() const noexcept { return fd_; }

 private:
  int const fd_;
};

std::string failed(char const* what) {
  int const error = errno;
  return fmt::format("{}: {}", what, std::strerror(error));
}

// ---- shared memory

/// Does what a connection inside a host does with its memory. Returns what failed, or nothing.
std::string try_shared_memory(size_t size, bool& future_write) {
  Fd const fd(memfd_create("sidestep-check", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return failed("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(size)) != 0) return failed("ftruncate of a memfd");
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return failed("mmap of a memfd");
  *static_cast<volatile char*>(memory) = 1;
  future_write = fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0;
  std::string fault;
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fault = failed("sealing a memfd");
  munmap(memory, size);
  return fault;
}

// ---- unix sockets

/// Makes a link as nodes do, under a name that no node has. Returns what failed, or nothing.
std::string try_unix_sockets() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string const name = fmt::format("sidestep.check.{}.{}", getuid(), getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  auto const* const where = reinterpret_cast<sockaddr const*>(&address);
  auto const length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());

  Fd const listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener < 0) return failed("a unix socket");
  if (bind(listener, where, length) != 0 || listen(listener, 1) != 0)
    return failed("an abstract name");
  Fd const link(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (link < 0 || connect(link, where, length) != 0) return failed("connecting to it");
  ucred peer{};
  socklen_t peer_length = sizeof peer;
  if (getsockopt(link, SOL_SOCKET, SO_PEERCRED, &peer, &peer_length) != 0)
    return failed("SO_PEERCRED");
  if (peer.uid != getuid())
    return fmt::format("SO_PEERCRED says user {} to user {}", peer.uid, getuid());
  std::ifstream file("/proc/net/unix");
  std::stringstream text;
  text << file.rdbuf();
  if (text.str().find("@" + name) == std::string::npos) return "/proc/net/unix doesn't show it";
  return {};
}

// ---- who holds the ends of a connection

/// Looks at what nodes check before they join a stream, for a connection of this process to itself.
/// Returns what failed, or nothing; `tried` is false if there was no such connection to look at.
std::string try_proof(bool& tried) {
  tried = false;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  Fd const listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener < 0 || bind(listener, where, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, where, &length) != 0)
    return failed("listening on the loopback interface");
  Fd const client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Over loopback the connection is made at once or never.
  if (client < 0 || (connect(client, where, length) != 0 && errno != EINPROGRESS))
    return failed("connecting over the loopback interface");
  Fd const server(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  auto const remote = engine::to_address(where);
  length = sizeof address;
  if (server < 0 || getsockname(client, where, &length) != 0) return failed("accepting it");
  tried = true;
  auto const local = engine::to_address(where);
  engine::EndHolder const self{getpid(), gettid(), client, -1};
  engine::KernelEnds ends;
  if (!ends.find({*local, *remote}, 0)) return "the kernel doesn't list connections (inet_diag)";
  if (ends.look(self, {*local, *remote}, server) != engine::EndProof::shown)
    return "a process's descriptors can't be seen in /proc";
  return {};
}

// ---- the discovery port

int bind_udp(uint16_t port) {
  Fd const fd(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd < 0) return errno;
  int const off = 0;
  if (setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) return errno;
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  return bind(fd, reinterpret_cast<sockaddr const*>(&address), sizeof address) == 0 ? 0 : errno;
}

/// The owners and inodes of the sockets on a UDP port, from /proc.
struct Holders {
  std::set<uid_t> users;
  std::set<std::string> inodes;
};

Holders holders_of(uint16_t port) {
  Holders holders;
  for (char const* const table : {"/proc/net/udp", "/proc/net/udp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, timeout, inode;
      uid_t user = 0;
      if (!(fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
            timeout >> inode))
        continue;
      size_t const colon = local.rfind(':');
      if (colon == std::string::npos ||
          std::strtoul(local.c_str() + colon + 1, nullptr, 16) != port)
        continue;
      holders.users.insert(user);
      holders.inodes.insert(inode);
    }
  }
  return holders;
}

/// Returns "PID 17 (name)" for a process of this user that has one of the sockets open; "" if none
/// is seen.
std::string process_with(std::set<std::string> const& inodes) {
  std::error_code error;
  for (auto const& process : fs::directory_iterator("/proc", error)) {
    std::string const pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    auto entry = fs::directory_iterator(process.path() / "fd", error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      std::error_code ignored;
      std::string const target = fs::read_symlink(entry->path(), ignored);
      if (!target.starts_with("socket:[") || inodes.count(target.substr(8, target.size() - 9)) == 0)
        continue;
      std::ifstream file(process.path() / "comm");
      std::string name;
      std::getline(file, name);
      return fmt::format("PID {} ({})", pid, config::text::printable(name));
    }
  }
  return {};
}

std::string name_of(uid_t user) {
  passwd const* const entry = getpwuid(user);
  return entry != nullptr ? entry->pw_name : std::to_string(user);
}

bool a_node_answers_here(uint16_t port, engine::ClusterKey const& key) {
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto const host = engine::to_address(reinterpret_cast<sockaddr const*>(&loopback));
  auto const replies = engine::ask_hosts({&*host, 1}, port, key, kOwnAnswerMs);
  return replies.front().kind == engine::HostReply::Kind::answered;
}

/// Finds out and reports who uses the port.
void check_holders(Machine& machine, Findings& findings) {
  auto const port = static_cast<uint16_t>(machine.config.discovery_port);
  std::string const subject = fmt::format("UDP port {}", port);
  Holders const holders = holders_of(port);
  std::string const process = process_with(holders.inodes);
  std::string const who = process.empty() ? "" : ", " + process;
  for (uid_t const user : holders.users) {
    if (user == geteuid()) continue;
    machine.cannot_answer = true;
    findings.warn("discovery", subject,
                  fmt::format("held by user {}{}; this user's nodes can't answer other hosts",
                              name_of(user), who),
                  "If streams to other hosts matter, end that program, or set "
                  "SIDESTEP_DISCOVERY_PORT to another port, the same on all hosts.");
    return;
  }
  if (!machine.talks_to_other_hosts()) {
    findings.ok("discovery", subject, "held by this user" + who);
  } else if (a_node_answers_here(port, machine.key)) {
    findings.ok("discovery", subject, "shared by this user's nodes, and answered");
  } else {
    machine.cannot_answer = true;
    findings.warn("discovery", subject,
                  fmt::format("held by this user{}, and nobody answers there", who),
                  "If that is not a process under Sidestep that is stopped or has another "
                  "SIDESTEP_KEY_FILE, end it, or set SIDESTEP_DISCOVERY_PORT to another port, the "
                  "same on all hosts.");
  }
}

}  // namespace

void check_configuration(config::Loaded const& loaded, Findings& findings) {
  constexpr std::string_view kCheck = "configuration";
  for (std::string const& complaint : loaded.complaints) {
    findings.fail(kCheck, "", complaint, "Correct it; `sidestep options` lists what may be set.");
  }
  config::Config const& config = loaded.config;
  if (!config.enable) {
    findings.warn(kCheck, "SIDESTEP_ENABLE=no", "the library does nothing",
                  "Unset it to let streams leave the kernel.");
  } else if (config.device == "none") {
    findings.warn(kCheck, "SIDESTEP_DEVICE=none", "streams stay on the kernel",
                  "Unset it to let streams leave the kernel.");
  } else if (loaded.complaints.empty()) {
    std::string const file =
        config.config_file.empty() ? std::string(config::kDefaultFile) : config.config_file;
    std::error_code error;
    findings.ok(kCheck, "",
                fs::exists(file, error) ? "the environment and " + file + " are in order"
                                        : "the environment is in order; there is no " + file);
  }
}

void check_key(Machine& machine, Findings& findings) {
  std::string const& path = machine.config.key_file;
  if (path.empty() && machine.config.allow_no_key) {
    findings.warn("key", "",
                  "there is none, and SIDESTEP_ALLOW_NO_KEY=yes: whoever can send and receive "
                  "under the address of a host can take the place of its processes",
                  "Give all hosts one key (SIDESTEP_KEY_FILE).");
    return;
  }
  if (path.empty()) {
    machine.key = engine::ClusterKey::missing();
    if (verdict_without_verbs(machine.config) == Verdict::ok)
      return findings.ok("key", "", "there is none, and without verbs none is needed");
    findings.warn("key", "", "there is none; streams to other hosts stay on the kernel",
                  "For them to leave it, give all hosts one key (SIDESTEP_KEY_FILE).");
    return;
  }
  std::string const subject = config::text::printable(path);
  std::string why;
  machine.key = engine::ClusterKey::read(path, why);
  if (machine.talks_to_other_hosts()) {
    findings.ok("key", subject, "it can be used; other hosts must have the same");
  } else {
    findings.fail("key", subject, "it can't be used: " + why,
                  fmt::format("Streams to other hosts stay on the kernel; it must be {}.",
                              engine::ClusterKey::allowed()));
  }
}

void check_shared_memory(Machine& machine, Findings& findings) {
  constexpr std::string_view kCheck = "shared memory";
  bool future_write = false;
  std::string const fault = try_shared_memory(machine.config.orb_size, future_write);
  machine.shared_memory = fault.empty();
  if (!fault.empty()) {
    findings.fail(kCheck, "", fault,
                  "Streams inside this host stay on the kernel; look for a limit of memory or a "
                  "filter of system calls (seccomp) on this process.");
  } else if (!future_write) {
    findings.ok(kCheck, "",
                "works; before Linux 5.1 there is no seal against later writable mappings");
  } else {
    findings.ok(kCheck, "", "memory files can be made, mapped and sealed");
  }
}

void check_unix_sockets(Machine const& machine, Findings& findings) {
  constexpr std::string_view kCheck = "unix sockets";
  std::string const fault = try_unix_sockets();
  if (!fault.empty()) {
    findings.fail(kCheck, "", fault,
                  "Nodes of this host can't find each other; look for a filter of system calls or "
                  "a security module, and check that /proc is mounted.");
    return;
  }
  size_t const nodes = engine::local_nodes(engine::NodeNames(machine.config.directory)).size();
  findings.ok(kCheck, "",
              fmt::format("abstract names work; processes of user {} under Sidestep here: {}",
                          name_of(getuid()), nodes));
}

void check_proof(Findings& findings) {
  constexpr std::string_view kCheck = "connections";
  bool tried = false;
  std::string const fault = try_proof(tried);
  if (fault.empty()) {
    findings.ok(kCheck, "", "who holds their ends can be seen");
  } else if (tried) {
    findings.fail(
        kCheck, "", fault,
        "Streams inside this host stay on the kernel; load the module tcp_diag, and check "
        "that /proc is mounted.");
  } else {
    findings.warn(kCheck, "", "not looked at: " + fault,
                  "Set the loopback interface up (ip link set lo up).");
  }
}

void check_discovery(Machine& machine, Findings& findings) {
  constexpr std::string_view kCheck = "discovery";
  auto const port = static_cast<uint16_t>(machine.config.discovery_port);
  if (int const error = bind_udp(0); error != 0) {
    findings.add(verdict_without_verbs(machine.config), kCheck, "IPv6",
                 fmt::format("no UDP socket for both families ({})", std::strerror(error)),
                 "Streams to other hosts stay on the kernel; switch IPv6 on in this kernel "
                 "(ipv6.disable=0), addresses are not needed.");
    return;
  }
  findings.ok(kCheck, "IPv6", "a UDP socket serves both families");
  int const error = bind_udp(port);
  std::string const subject = fmt::format("UDP port {}", port);
  if (error == 0) {
    findings.ok(kCheck, subject,
                machine.talks_to_other_hosts() ? "free; the first node will open it"
                                               : "free; without a key it stays closed");
  } else if (error == EADDRINUSE) {
    check_holders(machine, findings);
  } else {
    machine.cannot_answer = true;
    findings.warn(kCheck, subject, fmt::format("can't be opened ({})", std::strerror(error)),
                  "If streams to other hosts matter, set SIDESTEP_DISCOVERY_PORT to a port that "
                  "this user may open, the same on all hosts.");
  }
}

}  // namespace sidestep::tool

#pragma once
/// Finds out who holds an end of a TCP connection of this host, as the kernel attests it.
///
/// The kernel shows addresses and ports to everybody (ss(8)), so knowing them proves nothing. A
/// process proves that it holds an end by its descriptor table: the socket there is the one that
/// the kernel finds for these addresses and ports (sock_diag(7)). For this the process hands over
/// nothing that could read or write. It tells the descriptor's number, and shows the socket by a
/// descriptor opened with O_PATH (open(2)), which is enough to compare it.
#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "engine/base/address.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/tcp_state.hpp"
#include "engine/wire/discovery_message.hpp"

namespace sidestep::engine {

/// An end of a connection as the kernel lists it.
struct KernelEnd {
  uint64_t inode = 0;
  uid_t uid = 0;
  TcpState state = TcpState::unknown;
};

/// A process that claims to hold an end, and where it holds it. Plain data; any thread.
struct EndHolder {
  int pid = -1;        ///< as the kernel attests it (SO_PEERCRED); 0: in another pid namespace
  int32_t thread = 0;  ///< one of its threads, by which its descriptors are found
  int32_t fd = -1;     ///< the socket's number in that process
  int token = -1;      ///< O_PATH to the socket, as it came over the link
  uid_t uid = 0;       ///< as the kernel attests it, like the pid
  bool is_own = true;  ///< belongs to this process's user
};

/// What can be said about somebody's claim to hold an end.
enum class EndProof {
  shown,
  not_shown,  ///< it is false, or this process can't check it because it may not see the other's
              ///< descriptors (ptrace(2), "access mode checking")
  not_now,    ///< no descriptor was free for the check
};

/// The kernel's list of connections, read through a descriptor, in the network namespace of the
/// thread that creates this object. Not thread-safe.
class KernelEnds {
 public:
  KernelEnds() noexcept;

  /// Finds the end whose local address is `tuple.local`. `interface`: index of the interface that
  /// the connection is bound to, or 0. Nullopt if there is none.
  std::optional<KernelEnd> find(const Tuple& tuple, int interface) noexcept;

  /// True if `own` is the end that the kernel lists for `tuple`, and is open.
  bool has(const Tuple& tuple, int own) noexcept;

  /// Checks whether `own` and what `holder` holds are the two ends of one open connection. `tuple`:
  /// as the holder's end sees it.
  EndProof look(const EndHolder& holder, const Tuple& tuple, int own) noexcept;

 private:
  PrivateFd socket_;
  uint32_t last_question_ = 0;
};

/// The counts of the end `fd`. `accepted`: made by accept(), not by connect().
EndCounts counts_of(int fd, bool accepted) noexcept;
/// True if the end with these counts can be the other end of `fd`.
bool may_fit(const EndCounts& other, int fd) noexcept;

/// Returns a descriptor to send to a process that has to believe that this process has `fd`, or
/// -errno. The caller closes it.
int end_token(int fd) noexcept;

}  // namespace sidestep::engine

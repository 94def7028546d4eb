#pragma once
/// Who holds an end of a TCP connection of this host, as the kernel attests it.
///
/// Addresses and ports are shown to everybody (ss(8)), so knowing them proves nothing. What proves
/// that a process holds an end is its table of descriptors: the socket there is the one that the
/// kernel finds for these addresses and ports (sock_diag(7)). For this a process hands nothing over
/// that could read or write: it tells the number, and shows the socket by a descriptor that was
/// opened with O_PATH (open(2)), which is enough to compare it.
#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "engine/base/address.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/tcp_state.hpp"
#include "engine/wire/discovery_message.hpp"

namespace sidestep::engine {

/// A connection's end as the kernel lists it.
struct KernelEnd {
  uint64_t inode = 0;
  uid_t uid = 0;
  TcpState state = TcpState::unknown;
};

/// Who says to hold an end, and where. Plain data; any thread.
struct EndHolder {
  int pid = -1;        ///< as the kernel attests it (SO_PEERCRED); 0: in another pid namespace
  int32_t thread = 0;  ///< one of its threads, by which its descriptors are found
  int32_t fd = -1;     ///< the socket's number in that process
  int token = -1;      ///< O_PATH to the socket, as it came over the link
  uid_t uid = 0;       ///< as the pid
  bool is_own = true;  ///< of this process's user
};

/// What can be said of an end that somebody says to hold.
enum class EndProof {
  shown,
  not_shown,  ///< it is not so, or can't be looked at: a process whose descriptors this one may not
              ///< see (ptrace(2), "access mode checking")
  not_now,    ///< there was no descriptor to look by
};

/// The kernel's list of connections in the network namespace of the thread that makes it, through a
/// descriptor. Not thread-safe.
class KernelEnds {
 public:
  KernelEnds() noexcept;

  /// The end whose local address `tuple.local` is. `interface`: index of the interface that the
  /// connection is bound to, or 0. Nullopt: there is none.
  std::optional<KernelEnd> find(const Tuple& tuple, int interface) noexcept;

  /// Whether `own` is the end that is listed there, and open.
  bool has(const Tuple& tuple, int own) noexcept;

  /// Whether `own` and what `holder` holds are the two ends of one open connection. `tuple`: as
  /// the holder's end sees it.
  EndProof look(const EndHolder& holder, const Tuple& tuple, int own) noexcept;

 private:
  PrivateFd socket_;
  uint32_t last_question_ = 0;
};

/// `accepted`: by accept(), not by connect().
EndCounts counts_of(int fd, bool accepted) noexcept;
/// Whether the end with these counts can be the other one of `fd`.
bool may_fit(const EndCounts& other, int fd) noexcept;

/// To be sent to somebody who is to believe that this process has `fd`: a descriptor or -errno, to
/// be closed by the caller.
int end_token(int fd) noexcept;

}  // namespace sidestep::engine

#pragma once
/// Which connections become tracked sockets, and which numbers stop being theirs.
#include <sys/socket.h>

namespace sidestep::preload {

/// Makes a tracked socket for a connected (or connecting) descriptor and puts it into the table.
/// Does nothing if the descriptor does not qualify (rules, kind of address, engine off or full).
/// `remote`: the address that the descriptor is connecting to; null: getpeername() tells.
void track(int fd, bool accepted, bool nonblocking, const sockaddr* remote) noexcept;

/// If the table still has a socket under `fd`, takes it out: the descriptor was closed past the
/// library, and the number names something else by now.
void lose_number(int fd) noexcept;

}  // namespace sidestep::preload

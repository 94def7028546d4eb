#pragma once
/// Asynchronous I/O of the kernel's (io_submit(2)), which programs ask for by system calls.
#include <linux/aio_abi.h>

namespace sidestep::preload {

/// Takes the streams of these requests to the kernel, which reads, writes and polls there. False,
/// with errno: one of them has bytes that only the library can give.
bool all_leave_for_kernel_aio(iocb* const* list, long count) noexcept;

}  // namespace sidestep::preload

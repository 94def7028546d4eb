#pragma once
/// The kernel's asynchronous I/O (io_submit(2)), which programs request by system calls.
#include <linux/aio_abi.h>

namespace sidestep::preload {

/// Moves the streams of these requests to the kernel, which reads, writes and polls there. Returns
/// false, with errno, if one of them has bytes that only the library can deliver.
bool all_leave_for_kernel_aio(iocb* const* list, long count) noexcept;

}  // namespace sidestep::preload

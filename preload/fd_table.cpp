#include "preload/fd_table.hpp"

namespace sidestep::preload {

std::atomic<uintptr_t> FdTable::entries_[FdTable::kSize];
constinit engine::DescriptorSet FdTable::used_;

}  // namespace sidestep::preload

#include "engine/base/zeroed_array.hpp"

#include <new>

namespace sidestep::engine {

void* zeroed_memory(size_t count, size_t size) {
  void* const memory = std::calloc(count, size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace sidestep::engine

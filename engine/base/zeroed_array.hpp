#pragma once
/// Arrays of zeros whose pages cost nothing, neither time nor memory, until they are used.
#include <cstdlib>
#include <memory>
#include <type_traits>

namespace sidestep::engine {

struct FreeMemory {
  void operator()(void* memory) const noexcept { std::free(memory); }
};

void* zeroed_memory(size_t count, size_t size);

template <typename T>
using ZeroedArray = std::unique_ptr<T[], FreeMemory>;

/// Throws std::bad_alloc. Zero bytes must be a valid T.
template <typename T>
ZeroedArray<T> make_zeroed(size_t count) {
  static_assert(std::is_trivially_destructible_v<T>);
  return ZeroedArray<T>(static_cast<T*>(zeroed_memory(count, sizeof(T))));
}

}  // namespace sidestep::engine

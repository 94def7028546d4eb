// The library's C++ code takes its memory from a heap of its own: see heap.hpp. These operators are
// local to the library (exports.map), as is the C++ library that is linked into it; the program
// keeps its own operators.
#include <cstddef>
#include <new>

#include "engine/base/heap.hpp"

namespace {

void* allocate(size_t size, size_t alignment) {
  void* const block = sidestep::engine::heap_allocate(size, alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

// The array forms and the forms that do not throw call these.

void* operator new(size_t size) {
  return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}

void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}

void operator delete(void* block) noexcept {
  sidestep::engine::heap_release(block);
}

void operator delete(void* block, size_t) noexcept {
  sidestep::engine::heap_release(block);
}

void operator delete(void* block, std::align_val_t) noexcept {
  sidestep::engine::heap_release(block);
}

void operator delete(void* block, size_t, std::align_val_t) noexcept {
  sidestep::engine::heap_release(block);
}

#include "preload/residue.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "engine/base/held_locks.hpp"
#include "engine/base/iovec.hpp"

namespace sidestep::preload {

Residue* Residue::create(size_t size) noexcept {
  if (size > kMost) return nullptr;
  const size_t mapped = sizeof(Residue) + size;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* residue = new (memory) Residue;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&residue->mutex_, &attributes);
  pthread_mutexattr_destroy(&attributes);
  residue->mapped_ = mapped;
  residue->filled_ = residue->taken_ = 0;
  return residue;
}

void Residue::release(Residue* residue) noexcept {
  if (residue != nullptr) munmap(residue, residue->mapped_);
}

void Residue::lock() noexcept {
  engine::enter_lock();
  // A process that died while it held the lock left the indices whole: each is one store.
  if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) pthread_mutex_consistent(&mutex_);
}

void Residue::unlock() noexcept {
  pthread_mutex_unlock(&mutex_);
  engine::leave_lock();
}

bool Residue::append(const std::byte* data, size_t size) noexcept {
  if (size > mapped_ - sizeof(Residue) - filled_) return false;
  std::memcpy(bytes() + filled_, data, size);
  filled_ += size;
  return true;
}

size_t Residue::read(const iovec* vector, int count, size_t offset, bool peek,
                     bool copies) noexcept {
  lock();
  const size_t left = filled_ - taken_;
  const size_t done = copies ? engine::copy_to(vector, count, offset, bytes() + taken_, left)
                             : std::min(left, engine::total_length(vector, count) - offset);
  if (!peek) taken_ += done;
  unlock();
  return done;
}

size_t Residue::left() noexcept {
  lock();
  const size_t left = filled_ - taken_;
  unlock();
  return left;
}

}  // namespace sidestep::preload

#include "engine/stream/stream_table.hpp"

#include <mutex>

namespace sidestep::engine {

StreamTable::StreamTable() : slots_(make_zeroed<std::atomic<Stream*>>(kSlots)) {}

bool StreamTable::insert(Stream& stream, bool by_tuple) {
  const std::lock_guard guard(lock_);
  if (free_.empty() && used_ == kSlots) return false;
  if (free_.capacity() <= used_) free_.reserve(size_t{2} * (used_ + 1));
  if (by_tuple) by_tuple_[stream.tuple_] = &stream;
  uint32_t id = used_;
  if (free_.empty()) {
    ++used_;
  } else {
    id = free_.back();
    free_.pop_back();
  }
  stream.id_ = id;
  do ++generations_;
  while (generations_ == kNobodysGeneration);
  stream.generation_ = generations_;
  slots_[id].store(&stream, std::memory_order_release);
  return true;
}

size_t StreamTable::slots_used() noexcept {
  const std::lock_guard guard(lock_);
  return used_;
}

void StreamTable::erase(Stream& stream) noexcept {
  forget_tuple(stream);
  const std::lock_guard guard(lock_);
  slots_[stream.id_].store(nullptr, std::memory_order_relaxed);
  free_.push_back(stream.id_);
}

void StreamTable::forget_tuple(const Stream& stream) noexcept {
  const std::lock_guard guard(lock_);
  const auto found = by_tuple_.find(stream.tuple_);
  if (found != by_tuple_.end() && found->second == &stream) by_tuple_.erase(found);
}

Stream* StreamTable::find(const Tuple& tuple) noexcept {
  const std::lock_guard guard(lock_);
  const auto found = by_tuple_.find(tuple);
  return found != by_tuple_.end() ? found->second : nullptr;
}

std::vector<Stream*> StreamTable::all() {
  std::vector<Stream*> streams;
  const std::lock_guard guard(lock_);
  for (uint32_t id = 1; id < used_; ++id)
    if (Stream* stream = slots_[id].load(std::memory_order_relaxed)) streams.push_back(stream);
  return streams;
}

}  // namespace sidestep::engine

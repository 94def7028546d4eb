#include "preload/event_set_table.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <new>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/process_copy.hpp"
#include "engine/node/node.hpp"
#include "preload/event_set.hpp"
#include "preload/fd_table.hpp"
#include "preload/process.hpp"

namespace sidestep::preload {

std::atomic<int> EventSetTable::strangers{0};
std::atomic<uint32_t> EventSetTable::news_{0};
std::atomic<int> EventSetTable::watched_members_{0};

namespace {

/// What an epoll descriptor and its duplicates name. The set is made when the first tracked socket
/// is added to it.
struct Instance {
  std::shared_ptr<EventSet> set;
  bool watched = false;
};

constinit engine::DescriptorSet g_epoll;        // descriptors that are epoll's
constinit engine::DescriptorSet g_unconnected;  // descriptors that untracked() has ever known

engine::Mutex g_lock;

/// A map whose content can be abandoned, as a child of fork() must. Called under g_lock. An empty
/// one needs no memory, so those who clean up after bad_alloc can use it.
template <typename Map>
class Table {
 public:
  Map& operator*() noexcept {
    static_assert(std::is_nothrow_default_constructible_v<Map>);
    if (map_ == nullptr) map_ = new (place_) Map;
    return *map_;
  }
  void abandon() noexcept { map_ = nullptr; }

 private:
  alignas(Map) std::byte place_[sizeof(Map)]{};
  Map* map_ = nullptr;
};

using Instances = std::unordered_map<int, std::shared_ptr<Instance>>;
constinit Table<Instances> g_instances;
Instances& instances() noexcept {
  return *g_instances;
}
// These counts let calls on everything else pass with one load. relaxed suffices for a count that
// says "none": a thread that is told of a descriptor learns of its instance in the same way. The
// set needs acquire and release.
std::atomic<size_t> g_descriptors{0};
std::atomic<size_t> g_sets{0};

/// Where find() looks for the sets of some of the numbers. Threads that wait for different sets
/// take different locks, and only for as long as it takes to copy a pointer.
struct alignas(64) Shelf {
  engine::Mutex lock;
  std::vector<std::pair<int, std::shared_ptr<EventSet>>> sets;
};
using Shelves = std::array<Shelf, 16>;
// Made with the first set, and never given back: a thread may be inside. release and acquire: a
// thread that finds the shelves finds them complete.
std::atomic<Shelves*> g_shelves{nullptr};

Shelf& shelf_of(Shelves& shelves, int fd) noexcept {
  return shelves[static_cast<unsigned>(fd) % shelves.size()];
}

/// Called under g_lock.
void show_locked(int fd, std::shared_ptr<EventSet> set) {
  Shelves* shelves = g_shelves.load(std::memory_order_relaxed);
  if (shelves == nullptr) {
    shelves = new Shelves;
    g_shelves.store(shelves, std::memory_order_release);
  }
  Shelf& shelf = shelf_of(*shelves, fd);
  const std::lock_guard guard(shelf.lock);
  shelf.sets.emplace_back(fd, std::move(set));
}

/// Called under g_lock.
void hide_locked(int fd) noexcept {
  Shelves* const shelves = g_shelves.load(std::memory_order_relaxed);
  if (shelves == nullptr) return;
  Shelf& shelf = shelf_of(*shelves, fd);
  const std::lock_guard guard(shelf.lock);
  std::erase_if(shelf.sets, [fd](const auto& entry) { return entry.first == fd; });
}

/// Called under g_lock. Shows the set by each of the instance's numbers, or by none.
void show_all_locked(const Instance& instance, const std::shared_ptr<EventSet>& set) {
  const auto for_numbers = [&instance](auto&& call) {
    for (const auto& [number, other] : instances())
      if (other.get() == &instance) call(number);
  };
  try {
    for_numbers([&set](int number) { show_locked(number, set); });
  } catch (const std::bad_alloc&) {
    for_numbers(hide_locked);
    throw;
  }
}

// What the library remembers of TCP sockets that are not connected yet.
struct Untracked {
  int epoll_fd;
  epoll_event event;
};
using UntrackedSockets = std::unordered_map<int, std::vector<Untracked>>;
constinit Table<UntrackedSockets> g_untracked_sockets;
UntrackedSockets& untracked() noexcept {
  return *g_untracked_sockets;
}
std::atomic<size_t> g_untracked{0};

void forget_untracked(int fd) noexcept {
  if (g_untracked.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard guard(g_lock);
  untracked().erase(fd);
  g_untracked.store(untracked().size(), std::memory_order_release);
}

/// Called before g_lock is taken: in a copy of the process, nobody releases it.
void look_at_copy() noexcept {
  if (engine::is_copy()) [[unlikely]]
    settle_copy();
}

void count_locked() noexcept {
  g_descriptors.store(instances().size(), std::memory_order_release);
  g_sets.store(static_cast<size_t>(
                   std::count_if(instances().begin(), instances().end(),
                                 [](const auto& entry) { return entry.second->set != nullptr; })),
               std::memory_order_release);
}

}  // namespace

void EventSetTable::note_created(int epoll_fd) noexcept {
  if (engine::Node::is_barred()) return;  // no member will be on the engine
  if (!engine::DescriptorSet::can_contain(epoll_fd)) return;
  look_at_copy();
  // The number is known from a set that was closed past the library.
  if (g_epoll.contains(epoll_fd)) forget(epoll_fd);
  try {
    auto instance = std::make_shared<Instance>();
    const std::lock_guard guard(g_lock);
    try {
      instances()[epoll_fd] = std::move(instance);
      g_epoll.insert(epoll_fd);
    } catch (const std::bad_alloc&) {
      // Its duplicates will not be known to be the same set.
    }
    count_locked();
  } catch (const std::bad_alloc&) {
  }
}

std::shared_ptr<EventSet> EventSetTable::find(int epoll_fd) noexcept {
  if (g_sets.load(std::memory_order_acquire) == 0) return nullptr;
  look_at_copy();
  Shelves* const shelves = g_shelves.load(std::memory_order_acquire);
  if (shelves == nullptr) return nullptr;
  Shelf& shelf = shelf_of(*shelves, epoll_fd);
  const std::lock_guard guard(shelf.lock);
  for (const auto& [number, set] : shelf.sets)
    if (number == epoll_fd) return set;
  return nullptr;
}

bool EventSetTable::is_known(int epoll_fd) noexcept {
  look_at_copy();
  if (g_untracked.load(std::memory_order_acquire) != 0) return true;  // forget() looks closer
  if (g_descriptors.load(std::memory_order_acquire) == 0) return false;
  return g_epoll.contains(epoll_fd);
}

std::shared_ptr<EventSet> EventSetTable::find_or_make(int epoll_fd) noexcept {
  if (auto set = find(epoll_fd)) return set;
  if (!engine::DescriptorSet::can_contain(epoll_fd))
    return nullptr;  // forget() would not hear of it
  try {
    auto set = std::make_shared<EventSet>(epoll_fd);
    if (!set->usable_) return nullptr;
    auto fresh = std::make_shared<Instance>();
    bool watched = false;
    {
      const std::lock_guard guard(g_lock);
      try {
        auto& instance = instances()[epoll_fd];
        if (instance == nullptr) instance = std::move(fresh);
        g_epoll.insert(epoll_fd);
        watched = instance->watched;
        if (instance->set == nullptr) {
          show_all_locked(*instance, set);
          instance->set = set;
        } else {
          set = instance->set;  // another thread was first
        }
      } catch (const std::bad_alloc&) {
        set = nullptr;
      }
      count_locked();
    }
    // Threads that sleep in the kernel's set do not know of this one yet.
    if (set != nullptr && watched) set->become_watched(false, false);
    if (set != nullptr && strangers.load(std::memory_order_seq_cst) != 0) set->wake_strangers();
    return set;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void EventSetTable::forget(int fd) noexcept {
  look_at_copy();
  forget_untracked(fd);
  if (!g_epoll.contains(fd)) return;
  std::shared_ptr<Instance> gone;
  bool named = false;
  {
    const std::lock_guard guard(g_lock);
    if (const auto found = instances().find(fd); found != instances().end()) {
      gone = std::move(found->second);
      hide_locked(fd);
      instances().erase(found);
      g_epoll.erase(fd);
      count_locked();
    }
    const auto other = std::find_if(instances().begin(), instances().end(),
                                    [&](const auto& entry) { return entry.second == gone; });
    named = other != instances().end();
    // relaxed: a thread that has the old number is inside a call on it.
    if (gone != nullptr && named && gone->set != nullptr && gone->set->epoll_fd_ == fd)
      gone->set->epoll_fd_.store(other->first, std::memory_order_relaxed);
  }
  // No other descriptor names the set. A thread that is still inside keeps the object, which must
  // not go while streams know of its members.
  if (gone != nullptr && !named && gone->set != nullptr) gone->set->abandon();
}

void EventSetTable::share(int fd, int copy) noexcept {
  look_at_copy();
  if (g_descriptors.load(std::memory_order_acquire) == 0) return;
  if (copy != fd && g_epoll.contains(copy)) forget(copy);  // it was closed past the library
  const std::lock_guard guard(g_lock);
  if (const auto found = instances().find(fd); found != instances().end()) {
    const std::shared_ptr<Instance> instance = found->second;
    try {
      instances()[copy] = instance;
      if (instance->set != nullptr) show_locked(copy, instance->set);
      g_epoll.insert(copy);
    } catch (const std::bad_alloc&) {
      // The copy is an epoll set of the kernel only: engine sockets are not reported through it.
    }
    count_locked();
  }
}

bool EventSetTable::may_be_set(int fd) noexcept {
  return g_epoll.contains(fd);
}

bool EventSetTable::any() noexcept {
  return g_descriptors.load(std::memory_order_relaxed) != 0;
}

int EventSetTable::next_known(int fd) noexcept {
  const int set = g_epoll.next(fd);
  const int member = g_unconnected.next(fd);
  return set >= 0 && (member < 0 || set < member) ? set : member;
}

bool EventSetTable::watch(int epoll_fd) noexcept {
  if (!may_be_set(epoll_fd)) return false;
  look_at_copy();
  std::shared_ptr<EventSet> set;
  bool known = false;
  bool begins = false;
  {
    const std::lock_guard guard(g_lock);
    if (const auto found = instances().find(epoll_fd); found != instances().end()) {
      known = true;
      begins = !found->second->watched;
      found->second->watched = true;
      set = found->second->set;
    }
  }
  if (set != nullptr && begins) set->become_watched(false, false);
  return known;
}

void EventSetTable::note_untracked(int epoll_fd, int operation, int fd,
                                   const epoll_event* event) noexcept {
  if (operation != EPOLL_CTL_ADD && g_untracked.load(std::memory_order_acquire) == 0) return;
  if (engine::Node::is_barred()) return;
  look_at_copy();
  const std::lock_guard guard(g_lock);
  try {
    auto& sets = untracked()[fd];
    // A descriptor that was not noted when it was added cannot be a socket that will be connected.
    const bool noted = std::erase_if(sets, [&](const Untracked& entry) {
                         return entry.epoll_fd == epoll_fd;
                       }) != 0;
    if (operation == EPOLL_CTL_ADD || (operation == EPOLL_CTL_MOD && noted))
      sets.push_back({epoll_fd, *event});
    g_unconnected.insert(fd);
    if (sets.empty()) untracked().erase(fd);
  } catch (const std::bad_alloc&) {
    untracked().erase(fd);
  }
  g_untracked.store(untracked().size(), std::memory_order_release);
}

void EventSetTable::adopt(int fd, Socket& socket) noexcept {
  look_at_copy();
  if (g_untracked.load(std::memory_order_acquire) == 0) return;
  std::vector<Untracked> sets;
  {
    const std::lock_guard guard(g_lock);
    if (const auto found = untracked().find(fd); found != untracked().end()) {
      sets = std::move(found->second);
      untracked().erase(found);
      g_untracked.store(untracked().size(), std::memory_order_release);
    }
  }
  for (Untracked& entry : sets) {
    const auto set = find_or_make(entry.epoll_fd);
    if (set == nullptr) {
      socket.leave_engine(engine::Reason::no_set);
    } else if (set->kernel_has(fd)) {
      // Otherwise one of the two numbers was closed past the library and names something else by
      // now.
      set->control(EPOLL_CTL_ADD, fd, socket, &entry.event);  // EEXIST in the kernel's set
    }
  }
}

void EventSetTable::before_fork() noexcept {
  if (g_sets.load(std::memory_order_acquire) == 0) return;
  std::vector<std::shared_ptr<EventSet>> all;
  {
    const engine::GuardUnlessStuck guard(g_lock);
    if (!guard) return;
    for (const auto& [fd, instance] : instances())
      if (instance->set != nullptr) all.push_back(instance->set);
  }
  for (const auto& set : all) set->settle_all();
}

void EventSetTable::leave_to_kernel() noexcept {
  std::vector<std::shared_ptr<EventSet>> all;
  {
    const engine::GuardUnlessStuck guard(g_lock);
    if (!guard) return;
    for (const auto& [fd, instance] : instances())
      if (instance->set != nullptr) all.push_back(instance->set);
  }
  bool left = true;
  for (const auto& set : all) {
    set->settle_all();
    left = left && !set->has_engine_members();
  }
  // Members whose bytes only this process has are waited for as before.
  if (!left) return;
  for (const auto& set : all) set->leave_set();
  const std::lock_guard guard(g_lock);
  // None of this is given back: streams know members of these sets, and threads may be inside.
  g_instances.abandon();
  g_shelves.store(nullptr, std::memory_order_relaxed);
  g_untracked_sockets.abandon();
  g_untracked.store(0, std::memory_order_release);
  count_locked();
}

void EventSetTable::after_fork_in_child() noexcept {
  g_lock.reset_after_fork();
  // The kernel's sets live on and hold every member; what was known here belongs to the parent.
  g_instances.abandon();
  g_shelves.store(nullptr, std::memory_order_relaxed);
  g_untracked_sockets.abandon();
  g_untracked.store(0, std::memory_order_relaxed);
  for (auto* const set : {&g_epoll, &g_unconnected})
    for (int fd = set->next(0); fd >= 0; fd = set->next(fd + 1)) set->erase(fd);
  g_descriptors.store(0, std::memory_order_relaxed);
  g_sets.store(0, std::memory_order_relaxed);
  watched_members_.store(0, std::memory_order_relaxed);
}

}  // namespace sidestep::preload

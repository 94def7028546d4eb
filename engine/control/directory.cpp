#include "engine/control/directory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>

#include "engine/base/hash.hpp"
#include "engine/base/lock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/random.hpp"
#include "engine/base/sys.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

namespace {
constexpr uint64_t kMagic = 0x524944502d454453;  // "SDE-PDIR"
constexpr size_t kHeaderSize = 4096;
constexpr size_t kNids = 0x10000;
constexpr size_t kJoinedSize = kNids / 8;
constexpr size_t kFileSize = kHeaderSize + kJoinedSize + Directory::kWords * sizeof(uint64_t);
constexpr unsigned kNidBits = 16;

Mutex g_lock;
Directory* g_first = nullptr;
}  // namespace

struct Directory::Header {
  // All but the last are plain: they are written before anybody else has the file.
  uint64_t magic;
  uint64_t version;
  // Whoever connects can choose ports, even from other hosts, but must not choose the place.
  uint64_t seed[2];
  std::atomic<uint64_t> beats;
};

std::unique_ptr<Directory> Directory::create() noexcept {
  std::unique_ptr<Directory> directory(new (std::nothrow) Directory);
  const int fd = directory == nullptr
                     ? -ENOMEM
                     : sys::memfd_create("sidestep-directory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    log(LogLevel::info, "the directory could not be made: %s", std::strerror(-fd));
    return nullptr;
  }
  directory->fd_ = PrivateFd(private_fd_adopt(fd));
  int result = sys::ftruncate(directory->fd(), static_cast<long>(kFileSize));
  if (result >= 0)
    result = sys::fcntl(directory->fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  if (result < 0 || !directory->map_file(directory->fd())) {
    log(LogLevel::info, "the directory could not be mapped: %s",
        std::strerror(result < 0 ? -result : errno));
    return nullptr;
  }
  Header& header = directory->header();
  header.magic = kMagic;
  header.version = kProtocolVersion;
  for (uint64_t& seed : header.seed) seed = random_number();
  return directory;
}

std::unique_ptr<Directory> Directory::map(int fd) noexcept {
  struct stat status {};
  const int seals = sys::fcntl(fd, F_GET_SEALS, 0);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || sys::fstat(fd, &status) != 0 ||
      status.st_size != static_cast<off_t>(kFileSize)) {
    log(LogLevel::info, "a peer offered a file as the directory that is not one");
    return nullptr;
  }
  std::unique_ptr<Directory> directory(new (std::nothrow) Directory);
  if (directory == nullptr) return nullptr;
  directory->fd_ = PrivateFd(private_fd_adopt(sys::fcntl(fd, F_DUPFD_CLOEXEC, 0)));
  if (directory->fd() < 0 || !directory->map_file(directory->fd())) return nullptr;
  const Header& header = directory->header();
  if (header.magic != kMagic || header.version != kProtocolVersion) return nullptr;
  return directory;
}

Directory::~Directory() {
  {
    const std::lock_guard guard(g_lock);
    Directory** at = &g_first;
    while (*at != nullptr && *at != this) at = &(*at)->next_;
    if (*at == this) *at = next_;
  }
  if (base_ != nullptr) munmap(base_, kFileSize);
}

bool Directory::map_file(int fd) noexcept {
  void* const base = mmap(nullptr, kFileSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return false;
  base_ = static_cast<std::byte*>(base);
  const std::lock_guard guard(g_lock);
  next_ = g_first;
  g_first = this;
  return true;
}

Directory::Header& Directory::header() const noexcept {
  return *reinterpret_cast<Header*>(base_);
}

bool Directory::is_of(int fd) const noexcept {
  struct stat own {};
  struct stat other {};
  return sys::fstat(fd_.get(), &own) == 0 && sys::fstat(fd, &other) == 0 &&
         own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

uint64_t Directory::hash(const Tuple& tuple) const noexcept {
  const uint64_t seed[] = {header().seed[0], header().seed[1]};
  uint64_t words[sizeof(Tuple) / sizeof(uint64_t)];
  std::memcpy(words, &tuple, sizeof tuple);
  // Multiplied once more, so that the upper bits, which do not select the place, depend on all.
  return hash_words(words, seed[0], seed[1] | 1) * 0xff51afd7ed558ccdU;
}

Directory::Word* Directory::window(uint64_t hash) const noexcept {
  constexpr size_t kWindows = kWords / kWindow;
  return reinterpret_cast<Word*>(base_ + kHeaderSize) + (hash % kWindows) * kWindow;
}

Directory::Word& Directory::joined(uint16_t nid) const noexcept {
  return window(0)[kWords + nid / 64];
}

namespace {
/// The word for an end: the bits of the hash that do not select the place, the end and the NID.
uint64_t word_for(uint64_t hash, Directory::End end, uint16_t nid) noexcept {
  constexpr unsigned kOther = kNidBits + 1;
  return hash >> kOther << kOther | static_cast<uint64_t>(end) << kNidBits | nid;
}
}  // namespace

bool Directory::enter(End end, const Tuple& tuple, uint16_t nid) noexcept {
  if (base_ == nullptr) return false;
  const uint64_t own = hash(tuple);
  Word* const words = window(own);
  const size_t places = end == End::accepting ? kWindow / 2 : kWindow;
  for (size_t i = 0; i < places; ++i) {
    uint64_t none = 0;
    // relaxed: the word itself is all that the reader learns.
    if (words[i].load(std::memory_order_relaxed) == 0 &&
        words[i].compare_exchange_strong(none, word_for(own, end, nid),
                                         std::memory_order_relaxed)) {
      // Pairs with the same fence at the other end: each side's word is there before it looks for
      // the other's. Also pairs with what decides a stream meanwhile, Stream::list().
      std::atomic_thread_fence(std::memory_order_seq_cst);
      return true;
    }
  }
  return false;
}

void Directory::leave(End end, const Tuple& tuple, uint16_t nid) noexcept {
  if (base_ == nullptr) return;
  const uint64_t own = hash(tuple);
  Word* const words = window(own);
  for (size_t i = 0; i < kWindow; ++i) {
    uint64_t word = word_for(own, end, nid);
    if (words[i].load(std::memory_order_relaxed) == word &&
        words[i].compare_exchange_strong(word, 0, std::memory_order_relaxed))
      return;  // only one: another connection may have the same name
  }
}

size_t Directory::find(End end, const Tuple& tuple,
                       std::array<uint16_t, kWindow>& nids) const noexcept {
  if (base_ == nullptr) return 0;
  const uint64_t own = hash(tuple);
  const Word* const words = window(own);
  size_t count = 0;
  for (size_t i = 0; i < kWindow; ++i) {
    const uint64_t word = words[i].load(std::memory_order_relaxed);
    const auto nid = static_cast<uint16_t>(word);
    if (nid == 0 || word != word_for(own, end, nid)) continue;
    if (std::find(nids.begin(), nids.begin() + count, nid) == nids.begin() + count)
      nids[count++] = nid;
  }
  return count;
}

void Directory::sweep(const std::bitset<0x10000>& gone) noexcept {
  if (base_ == nullptr) return;
  Word* const words = window(0);
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t word = words[i].load(std::memory_order_relaxed);
    if (word != 0 && gone[static_cast<uint16_t>(word)])
      words[i].compare_exchange_strong(word, 0, std::memory_order_relaxed);
  }
  std::bitset<kNids> had_joined;
  list_joined(had_joined);
  had_joined &= gone;
  if (had_joined.none()) return;
  for (size_t nid = 0; nid < kNids; ++nid)
    if (had_joined[nid]) part(static_cast<uint16_t>(nid));
}

void Directory::list(std::bitset<0x10000>& nids) const noexcept {
  if (base_ == nullptr) return;
  const Word* const words = window(0);
  for (size_t i = 0; i < kWords; ++i)
    if (const uint64_t word = words[i].load(std::memory_order_relaxed); word != 0)
      nids.set(static_cast<uint16_t>(word));
  list_joined(nids);
}

void Directory::list_joined(std::bitset<0x10000>& nids) const noexcept {
  for (size_t first = 0; first < kNids; first += 64) {
    uint64_t word = joined(static_cast<uint16_t>(first)).load(std::memory_order_relaxed);
    for (; word != 0; word &= word - 1)
      nids.set(first + static_cast<size_t>(std::countr_zero(word)));
  }
}

void Directory::join(uint16_t nid) noexcept {
  // release pairs with the acquire in has_joined(): what was entered before is found.
  if (base_ != nullptr) joined(nid).fetch_or(uint64_t{1} << nid % 64, std::memory_order_release);
}

void Directory::part(uint16_t nid) noexcept {
  if (base_ != nullptr)
    joined(nid).fetch_and(~(uint64_t{1} << nid % 64), std::memory_order_relaxed);
}

bool Directory::has_joined(uint16_t nid) const noexcept {
  return base_ != nullptr && (joined(nid).load(std::memory_order_acquire) >> nid % 64 & 1) != 0;
}

uint64_t Directory::beats() const noexcept {
  return base_ != nullptr ? header().beats.load(std::memory_order_relaxed) : 0;
}

void Directory::beat() noexcept {
  if (base_ != nullptr) header().beats.fetch_add(1, std::memory_order_relaxed);
}

void Directory::forget_after_fork() noexcept {
  g_lock.reset_after_fork();
  for (Directory* one = g_first; one != nullptr; one = one->next_) {
    munmap(one->base_, kFileSize);
    one->base_ = nullptr;
  }
  g_first = nullptr;
}

}  // namespace sidestep::engine

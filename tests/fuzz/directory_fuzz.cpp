// Fuzzes the file of the directory. Every process of the user can write to it, and the process that
// hands it out creates it. The first byte says which parts of the file to put right, so that the
// fuzzer reaches the rest as well. Then come the connection to look up, the head of the file, and
// its words: each is put where a word of that connection could be, whatever the seeds are.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "engine/base/log.hpp"
#include "engine/control/directory.hpp"

using namespace sidestep::engine;

namespace {

constexpr size_t kHead = 4096;
constexpr size_t kSize = kHead + Directory::kWords * sizeof(uint64_t);
constexpr uint16_t kOwn = 4711;

void require(bool holds) {
  if (!holds) std::abort();
}

/// What is left of the input.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  size_t take(void* to, size_t length) {
    length = std::min(length, size_);
    if (length != 0) std::memcpy(to, data_, length);
    data_ += length;
    size_ -= length;
    return length;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

/// Does everything that a node does with the directory.
void use(Directory& directory, const Tuple& tuple, bool all) {
  for (const auto end : {Directory::End::connecting, Directory::End::accepting}) {
    std::array<uint16_t, Directory::kWindow> nids{};
    const size_t count = directory.find(end, tuple, nids);
    require(count <= nids.size());
    std::sort(nids.begin(), nids.begin() + count);
    require(std::adjacent_find(nids.begin(), nids.begin() + count) == nids.begin() + count);
    require(count == 0 || nids[0] != 0);
    const bool was_there = std::binary_search(nids.begin(), nids.begin() + count, kOwn);
    if (!directory.enter(end, tuple, kOwn)) continue;
    const size_t more = directory.find(end, tuple, nids);
    require(more == count + !was_there);
    require(std::find(nids.begin(), nids.begin() + more, kOwn) != nids.begin() + more);
    directory.leave(end, tuple, kOwn);
    require(directory.find(end, tuple, nids) == count);
  }
  directory.part(kOwn);
  require(!directory.has_joined(kOwn));
  directory.join(kOwn);
  require(directory.has_joined(kOwn));
  directory.beat();
  if (!all) return;
  std::bitset<0x10000> nids;
  directory.list(nids);
  directory.sweep(nids);
  nids.reset();
  directory.list(nids);
  require(nids.none());
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  log_open(LogLevel::error, "/dev/null");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  uint8_t how = 0;
  Tuple tuple;
  input.take(&how, 1);
  input.take(&tuple, sizeof tuple);

  const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const bool has_size = (how & 1) == 0;
  const bool is_sealed = (how & 2) == 0;
  if (fd < 0 || ftruncate(fd, has_size ? kSize : kHead + how) != 0) std::abort();
  std::array<uint64_t, 5> head{};
  input.take(head.data(), sizeof head);
  const auto sound = Directory::create();  // has a valid head
  if (sound == nullptr) std::abort();
  if ((how & 4) == 0 && pread(sound->fd(), head.data(), 2 * sizeof head[0], 0) < 0) std::abort();
  if (pwrite(fd, head.data(), sizeof head, 0) < 0) std::abort();
  if (is_sealed && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) std::abort();

  const auto directory = Directory::map(fd);
  require(directory == nullptr || (has_size && is_sealed));
  if (directory != nullptr) {
    // The place of this node's own word shows where the words of others can be.
    auto* const file =
        static_cast<uint64_t*>(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (file == MAP_FAILED) std::abort();
    uint64_t* const words = file + kHead / sizeof(uint64_t);
    require(directory->enter(Directory::End::connecting, tuple, kOwn));
    uint64_t* const own =
        std::find_if(words, words + Directory::kWords, [](uint64_t w) { return w; });
    const uint64_t right = *own;
    directory->leave(Directory::End::connecting, tuple, kOwn);
    uint64_t word = 0;
    for (size_t i = 0; i < Directory::kWindow && input.take(&word, 3) != 0; ++i)
      own[i] = (right & ~uint64_t{0x1ffff}) ^ word;  // its end, its NID, and some of the hash
    use(*directory, tuple, (how & 8) != 0);
    munmap(file, kSize);
  }
  close(fd);
  return 0;
}

#pragma once
/// Where the nodes of one user in one network namespace find out which of them may hold the other
/// end of a connection, without asking all of them.
///
/// A file in memory, mapped by all of them, of words of eight bytes: 47 bits of a hash of a
/// connection's addresses and ports, which of its ends it is, and the NID of the node that holds
/// it. A connecting end is entered as long as it is not known where it belongs; an accepting end
/// that has looked and found nobody, until it has waited long enough. So whichever of the two comes
/// later finds the other, at one place, however many nodes and connections there are.
///
/// What is found is a hint. Every process of the user can write to the file, nodes that were killed
/// leave words behind, and hashes of two connections may be equal: whom it names is asked, and both
/// ends are proven (end_proof.hpp). The worst that a wrong word does is a question in vain, and
/// that a missing word does is a stream that stays on the kernel.
#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/base/address.hpp"
#include "engine/base/private_fd.hpp"

namespace sidestep::engine {

class Directory {
 public:
  static constexpr size_t kWords = size_t{1} << 18;  ///< 2 MiB, of which pages in use count
  /// Places where a word may be: lines of the cache that lie behind each other.
  static constexpr size_t kWindow = 32;
  enum class End : uint64_t { connecting, accepting };

  /// A new file. Null: there is no memory, or no descriptor (logged).
  static std::unique_ptr<Directory> create() noexcept;
  /// The file of somebody else; takes a duplicate of `fd`. Null: it is not one, or could be made
  /// smaller by its owner, which would end this process with SIGBUS; or as above.
  static std::unique_ptr<Directory> map(int fd) noexcept;
  ~Directory();
  Directory(const Directory&) = delete;

  int fd() const noexcept { return fd_.get(); }
  bool is_of(int fd) const noexcept;
  /// It is not handed out any more; everything else goes on.
  void give_up_file() noexcept { fd_ = PrivateFd(); }

  // --- any thread; `tuple`: as the connecting end sees its connection ---

  /// False: there is no room, of which accepting ends take half at most: whoever connects to a
  /// server, from other hosts too, makes it enter one. Of two ends that are entered at the same
  /// time and look for each other behind it, one at least finds the other.
  bool enter(End end, const Tuple& tuple, uint16_t nid) noexcept;
  void leave(End end, const Tuple& tuple, uint16_t nid) noexcept;
  /// NIDs that were entered for it: how many.
  size_t find(End end, const Tuple& tuple, std::array<uint16_t, kWindow>& nids) const noexcept;

  /// Takes everything out that the NIDs which are set here have entered, and that they have joined.
  void sweep(const std::bitset<0x10000>& gone) noexcept;
  /// Those of which there is anything.
  void list(std::bitset<0x10000>& nids) const noexcept;

  /// Says that a node has this directory: what it holds that is undecided has been entered before.
  /// One that exists and has not said so has to be asked.
  void join(uint16_t nid) noexcept;
  void part(uint16_t nid) noexcept;
  bool has_joined(uint16_t nid) const noexcept;

  /// Changes as long as somebody hands this file out, who calls beat() now and then.
  uint64_t beats() const noexcept;
  void beat() noexcept;

  /// In the child of fork, which is no node: from now on nothing happens here.
  static void forget_after_fork() noexcept;

 private:
  struct Header;
  using Word = std::atomic<uint64_t>;
  static_assert(Word::is_always_lock_free);

  Directory() noexcept = default;
  bool map_file(int fd) noexcept;
  Header& header() const noexcept;
  /// Of 64 NIDs whether they have joined.
  Word& joined(uint16_t nid) const noexcept;
  void list_joined(std::bitset<0x10000>& nids) const noexcept;
  uint64_t hash(const Tuple& tuple) const noexcept;
  Word* window(uint64_t hash) const noexcept;

  PrivateFd fd_;
  std::byte* base_ = nullptr;
  Directory* next_ = nullptr;  // of all that this process has mapped
};

}  // namespace sidestep::engine

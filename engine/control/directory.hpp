#pragma once
/// The directory, in which the nodes of one user in one network namespace find out which of them
/// may hold the other end of a connection, without asking all of them.
///
/// It is a file in memory that all of them map. It consists of words of eight bytes: 47 bits of a
/// hash of a connection's addresses and ports, which of its ends it is, and the NID of the node
/// that holds it. A connecting end is entered as long as nobody knows where it belongs. An
/// accepting end is entered when it has looked and found nobody, until it has waited long enough.
/// So whichever of the two comes later finds the other in one place, however many nodes and
/// connections there are.
///
/// What a node finds is a hint. Every process of the user can write to the file, killed nodes leave
/// words behind, and the hashes of two connections may be equal. So the node that a word names is
/// asked, and both ends are proven (end_proof.hpp). At worst, a wrong word causes a question in
/// vain, and a missing word leaves a stream on the kernel.
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
  static constexpr size_t kWords = size_t{1} << 18;  ///< 2 MiB, of which only pages in use count
  /// Places where a word may be: consecutive cache lines.
  static constexpr size_t kWindow = 32;
  enum class End : uint64_t { connecting, accepting };

  /// Creates a new file. Null if there is no memory or no descriptor (logged).
  static std::unique_ptr<Directory> create() noexcept;
  /// Maps somebody else's file, using a duplicate of `fd`. Null if it is not a directory, if its
  /// owner could shrink it, which would end this process with SIGBUS, or as above.
  static std::unique_ptr<Directory> map(int fd) noexcept;
  ~Directory();
  Directory(const Directory&) = delete;

  int fd() const noexcept { return fd_.get(); }
  bool is_of(int fd) const noexcept;
  /// Stops handing out the file; everything else goes on.
  void give_up_file() noexcept { fd_ = PrivateFd(); }

  // --- any thread; `tuple`: as the connecting end sees its connection ---

  /// False if there is no room. Accepting ends take at most half of it, because anyone who connects
  /// to a server, even from another host, makes the server enter one. If two ends are entered at
  /// the same time and then look for each other, at least one of them finds the other.
  bool enter(End end, const Tuple& tuple, uint16_t nid) noexcept;
  void leave(End end, const Tuple& tuple, uint16_t nid) noexcept;
  /// Finds the NIDs that were entered for this end, and returns how many there are.
  size_t find(End end, const Tuple& tuple, std::array<uint16_t, kWindow>& nids) const noexcept;

  /// Removes everything that the NIDs set in `gone` have entered, and that they have joined.
  void sweep(const std::bitset<0x10000>& gone) noexcept;
  /// Sets in `nids` every NID of which there is anything here.
  void list(std::bitset<0x10000>& nids) const noexcept;

  /// Says that a node has this directory, and that it has already entered its undecided ends. A
  /// node that exists and has not said so has to be asked.
  void join(uint16_t nid) noexcept;
  void part(uint16_t nid) noexcept;
  bool has_joined(uint16_t nid) const noexcept;

  /// Changes as long as somebody hands this file out: that node calls beat() now and then.
  uint64_t beats() const noexcept;
  void beat() noexcept;

  /// Called in the child of fork, which is not a node: from now on the calls do nothing.
  static void forget_after_fork() noexcept;

 private:
  struct Header;
  using Word = std::atomic<uint64_t>;
  static_assert(Word::is_always_lock_free);

  Directory() noexcept = default;
  bool map_file(int fd) noexcept;
  Header& header() const noexcept;
  /// The word that says which of 64 NIDs have joined.
  Word& joined(uint16_t nid) const noexcept;
  void list_joined(std::bitset<0x10000>& nids) const noexcept;
  uint64_t hash(const Tuple& tuple) const noexcept;
  Word* window(uint64_t hash) const noexcept;

  PrivateFd fd_;
  std::byte* base_ = nullptr;
  Directory* next_ = nullptr;  // in the list of all that this process has mapped
};

}  // namespace sidestep::engine

#pragma once
/// Accepted streams for which nobody was found who holds the other end. They are entered in the
/// directory, so that the node that connected one can tell when it has entered its own end. They
/// are also looked for again a few times, because that message may be lost and the directory may
/// have no room.
///
/// The manager's thread makes all calls. What is kept here names streams of this node, which may
/// end at any time. Functions that allocate may throw std::bad_alloc.
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "engine/base/address.hpp"
#include "engine/manager/directory_keeper.hpp"
#include "engine/manager/end_proofs.hpp"
#include "engine/manager/links.hpp"
#include "engine/manager/this_node.hpp"
#include "engine/manager/undecided_streams.hpp"

namespace sidestep::engine {

/// A stream for which nobody was found.
struct UnheardStream {
  uint32_t stream;
  uint32_t generation;
  unsigned looks;  ///< how many looks have found nobody
  friend bool operator==(const UnheardStream&, const UnheardStream&) = default;
};

/// Asks the nodes of this host.
class Asker {
 public:
  /// Called when somebody may hold the other end now.
  virtual void ask_again(const UnheardStream& who) = 0;

 protected:
  ~Asker() = default;
};

class UnheardStreams final : public DirectoryUser {
 public:
  /// The milliseconds between the looks.
  static constexpr std::array<unsigned, 3> kLooks{50, 1000, 7000};

  UnheardStreams(const ThisNode& node, Links& links, UndecidedStreams& undecided, EndProofs& proofs,
                 const DirectoryKeeper& directory, Asker& asker)
      : node_(node),
        links_(links),
        undecided_(undecided),
        proofs_(proofs),
        directory_(directory),
        asker_(asker) {}
  UnheardStreams(const UnheardStreams&) = delete;

  /// Called when nobody is in the directory for the stream yet: enters its accepting end until
  /// somebody is. False: it has been looked for long enough, or there is no room or no directory.
  /// `wanted`: the connection as the other end sees it. `found`: how many nodes were entered there
  /// that do not hold the other end.
  bool look_later(const Tuple& wanted, const UnheardStream& who, size_t found);
  void look_again(uint64_t now);
  /// When to call that next; 0: not at all.
  uint64_t next_at() const noexcept;

  /// Tells the accepting ends that wait for this stream, which the program has connected.
  void tell(uint32_t stream, uint32_t generation);
  /// Somebody says that the other end of such a stream has been entered.
  void on_entered(const Tuple& tuple);
  void enter_into(Directory& directory) override;

 private:
  struct Look {
    Tuple wanted;
    UnheardStream who;
    uint64_t due;
  };

  /// Makes the stream wait no longer; false if it was not waiting.
  bool forget(const Tuple& wanted, const UnheardStream& who);

  const ThisNode& node_;
  Links& links_;
  UndecidedStreams& undecided_;
  EndProofs& proofs_;
  const DirectoryKeeper& directory_;
  Asker& asker_;
  std::array<std::deque<Look>, kLooks.size()> looks_;  // by how many there were, the oldest first
  /// Those of them that are still waiting.
  std::unordered_multimap<Tuple, UnheardStream, TupleHash> unheard_;
};

}  // namespace sidestep::engine

#pragma once
/// Proofs that whoever claims a stream's end holds it: shown to other nodes of this host, and
/// checked (control/end_proof.hpp).
///
/// The manager's thread makes all calls. What is read of the kernel's list belongs to this class,
/// for one turn. Functions that allocate may throw std::bad_alloc.
#include <sys/types.h>

#include <optional>

#include "engine/base/reason.hpp"
#include "engine/control/end_proof.hpp"
#include "engine/manager/links.hpp"
#include "engine/manager/path_prover.hpp"
#include "engine/manager/this_node.hpp"

namespace sidestep::engine {

/// What the peer of a link shows of the end that it says it holds.
struct EndClaim {
  control::HeldAt held_at;
  int token = -1;          ///< a descriptor of the end (end_token()); negative if it sent none
  uint16_t path_port = 0;  ///< where a datagram reaches it; 0 if it has not said
};

class EndProofs {
 public:
  EndProofs(ThisNode& node, Links& links, PathProver& paths) noexcept
      : node_(node), links_(links), paths_(paths) {}
  EndProofs(const EndProofs&) = delete;

  /// Sends to `link`, with what shows that this process holds that stream's end. Adds a token only
  /// where it is needed, because it costs the receiver a descriptor.
  int send(Link& link, control::WhoHas question, int anchor, bool needs_token);
  int send(Link& link, control::Owner answer, int anchor, bool needs_token);
  /// Returns whether the peer holds the other end of that stream: yes, unproven, or later if that
  /// can't be checked now. `tuple`: as the peer's end sees it.
  OwnerAnswer check(Link& link, const EndClaim& claim, const Tuple& tuple, int anchor);
  /// Notes that an end is, by its counts, not the other end of the stream here.
  void note_misfit() noexcept;
  /// Returns the user that owns this end, by the kernel's list of connections of this host; nullopt
  /// if the list does not have it.
  std::optional<uid_t> user_of(const Tuple& tuple);
  /// Returns why nobody was found who holds this end.
  Reason reason_for_nobody(const Tuple& tuple);
  /// The kernel's list is kept for one turn of the manager, because many answers come at a time.
  void end_turn() noexcept { ends_.reset(); }

 private:
  /// True if this process may not see that peer, or not its descriptors. The peer may not see those
  /// of this process either, and is told so by a question.
  static bool is_unseen(const Link& link) noexcept;
  static control::HeldAt held_at(int anchor) noexcept;
  int send_with_token(Link& link, const ControlMessage& message, int anchor, bool needs_token);
  /// True if the end may be in another network namespace, where this node can't look.
  bool may_be_elsewhere(const Tuple& tuple, int anchor);
  KernelEnds& ends();

  ThisNode& node_;
  Links& links_;
  PathProver& paths_;
  std::optional<KernelEnds> ends_;
  bool told_of_misfit_ = false;
};

}  // namespace sidestep::engine

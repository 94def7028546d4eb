#pragma once
/// Whether this node holds the end of a connection that somebody asks for: another node of this
/// host, another host, or this node itself, whose program may have both ends. An end that is asked
/// for and free is claimed for the stream of the asker, and no other asker gets it meanwhile.
///
/// The manager's thread makes all calls. It owns nothing: the streams are found anew for each
/// question, under the receive lock. Functions that allocate may throw std::bad_alloc.
#include <cstdint>

#include "engine/base/address.hpp"
#include "engine/manager/end_proofs.hpp"
#include "engine/manager/links.hpp"
#include "engine/manager/remote_connector.hpp"
#include "engine/manager/this_node.hpp"
#include "engine/manager/undecided_streams.hpp"

namespace sidestep::engine {

/// Who holds the other end of a stream.
struct EndOwner {
  uint32_t peer = 0;  ///< its number here; 0 if it is not a peer of this node
  uint16_t nid = 0;
  uint64_t incarnation = 0;
  uint32_t stream = 0;
  uint32_t generation = 0;
  EndCounts counts;
};

class HeldEnds {
 public:
  HeldEnds(ThisNode& node, UndecidedStreams& undecided, EndProofs& proofs,
           RemoteConnector& others) noexcept
      : node_(node), undecided_(undecided), proofs_(proofs), others_(others) {}
  HeldEnds(const HeldEnds&) = delete;

  /// Sets `owner` if the answer is yes. `asker`: a node of this host; 0 if it is `remote_asker`.
  /// `asker_generation`, `counts`: of the stream on whose behalf the question is asked. `proven`:
  /// the only stream that can be the answer, if another node of this host asks.
  OwnerAnswer look_up(const Tuple& tuple, uint16_t asker, const control::RemoteAsker& remote_asker,
                      uint32_t asker_generation, const EndCounts& counts, EndOwner& owner,
                      const UndecidedEnd* proven = nullptr);
  /// Answers the question that has come over this link.
  void answer(Link& link, const Received& received);

 private:
  ThisNode& node_;
  UndecidedStreams& undecided_;
  EndProofs& proofs_;
  RemoteConnector& others_;  // the nodes of other hosts
};

}  // namespace sidestep::engine

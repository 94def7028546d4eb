#include "engine/manager/end_proofs.hpp"

#include <unistd.h>

#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {

int EndProofs::send(Link& link, ControlMessage message, int anchor, bool needs_token) {
  if (anchor < 0) return links_.send(link, message);
  // A process that can't be seen from here may not see this one either, and says so in its
  // question. Nor do processes of different users see each other's descriptors.
  const bool is_unseen = link.pid == 0 || !link.is_own;
  message.wants_token = is_unseen ? 1 : 0;
  const int token = needs_token || is_unseen ? end_token(anchor) : -1;
  message.holder_thread = static_cast<int32_t>(sys::call(SYS_gettid));
  message.holder_fd = anchor;
  const int result = links_.send(link, message, token);
  if (token >= 0) sys::close(token);
  return result;
}

OwnerAnswer EndProofs::check(Link& link, const Received& received, const Tuple& tuple, int anchor) {
  const ControlMessage& message = received.message;
  const EndHolder holder{
      link.pid, message.holder_thread, message.holder_fd, received.fds[0], link.uid, link.is_own};
  const EndProof proof = ends().look(holder, tuple, anchor);
  if (proof == EndProof::shown) return OwnerAnswer::yes;
  if (proof == EndProof::not_now) return OwnerAnswer::later;
  if (link.is_own && may_be_elsewhere(tuple, anchor))
    return paths_.is_proven(link, tuple, message.path_port) ? OwnerAnswer::yes : OwnerAnswer::later;
  node_.progress.counters().unproven.add();
  if (!std::exchange(link.is_doubted, true))
    log(LogLevel::info, "node %u (pid %d) was not shown to hold the other end of a stream",
        unsigned{link.nid}, link.pid);
  // The answer is not `no`: a program may move its descriptor to another number at any time.
  return OwnerAnswer::unproven;
}

bool EndProofs::may_be_elsewhere(const Tuple& tuple, int anchor) {
  // Each node says what its own kernel's list has, and the nodes that share the folder and the
  // network with it believe it. A connection that leads to an address of this namespace is in this
  // list, or nowhere.
  if (!node_.names.are_files() || !may_lead_away(tuple) ||
      node_.own_addresses.contains(tuple.local, now_ns()))
    return false;
  return ends().has(tuple.mirrored(), anchor);
}

void EndProofs::note_misfit() noexcept {
  node_.progress.counters().unproven.add();
  if (!std::exchange(told_of_misfit_, true))
    log(LogLevel::info,
        "an end of a stream has not sent what the other has received, so both stay on the kernel: "
        "something between them, such as a transparent proxy, ends the connection of each");
}

std::optional<uid_t> EndProofs::user_of(const Tuple& tuple) {
  const auto end = ends().find(tuple, 0);
  return end ? std::optional(end->uid) : std::nullopt;
}

Reason EndProofs::reason_for_nobody(const Tuple& tuple) {
  return user_of(tuple).value_or(getuid()) != getuid() ? Reason::other_user : Reason::nobody;
}

KernelEnds& EndProofs::ends() {
  if (!ends_) ends_.emplace();
  return *ends_;
}

}  // namespace sidestep::engine

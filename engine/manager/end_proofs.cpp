#include "engine/manager/end_proofs.hpp"

#include <unistd.h>

#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {

bool EndProofs::is_unseen(const Link& link) noexcept {
  return link.pid == 0 || !link.is_own;
}

control::HeldAt EndProofs::held_at(int anchor) noexcept {
  return {static_cast<int32_t>(sys::call(SYS_gettid)), anchor};
}

int EndProofs::send(Link& link, control::WhoHas question, int anchor, bool needs_token) {
  if (anchor < 0) return links_.send(link, question);
  question.wants_token = is_unseen(link) ? 1 : 0;
  question.held_at = held_at(anchor);
  return send_with_token(link, question, anchor, needs_token);
}

int EndProofs::send(Link& link, control::Owner answer, int anchor, bool needs_token) {
  if (anchor < 0) return links_.send(link, answer);
  answer.held_at = held_at(anchor);
  return send_with_token(link, answer, anchor, needs_token);
}

int EndProofs::send_with_token(Link& link, const ControlMessage& message, int anchor,
                               bool needs_token) {
  const int token = needs_token || is_unseen(link) ? end_token(anchor) : -1;
  const int result = links_.send(link, message, token);
  if (token >= 0) sys::close(token);
  return result;
}

OwnerAnswer EndProofs::check(Link& link, const EndClaim& claim, const Tuple& tuple, int anchor) {
  const EndHolder holder{link.pid, claim.held_at.thread, claim.held_at.fd, claim.token,
                         link.uid, link.is_own};
  const EndProof proof = ends().look(holder, tuple, anchor);
  if (proof == EndProof::shown) return OwnerAnswer::yes;
  if (proof == EndProof::not_now) return OwnerAnswer::later;
  if (link.is_own && may_be_elsewhere(tuple, anchor))
    return paths_.is_proven(link, tuple, claim.path_port) ? OwnerAnswer::yes : OwnerAnswer::later;
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

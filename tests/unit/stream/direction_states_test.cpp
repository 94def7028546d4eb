#include "engine/stream/direction_states.hpp"

#include <boost/test/unit_test.hpp>
#include <set>
#include <string>

using namespace sidestep::engine;

namespace {

constexpr SenderState kSenderStates[] = {
    SenderState::kernel,   SenderState::announcing, SenderState::replaying, SenderState::holding,
    SenderState::offering, SenderState::engine,     SenderState::rising};
constexpr ReceiverState kReceiverStates[] = {ReceiverState::kernel, ReceiverState::ready,
                                             ReceiverState::engine};

/// The names of the states that may follow, besides those that a failed connection leads to.
std::string next_of(SenderState from) {
  std::string next;
  for (const SenderState to : kSenderStates)
    if (to != SenderState::kernel && to != SenderState::replaying && may_follow(from, to))
      next += std::string(next.empty() ? "" : " ") + name_of(to);
  return next;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(direction_states)

BOOST_AUTO_TEST_CASE(a_sender_makes_the_steps_of_the_table) {
  const std::pair<SenderState, const char*> table[] = {{SenderState::kernel, "announcing holding"},
                                                       {SenderState::announcing, "engine rising"},
                                                       {SenderState::rising, "engine"},
                                                       {SenderState::engine, "offering"},
                                                       {SenderState::offering, "holding engine"},
                                                       {SenderState::holding, ""},
                                                       {SenderState::replaying, ""}};
  for (const auto& [from, next] : table) {
    BOOST_CHECK_EQUAL(next_of(from), next);
    BOOST_CHECK(may_follow(from, SenderState::kernel));     // the connection may fail
    BOOST_CHECK(may_follow(from, SenderState::replaying));  // at any time
  }
}

BOOST_AUTO_TEST_CASE(a_receiver_gets_ready_only_on_the_kernel) {
  for (const ReceiverState from : kReceiverStates) {
    BOOST_CHECK(may_follow(from, ReceiverState::kernel));
    BOOST_CHECK_EQUAL(may_follow(from, ReceiverState::engine), from != ReceiverState::engine);
    BOOST_CHECK_EQUAL(may_follow(from, ReceiverState::ready), from == ReceiverState::kernel);
  }
}

BOOST_AUTO_TEST_CASE(what_a_state_means_is_told_apart) {
  using enum SenderState;
  const std::set<SenderState> on_engine{offering, engine, rising};
  const std::set<SenderState> replays{replaying, holding, offering};
  const std::set<SenderState> holds{holding, offering};
  const std::set<SenderState> unacknowledged{announcing, rising};
  std::set<std::string> names;
  for (const SenderState state : kSenderStates) {
    BOOST_TEST_CONTEXT(name_of(state)) {
      BOOST_CHECK_EQUAL(carrier_of(state) == Carrier::engine, on_engine.contains(state));
      BOOST_CHECK_EQUAL(has_replay(state), replays.contains(state));
      BOOST_CHECK_EQUAL(awaits_return(state), holds.contains(state));
      BOOST_CHECK_EQUAL(awaits_ack(state), unacknowledged.contains(state));
    }
    names.insert(name_of(state));
  }
  BOOST_CHECK_EQUAL(names.size(), std::size(kSenderStates));
}

BOOST_AUTO_TEST_CASE(an_end_mark_is_told_whether_it_was_sent_or_not) {
  using enum EndMark;
  for (const EndMark mark : {unsent, unneeded, sent, arrived}) {
    BOOST_CHECK(is_told(with_told(mark, true)) && !is_told(with_told(mark, false)));
    for (const bool told : {false, true})
      BOOST_CHECK_EQUAL(is_on_engine(with_told(mark, told)), is_on_engine(mark));
    BOOST_CHECK(with_told(mark, is_told(mark)) == mark);
  }
}

BOOST_AUTO_TEST_SUITE_END()

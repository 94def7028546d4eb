#include "engine/progress/dispatch.hpp"

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <deque>
#include <vector>

#include "engine/connection/connection.hpp"
#include "tests/support/bound_pair.hpp"
#include "tests/support/fake_endpoint.hpp"

using namespace sidestep;
using namespace sidestep::engine;

namespace {

/// Builds work requests and hands them to a dispatcher as if the peer of a bound stream had sent
/// them.
struct Fixture {
  Node& node() { return *Node::running(); }
  Stream& stream() { return pair.stream(0); }

  void add(FragmentType type, uint32_t length, const void* payload = nullptr) {
    add({stream().id(), length, stream().generation(), static_cast<uint8_t>(type), {}}, payload);
  }
  void add(const FragmentHeader& header, const void* payload = nullptr) {
    const size_t at = bytes.size();
    bytes.resize(at + fragment_size(header.length));
    std::memcpy(bytes.data() + at, &header, sizeof header);
    if (payload != nullptr) std::memcpy(bytes.data() + at + sizeof header, payload, header.length);
  }
  void add_value(FragmentType type, uint64_t value) { add(type, sizeof value, &value); }

  bool dispatch() { return dispatch(bytes.size()); }
  bool dispatch(size_t length) {
    buffer.endpoint = &fake;
    buffer.references = RecvBuffer::kPolled;
    // The endpoint is that of the real connection, which is compared with the stream's. The buffer
    // goes back to the fake.
    const RecvCompletion completion{&stream().connection()->endpoint(),
                                    bytes.data(),
                                    static_cast<uint32_t>(length),
                                    0,
                                    &buffer,
                                    false,
                                    nullptr};
    Counter fragments;
    Dispatcher dispatcher(node().streams().table(), fragments);
    node().progress().recv_lock().lock();
    forgive();
    const bool sound = dispatcher.dispatch(completion);
    dispatcher.notify();
    node().progress().recv_lock().unlock();
    return sound;
  }
  /// Dispatches the same, but in separate buffers of `size` bytes, as a device that scatters does.
  bool dispatch_in_pieces(size_t size) {
    Counter fragments;
    Dispatcher dispatcher(node().streams().table(), fragments);
    bool sound = true;
    node().progress().recv_lock().lock();
    forgive();
    for (size_t at = 0; at < bytes.size(); at += size) {
      RecvBuffer& piece = pieces.emplace_back();
      piece.endpoint = &fake;
      piece.references = RecvBuffer::kPolled;
      const size_t length = std::min(size, bytes.size() - at);
      const auto from = bytes.begin() + static_cast<ptrdiff_t>(at);
      const auto& copy = copies.emplace_back(from, from + static_cast<ptrdiff_t>(length));
      const RecvCompletion completion{
          &stream().connection()->endpoint(), copy.data(), static_cast<uint32_t>(length), 0, &piece,
          at + length < bytes.size(),         nullptr};
      sound = dispatcher.dispatch(completion) && sound;
    }
    dispatcher.notify();
    node().progress().recv_lock().unlock();
    return sound;
  }
  /// After a breach, everything else on a connection is ignored. Here each dispatch is a new try.
  void forgive() {
    stream().connection()->breach = nullptr;
    stream().connection()->cut = {};
  }
  std::string read_all() {
    char text[4096];
    const iovec part{text, sizeof text};
    const ssize_t count = pair.socket(0).receive(&part, 1, MSG_DONTWAIT);
    return count > 0 ? std::string(text, static_cast<size_t>(count)) : std::string();
  }

  /// Brings the stream down as its peer asks, so that it waits for bytes to be returned.
  /// The other end of the pair says nothing.
  void hold() {
    pair.stream(0).request_down(Reason::none);
    BOOST_REQUIRE(tests::eventually([&] {
      return stream().sender().carrier() == Carrier::kernel && stream().receiver().is_complete();
    }));
    pair.stream(1).receiver().mutex().lock();
    add_value(FragmentType::ask_down, 3);
    BOOST_REQUIRE(dispatch());
    BOOST_REQUIRE(tests::eventually([&] { return stream().sender().awaits_return(); }));
    bytes.clear();
  }
  void check_that_it_is_left_to_the_anchor() {
    BOOST_CHECK(!stream().is_aborted());
    BOOST_CHECK(tests::eventually([&] { return !stream().sender().has_replay(); }));
    // Otherwise a thread that waits for room would not look at the anchor.
    BOOST_CHECK(!stream().sender().awaits_return());
    const iovec part{const_cast<char*>("by TCP"), 6};
    BOOST_CHECK_EQUAL(pair.socket(0).transmit(&part, 1, MSG_DONTWAIT), 6);
    BOOST_CHECK_EQUAL(stream().sender().kernel_bytes(), 6u);
    pair.stream(1).receiver().unlock();
  }

  /// The two ends no longer agree on what was sent, so the next test gets a new connection.
  ~Fixture() {
    node().streams().lose_connection(*stream().connection(), "the test is over",
                                     PeerProcess::may_live);
  }

  tests::FakeEndpoint fake;
  std::vector<std::byte> bytes;
  RecvBuffer buffer;
  std::deque<RecvBuffer> pieces;
  std::deque<std::vector<std::byte>> copies;
  tests::BoundPair other;
  tests::BoundPair pair;  // last: its streams release the buffer when they are closed
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(dispatch, Fixture)

BOOST_AUTO_TEST_CASE(fragments_reach_their_stream_and_their_buffer_goes_back_when_it_was_read) {
  add(FragmentType::data, 5, "hello");
  add(FragmentType::data, 6, " world");
  BOOST_CHECK(dispatch());
  BOOST_CHECK_EQUAL(fake.released, 0u);
  BOOST_CHECK_EQUAL(stream().receiver().queued(), 11u);
  BOOST_CHECK_EQUAL(read_all(), "hello world");
  BOOST_CHECK_EQUAL(fake.released, 1u);
}

BOOST_AUTO_TEST_CASE(fragments_that_are_cut_by_the_end_of_a_buffer_are_whole_again) {
  std::string text(3000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i * 31 % 26);
  std::string expected;
  for (const size_t length : {1u, 1000u, 16u, 17u, 500u, 1466u}) {
    add(FragmentType::data, static_cast<uint32_t>(length), text.data());
    expected += text.substr(0, length);
  }
  // Tries every possible cut: buffer sizes are multiples of the grain.
  for (size_t size = kOrbGrain; size <= bytes.size() + kOrbGrain; size += kOrbGrain) {
    const size_t released = fake.released;
    const size_t before = pieces.size();
    BOOST_REQUIRE(dispatch_in_pieces(size));
    BOOST_REQUIRE_EQUAL(read_all(), expected);
    BOOST_REQUIRE_EQUAL(fake.released - released, pieces.size() - before);
  }
}

BOOST_AUTO_TEST_CASE(a_control_fragment_that_is_cut_by_the_end_of_a_buffer_is_whole_again) {
  // The longest control fragments end in the second grain.
  Stream& peer = pair.stream(1);
  const uint64_t sent = stream().sender().engine_bytes();
  for (const uint64_t credit : {uint64_t{0}, uint64_t{1} << 20}) {
    const ReceiveReadyPayload ready{peer.id(), peer.generation(), sent + credit, 1 << 20};
    for (const auto type : {FragmentType::receive_ready, FragmentType::join}) {
      bytes.clear();
      add(FragmentType::data, 5, "hello");
      add(type, sizeof ready, &ready);
      add(FragmentType::data, 6, " world");
      BOOST_REQUIRE_EQUAL(bytes.size(), 4 * kOrbGrain);
      BOOST_REQUIRE(dispatch_in_pieces(2 * kOrbGrain));
      BOOST_CHECK_EQUAL(read_all(), "hello world");
    }
    BOOST_CHECK_EQUAL(stream().sender().can_send(), credit != 0);
  }
  BOOST_CHECK_EQUAL(fake.released, pieces.size());
}

BOOST_AUTO_TEST_CASE(a_control_fragment_whose_end_does_not_come_is_noticed) {
  const ReceiveReadyPayload ready{pair.stream(1).id(), pair.stream(1).generation(), 0, 0};
  add(FragmentType::receive_ready, sizeof ready, &ready);
  BOOST_CHECK(!dispatch(kOrbGrain));
  BOOST_CHECK(stream().sender().can_send());
}

BOOST_AUTO_TEST_CASE(a_fragment_that_is_cut_and_does_not_go_on_is_refused) {
  add(FragmentType::data, 1000, std::string(1000, 'x').data());
  BOOST_CHECK(!dispatch(512));
  BOOST_CHECK_EQUAL(fake.released, 1u);
}

BOOST_AUTO_TEST_CASE(the_end_of_a_cut_fragment_that_does_not_come_is_noticed) {
  add(FragmentType::data, 1000, std::string(1000, 'x').data());
  bytes.resize(512);
  add(FragmentType::switch_ack, 0);
  // The work request says that it continues, but ends before the fragment does.
  BOOST_CHECK(!dispatch_in_pieces(512));
  BOOST_CHECK_EQUAL(stream().receiver().queued(), 512 - sizeof(FragmentHeader) + kOrbGrain);
}

BOOST_AUTO_TEST_CASE(fragments_for_a_stream_that_has_gone_are_passed_over) {
  const FragmentHeader gone{stream().id(), 3, stream().generation() + 1, 1, {}};
  const FragmentHeader never{0xffffffff, 3, 1, 1, {}};
  add(gone, "abc");
  add(never, "abc");
  add(FragmentType::data, 2, "ok");
  BOOST_CHECK(dispatch());
  BOOST_CHECK_EQUAL(read_all(), "ok");
}

BOOST_AUTO_TEST_CASE(an_empty_work_request_is_sound) {
  BOOST_CHECK(dispatch(0));
}

BOOST_AUTO_TEST_CASE(a_header_that_is_cut_off_is_refused) {
  add(FragmentType::data, 5, "hello");
  BOOST_CHECK(!dispatch(sizeof(FragmentHeader) - 1));
  BOOST_CHECK_EQUAL(fake.released, 1u);
  BOOST_CHECK_EQUAL(stream().receiver().queued(), 0u);
}

BOOST_AUTO_TEST_CASE(a_payload_that_reaches_past_the_work_request_is_refused) {
  add(FragmentType::data, 100);
  BOOST_CHECK(!dispatch(bytes.size() - kOrbGrain));
  BOOST_CHECK_EQUAL(stream().receiver().queued(), 0u);
}

BOOST_AUTO_TEST_CASE(lengths_that_overflow_are_refused) {
  for (const uint32_t length : {kMaxFragmentPayload + 1, 0x7fffffffU, 0xffffffffU, 0xffffffe0U}) {
    bytes.assign(kMaxWorkRequest, std::byte{0});
    const FragmentHeader header{stream().id(), length, stream().generation(), 1, {}};
    std::memcpy(bytes.data(), &header, sizeof header);
    BOOST_CHECK_MESSAGE(!dispatch(), length);
  }
}

BOOST_AUTO_TEST_CASE(a_sound_fragment_before_a_bad_one_is_delivered) {
  add(FragmentType::data, 4, "good");
  add(FragmentHeader{stream().id(), 0, stream().generation(), 99, {}});
  BOOST_CHECK(!dispatch());
  BOOST_CHECK_EQUAL(read_all(), "good");
  BOOST_CHECK_EQUAL(fake.released, 1u);
}

BOOST_AUTO_TEST_CASE(types_that_do_not_exist_are_refused) {
  for (const int type : {0, 18, 255}) {
    bytes.clear();
    add(FragmentHeader{stream().id(), 0, stream().generation(), static_cast<uint8_t>(type), {}});
    BOOST_CHECK_MESSAGE(!dispatch(), type);
  }
}

BOOST_AUTO_TEST_CASE(control_fragments_of_another_size_are_refused) {
  for (const auto type :
       {FragmentType::receive_ready, FragmentType::switch_up, FragmentType::switch_down,
        FragmentType::ask_down, FragmentType::credit, FragmentType::fin, FragmentType::switch_hold,
        FragmentType::returned_end, FragmentType::join, FragmentType::closed}) {
    for (const uint32_t length : {0U, 7U, 9U, 15U, 17U}) {
      bytes.clear();
      add(type, length);
      BOOST_CHECK_MESSAGE(!dispatch(), static_cast<int>(type) << " of " << length);
    }
  }
  for (const auto type : {FragmentType::switch_ack, FragmentType::reset, FragmentType::probe_reply,
                          FragmentType::check_anchor}) {
    bytes.clear();
    add(type, 8);
    BOOST_CHECK(!dispatch());
  }
}

BOOST_AUTO_TEST_CASE(empty_data_is_refused) {
  add(FragmentType::data, 0);
  BOOST_CHECK(!dispatch());
}

BOOST_AUTO_TEST_CASE(more_than_the_credit_is_refused) {
  const uint64_t window = node().config().window_size;
  bytes.assign(kMaxWorkRequest, std::byte{0});
  const uint32_t payload = kMaxFragmentPayload - sizeof(FragmentHeader);
  const FragmentHeader header{stream().id(), payload, stream().generation(), 1, {}};
  for (size_t at = 0; at < bytes.size(); at += kMaxFragmentPayload)
    std::memcpy(bytes.data() + at, &header, sizeof header);
  uint64_t taken = 0;
  while (dispatch()) {
    taken += payload * 4;
    BOOST_REQUIRE_LE(taken, window);
  }
  BOOST_CHECK_GT(taken + payload * 4, window);
}

BOOST_AUTO_TEST_CASE(marks_that_count_other_bytes_than_arrived_are_refused) {
  for (const auto type : {FragmentType::switch_down, FragmentType::fin}) {
    for (const uint64_t value : {uint64_t{1}, ~uint64_t{0}}) {
      bytes.clear();
      add_value(type, value);
      BOOST_CHECK(!dispatch());
    }
  }
}

BOOST_AUTO_TEST_CASE(marks_that_no_correct_peer_sends_are_refused_and_not_kept) {
  // Nobody reads here, so everything that is taken stays in memory.
  const HoldPayload hold{0, HoldPayload::kNotHeld};
  const uint64_t zero = 0;
  const auto taken = [&](FragmentType type, const void* payload, uint32_t length) {
    unsigned count = 0;
    for (bool goes_on = true; goes_on && count < 100; ++count) {
      bytes.clear();
      add(type, length, payload);
      goes_on = dispatch();
    }
    return count - 1;
  };
  // The direction has moved up once already.
  BOOST_CHECK_EQUAL(taken(FragmentType::switch_up, &zero, sizeof zero), 0u);
  BOOST_CHECK_LE(taken(FragmentType::switch_down, &zero, sizeof zero), 2u);
  BOOST_CHECK_LE(taken(FragmentType::switch_hold, &hold, sizeof hold), 1u);
  BOOST_CHECK_EQUAL(taken(FragmentType::fin, &zero, sizeof zero), 1u);
}

BOOST_AUTO_TEST_CASE(a_go_of_another_stream_is_refused_and_its_connection_lives_on) {
  // The refusal goes to a stream that is moving up over the same connection.
  Stream& asking = other.stream(1);
  const ReceiveReadyPayload ready{asking.id(), asking.generation(), 1 << 20, 1 << 20};
  for (const auto type : {FragmentType::receive_ready, FragmentType::join}) {
    bytes.clear();
    add(type, sizeof ready, &ready);
    BOOST_CHECK(dispatch());
  }
  BOOST_CHECK(tests::eventually([&] { return asking.is_aborted(); }));
  BOOST_CHECK(!stream().is_aborted());
  BOOST_CHECK(stream().connection()->breach == nullptr);
  bytes.clear();
  add(FragmentType::data, 5, "hello");
  BOOST_CHECK(dispatch());
  BOOST_CHECK_EQUAL(read_all(), "hello");
}

BOOST_AUTO_TEST_CASE(data_behind_the_end_is_refused) {
  add_value(FragmentType::fin, 0);
  add(FragmentType::data, 4, "late");
  BOOST_CHECK(!dispatch());
  BOOST_CHECK(stream().receiver().peer_has_finished());
}

BOOST_AUTO_TEST_CASE(credit_does_not_go_backwards) {
  BOOST_REQUIRE(stream().sender().can_send());
  add_value(FragmentType::credit, 0);
  BOOST_CHECK(dispatch());
  BOOST_CHECK(stream().sender().can_send());
}

BOOST_AUTO_TEST_CASE(a_reset_ends_the_stream_with_an_error) {
  add(FragmentType::data, 3, "end");
  add(FragmentType::reset, 0);
  BOOST_CHECK(dispatch());
  BOOST_CHECK_EQUAL(read_all(), "end");
  char byte = 0;
  const iovec part{&byte, 1};
  BOOST_CHECK_EQUAL(pair.socket(0).receive(&part, 1, MSG_DONTWAIT), -1);
  BOOST_CHECK_EQUAL(errno, ECONNRESET);
}

BOOST_AUTO_TEST_CASE(a_stream_that_a_reset_has_left_to_the_anchor_does_not_move_any_more) {
  pair.stream(0).request_down(Reason::none);
  BOOST_REQUIRE(tests::eventually([&] {
    return pair.stream(0).sender().carrier() == Carrier::kernel &&
           pair.stream(0).receiver().is_complete();
  }));
  add(FragmentType::reset, 0);
  add_value(FragmentType::switch_up, stream().receiver().kernel_bytes());
  BOOST_CHECK(dispatch());
  BOOST_CHECK(!stream().is_aborted());
  const iovec part{const_cast<char*>("by TCP"), 6};
  BOOST_REQUIRE_EQUAL(pair.socket(1).transmit(&part, 1, MSG_DONTWAIT), 6);
  BOOST_CHECK_EQUAL(read_all(), "by TCP");
}

BOOST_AUTO_TEST_CASE(who_has_closed_hands_nothing_back) {
  hold();
  add_value(FragmentType::closed, 0);
  add_value(FragmentType::returned_end, 0);  // they have crossed
  BOOST_CHECK(dispatch());
  check_that_it_is_left_to_the_anchor();
}

BOOST_AUTO_TEST_CASE(who_has_reset_a_stream_that_was_not_used_hands_nothing_back) {
  hold();
  add(FragmentType::reset, 0);
  add_value(FragmentType::returned_end, 0);
  BOOST_CHECK(dispatch());
  check_that_it_is_left_to_the_anchor();
}

BOOST_AUTO_TEST_CASE(a_probe_for_a_stream_that_is_not_there_is_answered_with_a_reset) {
  // The answer goes to the stream at the other end of the pair.
  Stream& asking = pair.stream(1);
  const ProbePayload probe{asking.id(), asking.generation()};
  add(FragmentType::probe, sizeof probe, &probe);
  BOOST_CHECK(dispatch());
  BOOST_CHECK(!tests::eventually_within(50, [&] { return asking.is_aborted(); }));
  bytes.clear();
  add({stream().id(),
       sizeof probe,
       stream().generation() + 1,
       static_cast<uint8_t>(FragmentType::probe),
       {}},
      &probe);
  BOOST_CHECK(dispatch());
  BOOST_CHECK(tests::eventually([&] { return asking.is_aborted(); }));
}

BOOST_AUTO_TEST_SUITE_END()

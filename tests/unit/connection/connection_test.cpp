// How a long send is cut into fragments.
#include "engine/connection/connection.hpp"

#include <boost/test/unit_test.hpp>

#include "engine/wire/fragment.hpp"

using namespace sidestep::engine;

BOOST_AUTO_TEST_SUITE(connection)

BOOST_AUTO_TEST_CASE(a_request_that_is_posted_whole_is_filled_by_its_fragments) {
  for (uint32_t request = 2 * kMaxFragmentPayload; request <= 2 * kMaxWorkRequest;
       request += static_cast<uint32_t>(kOrbGrain)) {
    const uint32_t payload = Connection::payload_limit(request, request);
    const uint64_t fragment = fragment_size(payload);
    BOOST_REQUIRE_LE(payload, kMaxFragmentPayload);
    BOOST_REQUIRE_GE(payload, kMaxFragmentPayload / 2);
    BOOST_REQUIRE_LT(request - request / fragment * fragment, (request / fragment + 1) * kOrbGrain);
  }
}

BOOST_AUTO_TEST_CASE(what_is_posted_in_smaller_parts_has_the_longest_fragments) {
  BOOST_CHECK_EQUAL(Connection::payload_limit(kMaxWorkRequest, 1), kMaxFragmentPayload);
}

BOOST_AUTO_TEST_SUITE_END()

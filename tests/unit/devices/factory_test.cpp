// The device that a node uses: opened once, retried after a failure, replaced when it is lost.
#include <boost/test/unit_test.hpp>
#include <vector>

#include "engine/device/half_open.hpp"
#include "engine/devices/factory.hpp"

using namespace sidestep::engine;

namespace {

/// A device without hardware or peers, which has only what Devices asks of a device.
class Stub final : public Device {
 public:
  explicit Stub(DeviceKind kind) : kind_(kind) {}
  const char* name() const noexcept override { return "stub"; }
  DeviceKind kind() const noexcept override { return kind_; }
  bool is_lost() const noexcept override { return lost; }
  std::unique_ptr<HalfOpen> begin() noexcept override { return nullptr; }
  void add(Endpoint&) override {}
  void remove(Endpoint&) noexcept override {}
  size_t poll_recv(uint32_t, std::span<RecvCompletion>) noexcept override { return 0; }
  void arm() noexcept override {}
  void disarm() noexcept override {}
  bool is_armed() const noexcept override { return false; }
  int event_fd() const noexcept override { return -1; }
  void clear_event() noexcept override {}

  bool lost = false;

 private:
  const DeviceKind kind_;
};

struct Opener {
  Opener() { current = this; }
  ~Opener() { current = nullptr; }

  static std::unique_ptr<Device> open(const sidestep::config::Config&, DeviceKind kind,
                                      bool quiet) noexcept {
    ++current->calls;
    current->was_quiet = quiet;
    if (!current->works) return nullptr;
    return std::make_unique<Stub>(kind);
  }

  /// Calls Devices::get() at this second. What that returns is a Stub.
  Stub* get(uint64_t second, DeviceKind kind = DeviceKind::verbs) {
    return static_cast<Stub*>(devices.get(kind, second * 1'000'000'000, added));
  }

  static inline Opener* current = nullptr;
  sidestep::config::Config config;
  Devices devices{config, open};
  bool works = true;
  bool was_quiet = false;
  bool added = false;
  int calls = 0;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(devices)

BOOST_AUTO_TEST_CASE(each_kind_is_opened_once) {
  Opener opener;
  Stub* const verbs = opener.get(1);
  BOOST_REQUIRE(verbs != nullptr);
  BOOST_CHECK(opener.added);
  BOOST_CHECK(opener.get(2) == verbs);
  BOOST_CHECK(!opener.added);
  BOOST_CHECK(opener.get(2, DeviceKind::shm) != verbs);
  BOOST_CHECK(opener.get(3, DeviceKind::none) == nullptr);
  BOOST_CHECK_EQUAL(opener.calls, 2);
  BOOST_CHECK(!opener.devices.may_return(DeviceKind::verbs));
}

BOOST_AUTO_TEST_CASE(one_that_cannot_be_opened_is_tried_again_later_and_later_and_logged_once) {
  Opener opener;
  opener.works = false;
  std::vector<uint64_t> tried;
  for (uint64_t second = 100; second < 300; ++second) {
    const int before = opener.calls;
    BOOST_CHECK(opener.get(second) == nullptr);
    if (opener.calls == before) continue;
    BOOST_CHECK_EQUAL(opener.was_quiet, !tried.empty());
    tried.push_back(second - 100);
  }
  const std::vector<uint64_t> expected{0, 1, 3, 7, 15, 31, 63, 127, 191};
  BOOST_CHECK_EQUAL_COLLECTIONS(tried.begin(), tried.end(), expected.begin(), expected.end());
  BOOST_CHECK(!opener.devices.may_return(DeviceKind::verbs));  // there never was one
  opener.works = true;
  BOOST_CHECK(opener.get(400) != nullptr);
}

BOOST_AUTO_TEST_CASE(another_takes_the_place_of_one_that_is_lost) {
  Opener opener;
  Stub* const first = opener.get(1);
  first->lost = true;
  BOOST_CHECK(opener.devices.may_return(DeviceKind::verbs));
  opener.works = false;
  BOOST_CHECK(opener.get(2) == nullptr);
  BOOST_CHECK(!opener.was_quiet);
  BOOST_CHECK(opener.get(2) == nullptr);
  BOOST_CHECK_EQUAL(opener.calls, 2);
  opener.works = true;
  Stub* const second = opener.get(3);
  BOOST_REQUIRE(second != nullptr);
  BOOST_CHECK(second != first);
  BOOST_CHECK(opener.added);
  BOOST_CHECK(opener.get(4) == second);
  BOOST_CHECK_EQUAL(opener.devices.end() - opener.devices.begin(), 2);  // the first one is kept
}

BOOST_AUTO_TEST_CASE(there_is_an_end_to_it) {
  Opener opener;
  for (size_t i = 0; i < Devices::kMost; ++i) {
    Stub* const device = opener.get(i);
    BOOST_REQUIRE(device != nullptr);
    device->lost = true;
  }
  BOOST_CHECK(!opener.devices.may_return(DeviceKind::verbs));
  BOOST_CHECK(opener.get(1000) == nullptr);
  BOOST_CHECK_EQUAL(opener.calls, static_cast<int>(Devices::kMost));
}

BOOST_AUTO_TEST_SUITE_END()

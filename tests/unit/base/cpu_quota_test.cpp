#include "engine/base/cpu_quota.hpp"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/fake_control_group.hpp"

using sidestep::engine::CpuQuota;
using sidestep::tests::FakeControlGroup;

namespace {

constexpr uint64_t kMillisecond = 1'000'000;

bool is_found(const FakeControlGroup& group, const std::string& cgroup) {
  CpuQuota quota;
  quota.open(cgroup, group.mounts());
  return quota.exists();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_quota)

BOOST_AUTO_TEST_CASE(what_it_takes_is_told_from_when_it_was_found) {
  FakeControlGroup group("system.slice/app.service");
  CpuQuota quota;
  BOOST_TEST(!quota.exists());
  BOOST_TEST(quota.throttled() == 0);
  quota.open("0::/system.slice/app.service\n", group.mounts());
  BOOST_TEST(quota.exists());
  BOOST_TEST(quota.throttled() == 0);
  group.throttle(7 * kMillisecond);
  BOOST_TEST(quota.throttled() == 7 * kMillisecond);
  group.write("cpu.stat", "");
  BOOST_TEST(quota.throttled() == 0);
}

BOOST_AUTO_TEST_CASE(a_group_without_a_quota_is_none) {
  FakeControlGroup group("app");
  BOOST_TEST(is_found(group, "0::/app\n"));
  group.write("cpu.max", "max 100000\n");
  BOOST_TEST(!is_found(group, "0::/app\n"));
}

BOOST_AUTO_TEST_CASE(a_container_may_see_its_own_group_where_others_see_the_root) {
  const FakeControlGroup group("");
  BOOST_TEST(is_found(group, "0::/\n"));
  BOOST_TEST(is_found(group, "0::/kubepods/pod1/c1\n"));
}

BOOST_AUTO_TEST_CASE(version_1_has_the_controller_for_itself_or_with_others) {
  for (const std::string name : {"cpu", "cpu,cpuacct", "cpuacct,cpu", "a,cpu,b"}) {
    FakeControlGroup group(name + "/app");
    std::filesystem::remove(std::filesystem::path(group.mounts()) / name / "app/cpu.max");
    group.write("cpu.cfs_quota_us", "-1\n");
    const std::string cgroup = "9:cpuset:/app\n2:cpuacct:/app\n1:" + name + ":/app\n0::/\n";
    BOOST_TEST(!is_found(group, cgroup));
    group.write("cpu.cfs_quota_us", "50000\n");
    group.write("cpu.stat", "nr_periods 2\nnr_throttled 1\nthrottled_time 5000000\n");
    CpuQuota quota;
    quota.open(cgroup, group.mounts());
    BOOST_TEST(quota.exists());
    group.write("cpu.stat", "nr_periods 2\nnr_throttled 1\nthrottled_time 6000000\n");
    BOOST_TEST(quota.throttled() == kMillisecond);
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_understood_is_no_quota) {
  const FakeControlGroup group("app");
  for (const std::string cgroup :
       {"", "\n", "0", "0:", "0::", ":::", "1:cpu:/app", "3:cpuset:/app\n"})
    BOOST_TEST(!is_found(group, cgroup), cgroup);
}

BOOST_AUTO_TEST_SUITE_END()

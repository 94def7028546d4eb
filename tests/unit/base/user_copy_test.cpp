// Copies from and to memory that may be unmapped.
#include "engine/base/user_copy.hpp"

#include <sys/mman.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "engine/stream/stream.hpp"
#include "tests/support/bound_pair.hpp"
#include "tests/support/socket_text.hpp"

using namespace sidestep::engine;

namespace {

constexpr size_t kPage = 4096;

#if defined(__has_feature)
constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#elif defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

/// Handles a fault as the shim does.
void answer(int number, siginfo_t* info, void* context) {
  if (answer_fault(*info, context)) return;
  std::signal(number, SIG_DFL);
}

/// From its construction on, faults are answered as in a process that has the shim.
struct Answers {
  Answers() {
    struct sigaction action {};
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
    faults_are_answered();
  }
};

/// The size of the inaccessible memory behind a `Memory`. No copy here asks for as much, since
/// AddressSanitizer checks the whole range of a copy before a byte is copied.
constexpr size_t kGuard = 16 * kPage;

/// `pages` accessible pages, followed by inaccessible memory.
class Memory {
 public:
  explicit Memory(size_t pages) : size_(pages * kPage) {
    void* const memory =
        mmap(nullptr, size_ + kGuard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(memory != MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    mprotect(end(), kGuard, PROT_NONE);
    for (size_t i = 0; i < size_; ++i) memory_[i] = static_cast<std::byte>(i * 7 + 1);
  }
  ~Memory() { munmap(memory_, size_ + kGuard); }
  Memory(const Memory&) = delete;
  std::byte* begin() const { return memory_; }
  std::byte* end() const { return memory_ + size_; }

 private:
  size_t size_;
  std::byte* memory_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(user_copy)

BOOST_AUTO_TEST_CASE(every_length_is_copied_whole_and_nothing_beside_it) {
  const Answers answers;
  constexpr size_t kMost = 700;
  std::vector<std::byte> source(kMost + 16);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  for (size_t from = 0; from < 9; ++from) {
    for (size_t size = 0; size <= kMost; ++size) {
      std::vector<std::byte> expected(size + 16, std::byte{0xee});
      for (size_t i = 0; i < size; ++i) expected[5 + i] = source[from + i];
      std::vector<std::byte> target(size + 16, std::byte{0xee});
      BOOST_REQUIRE_EQUAL(copy_in(target.data() + 5, source.data() + from, size), size);
      BOOST_REQUIRE(target == expected);
      target.assign(size + 16, std::byte{0xee});
      BOOST_REQUIRE_EQUAL(copy_out(target.data() + 5, source.data() + from, size), size);
      BOOST_REQUIRE(target == expected);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_copy_tells_how_far_it_has_got) {
  const Answers answers;
  const Memory memory(3);
  std::vector<std::byte> other(2 * kPage);
  for (const size_t size :
       {1u,   2u,   3u,   5u,   8u,   15u,  16u,   31u,   32u,   33u,   64u,  65u,
        100u, 128u, 129u, 256u, 257u, 300u, 2047u, 2048u, 2049u, 4097u, 8192u}) {
    for (const size_t there : {size_t{0}, size_t{1}, size / 2, size - 1}) {
      if (there >= size) continue;
      other.assign(other.size(), std::byte{0xee});
      BOOST_REQUIRE_EQUAL(copy_in(other.data(), memory.end() - there, size), there);
      BOOST_REQUIRE(std::memcmp(other.data(), memory.end() - there, there) == 0);
      for (size_t i = 0; i < other.size(); ++i) other[i] = static_cast<std::byte>(i * 3 + 2);
      BOOST_REQUIRE_EQUAL(copy_out(memory.end() - there, other.data(), size), there);
      BOOST_REQUIRE(std::memcmp(other.data(), memory.end() - there, there) == 0);
    }
  }
  BOOST_CHECK_EQUAL(copy_in(other.data(), nullptr, 300), 0u);
  // No page can have this address, and the kernel does not report which address was accessed.
  auto* const impossible = reinterpret_cast<std::byte*>(uintptr_t{1} << 55);
  BOOST_CHECK_EQUAL(copy_in(other.data(), impossible, 7), 0u);
  // AddressSanitizer has no shadow for such an address and stops at any memcpy() from it.
  if (!kAddressSanitizer) BOOST_CHECK_EQUAL(copy_in(other.data(), impossible, 7000), 0u);
}

BOOST_AUTO_TEST_CASE(touching_finds_the_first_page_that_is_not_there) {
  const Answers answers;
  const Memory memory(3);
  BOOST_CHECK_EQUAL(touch(memory.begin(), 3 * kPage), 3 * kPage);
  BOOST_CHECK_EQUAL(touch(memory.begin() + 5, 3 * kPage), 3 * kPage - 5);
  BOOST_CHECK_EQUAL(touch(memory.end(), 1), 0u);
  BOOST_CHECK_EQUAL(touch(memory.end(), 0), 0u);
  BOOST_CHECK_EQUAL(touch_to_write(memory.end() - 1, 2), 1u);
  const std::vector<std::byte> before(memory.begin(), memory.end());
  BOOST_CHECK_EQUAL(touch_to_write(memory.begin() + 1, 4 * kPage), 3 * kPage - 1);
  BOOST_CHECK(std::memcmp(before.data(), memory.begin(), before.size()) == 0);
  BOOST_CHECK(is_readable(memory.begin(), 3 * kPage));
  BOOST_CHECK(!is_readable(memory.begin(), 3 * kPage + 1));
}

BOOST_AUTO_TEST_CASE(a_thread_that_blocks_faults_survives_them) {
  const Answers answers;
  const Memory memory(1);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  forget_fault_mask();
  std::vector<std::byte> other(kPage);
  BOOST_CHECK_EQUAL(copy_in(other.data(), memory.end() - 3, 10), 3u);
  BOOST_CHECK_EQUAL(copy_in(other.data(), memory.end() - 3, 1000), 3u);
  BOOST_CHECK_EQUAL(touch(memory.begin(), 2 * kPage), kPage);
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, &before, &now);
  BOOST_CHECK_EQUAL(sigismember(&now, SIGSEGV), 1);
  BOOST_CHECK_EQUAL(sigismember(&now, SIGBUS), 1);
}

BOOST_AUTO_TEST_CASE(memory_that_goes_away_while_it_is_sent_is_nobodys) {
  const Answers answers;
  const sidestep::tests::BoundPair pair;
  const Memory memory(8);
  Stream& stream = pair.stream(0);
  // This is what a send finds if the memory was unmapped after the caller had touched it.
  const iovec vector{memory.begin(), 9 * kPage};
  stream.sender().mutex().lock();
  const size_t sent = stream.sender().send_locked(&vector, 1, 0, 9 * kPage);
  const iovec nothing{memory.end(), 50};
  BOOST_CHECK_EQUAL(stream.sender().send_locked(&nothing, 1, 0, 50), 0u);
  stream.sender().unlock();
  BOOST_CHECK_LE(sent, 8 * kPage);
  BOOST_CHECK_EQUAL(sidestep::tests::send(pair.socket(0), "behind"), 6);
  const std::string all(reinterpret_cast<const char*>(memory.begin()), sent);
  BOOST_CHECK(sidestep::tests::receive_all(pair.socket(1), sent + 6) == all + "behind");
}

BOOST_AUTO_TEST_SUITE_END()

// Fuzzes the compact form of a work request, as a peer may have written it; the first bytes choose
// the circumstances. Whatever is accepted must be a sound fragment, and must be written again in
// the form in which it came.
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/verbs/compact_form.hpp"

using namespace sidestep::engine;
using namespace sidestep::engine::verbs;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kChoices = 3;
  if (size < kChoices) return 0;
  const bool hashed = (data[0] & 1) != 0;
  const bool honest = (data[0] & 2) != 0;  // without this, few inputs have the check they need
  const uint32_t sequence = data[2];
  std::vector<std::byte> sent(size - kChoices);
  if (!sent.empty()) std::memcpy(sent.data(), data + kChoices, sent.size());
  if (honest && !sent.empty() && sent.size() <= kMaxCompactPayload) {
    const FragmentHeader header{data[1],
                                static_cast<uint32_t>(sent.size()),
                                data[2],
                                static_cast<uint8_t>(FragmentType::data),
                                {}};
    std::array<std::byte, kCompactPlace> place;
    const auto end = write_compact_end(place, header, sent.data(), {sequence, data[1], 0}, hashed);
    sent.insert(sent.end(), end.begin(), end.end());
  }
  Trailer trailer{sequence, 0, 0};
  FragmentHeader header{};
  const bool taken = read_compact(sent, header, trailer, hashed);
  require(!honest || sent.size() == size - kChoices || taken);
  if (!taken) return 0;
  require(has_compact_form(header, static_cast<uint32_t>(fragment_size(header.length))));
  require(header.length < sent.size());
  require(trailer.received >> kCompactReceivedBits == 0);
  const std::byte* const payload = sent.data();
  std::array<std::byte, kCompactPlace> place;
  const auto end = write_compact_end(place, header, payload, trailer, hashed);
  require(header.length + end.size() == sent.size());
  require(std::memcmp(end.last<kCompactEnd>().data(), sent.data() + sent.size() - kCompactEnd,
                      kCompactEnd) == 0);
  return 0;
}

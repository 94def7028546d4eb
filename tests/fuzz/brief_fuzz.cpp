// The short form of a work request, as a peer may have written it: the first bytes choose the rest
// of its circumstances. What is accepted is a sound fragment, and is sent again as it came.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/verbs/brief.hpp"

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
  const bool honest = (data[0] & 2) != 0;  // else hardly any input has the check that it needs
  const size_t room = size_t{data[1]} * 4;
  const uint32_t sequence = data[2];
  std::vector<std::byte> arrived(size - kChoices);
  if (!arrived.empty()) std::memcpy(arrived.data(), data + kChoices, arrived.size());
  if (honest && !arrived.empty() && arrived.size() <= kMaxBriefPayload) {
    const FragmentHeader header{data[1],
                                static_cast<uint32_t>(arrived.size()),
                                data[2],
                                static_cast<uint8_t>(FragmentType::data),
                                {}};
    std::array<std::byte, kBriefPlace> place;
    const auto end = write_brief_end(place, header, arrived.data(), {sequence, data[1], 0}, hashed);
    arrived.insert(arrived.end(), end.begin(), end.end());
  }
  const std::vector<std::byte> sent = arrived;
  const auto length = static_cast<uint32_t>(sent.size());
  // A device fills no more than there is.
  arrived.resize(std::max(room, sent.size()));
  Trailer trailer{sequence, 0, 0};
  const uint32_t fragment = expand_brief(arrived, length, trailer, hashed);
  require(!honest || sent.size() == size - kChoices || fragment != 0 ||
          arrived.size() < fragment_size(size - kChoices));
  if (fragment == 0) return 0;
  require(fragment <= arrived.size());
  FragmentHeader header;
  std::memcpy(&header, arrived.data(), sizeof header);
  require(has_brief_form(header, fragment));
  require(trailer.received >> kBriefReceivedBits == 0);
  const std::byte* const payload = arrived.data() + sizeof header;
  require(std::memcmp(payload, sent.data(), header.length) == 0);
  std::array<std::byte, kBriefPlace> place;
  const auto end = write_brief_end(place, header, payload, trailer, hashed);
  require(header.length + end.size() == sent.size());
  require(std::memcmp(end.last<kBriefEnd>().data(), sent.data() + sent.size() - kBriefEnd,
                      kBriefEnd) == 0);
  return 0;
}

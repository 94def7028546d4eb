#include "engine/base/reason.hpp"

#include <array>
#include <cstddef>

namespace sidestep::engine {
namespace {

constexpr bool for_good = true;
constexpr bool may_return = false;

struct Entry {
  const char* code = "";
  const char* text = "";
  bool is_for_good = may_return;
  const char* explanation = "";
};

constexpr Reason kAll[] = {
#define SIDESTEP_REASONS(explanation)
#define SIDESTEP_REASON(name, text, lasting) Reason::name,
#include "engine/base/reasons.def"
#undef SIDESTEP_REASON
#undef SIDESTEP_REASONS
};

/// Indexed by reason; `none` comes first.
constexpr auto kEntries = [] {
  std::array<Entry, std::size(kAll) + 1> entries{};
  size_t next = 1;
  const char* explained = "";
#define SIDESTEP_REASONS(explanation) explained = explanation;
#define SIDESTEP_REASON(name, text, lasting) entries[next++] = {#name, text, lasting, explained};
#include "engine/base/reasons.def"
#undef SIDESTEP_REASON
#undef SIDESTEP_REASONS
  return entries;
}();

constexpr const Entry& entry_of(Reason reason) noexcept {
  return kEntries[static_cast<size_t>(reason)];
}

}  // namespace

std::span<const Reason> all_reasons() noexcept {
  return kAll;
}

const char* code_of(Reason reason) noexcept {
  return entry_of(reason).code;
}

const char* text_of(Reason reason) noexcept {
  return entry_of(reason).text;
}

const char* explanation_of(Reason reason) noexcept {
  return entry_of(reason).explanation;
}

bool is_for_good(Reason reason) noexcept {
  return entry_of(reason).is_for_good;
}

}  // namespace sidestep::engine

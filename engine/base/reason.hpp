#pragma once
/// Why a stream is on the kernel. The reasons are data: reasons.def.
#include <cstdint>
#include <span>

namespace sidestep::engine {

enum class Reason : uint8_t {
  none,
#define SIDESTEP_REASONS(explanation)
#define SIDESTEP_REASON(name, text, lasting) name,
#include "engine/base/reasons.def"
#undef SIDESTEP_REASON
#undef SIDESTEP_REASONS
};

// Any thread may call all of these.

/// All but `none`, in the order of reasons.def.
std::span<const Reason> all_reasons() noexcept;
/// For programs: lower case, digits and underscores.
const char* code_of(Reason reason) noexcept;
/// For people; "" for `none`.
const char* text_of(Reason reason) noexcept;
/// A sentence or two; the same for reasons that are explained together.
const char* explanation_of(Reason reason) noexcept;
/// Whether a stream with this reason never leaves the kernel again.
bool is_for_good(Reason reason) noexcept;

}  // namespace sidestep::engine

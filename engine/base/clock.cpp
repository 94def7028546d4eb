#include "engine/base/clock.hpp"

#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

#include <cstring>

#include "engine/base/sys.hpp"

namespace sidestep::engine {
namespace {

int ask_kernel(clockid_t clock, timespec* time) noexcept {
  return static_cast<int>(sys::call(SYS_clock_gettime, clock, time));
}

/// Returns how many symbols a table with a GNU hash has: the chain that begins last ends with the
/// last symbol.
uint32_t count_symbols(const uint32_t* gnu_hash) noexcept {
  const uint32_t buckets = gnu_hash[0];
  const uint32_t first = gnu_hash[1];
  const auto* const filter = reinterpret_cast<const ElfW(Addr)*>(gnu_hash + 4);
  const auto* const bucket = reinterpret_cast<const uint32_t*>(filter + gnu_hash[2]);
  const uint32_t* const chain = bucket + buckets;
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; ++i)
    if (bucket[i] > last) last = bucket[i];
  if (last < first) return 0;
  while ((chain[last - first] & 1U) == 0) ++last;
  return last + 1;
}

/// Finds the vDSO's own function, past every library that may have put itself in front of the name.
/// Null if there is no vDSO, as under some emulators and checkers.
RawClock* find_in_vdso() noexcept {
#if defined(__aarch64__)
  constexpr const char* kName = "__kernel_clock_gettime";
#else
  constexpr const char* kName = "__vdso_clock_gettime";
#endif
  const auto base = static_cast<uintptr_t>(getauxval(AT_SYSINFO_EHDR));
  if (base == 0) return nullptr;
  const auto* const header = reinterpret_cast<const ElfW(Ehdr)*>(base);
  const auto* segment = reinterpret_cast<const ElfW(Phdr)*>(base + header->e_phoff);
  uintptr_t offset = 0;  // from the addresses in the file to those in memory
  bool loaded = false;
  const ElfW(Dyn)* entry = nullptr;
  for (unsigned i = 0; i < header->e_phnum; ++i, ++segment) {
    if (segment->p_type == PT_LOAD && !loaded) {
      offset = base + segment->p_offset - segment->p_vaddr;
      loaded = true;
    } else if (segment->p_type == PT_DYNAMIC) {
      entry = reinterpret_cast<const ElfW(Dyn)*>(base + segment->p_offset);
    }
  }
  if (!loaded || entry == nullptr) return nullptr;
  const char* names = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  uint32_t count = 0;
  for (; entry->d_tag != DT_NULL; ++entry) {
    const uintptr_t at = offset + entry->d_un.d_ptr;
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(at);
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at);
    if (entry->d_tag == DT_HASH) count = reinterpret_cast<const uint32_t*>(at)[1];
    if (entry->d_tag == DT_GNU_HASH && count == 0)  // some vDSOs have only this one
      count = count_symbols(reinterpret_cast<const uint32_t*>(at));
  }
  if (names == nullptr || symbols == nullptr) return nullptr;
  for (uint32_t i = 0; i < count; ++i) {
    const ElfW(Sym)& symbol = symbols[i];
    if (symbol.st_shndx != SHN_UNDEF && std::strcmp(names + symbol.st_name, kName) == 0)
      return reinterpret_cast<RawClock*>(offset + symbol.st_value);
  }
  return nullptr;
}

/// The value of raw_clock until the first call.
int find_and_ask(clockid_t clock, timespec* time) noexcept {
  RawClock* found = find_in_vdso();
  timespec probe{};
  if (found == nullptr || found(CLOCK_MONOTONIC, &probe) != 0) found = ask_kernel;
  raw_clock.store(found, std::memory_order_relaxed);
  return found(clock, time);
}

}  // namespace

constinit std::atomic<RawClock*> raw_clock{find_and_ask};

}  // namespace sidestep::engine

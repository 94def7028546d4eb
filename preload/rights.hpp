#pragma once
/// Calls by which the calling thread gives rights away, or leaves what it shares with others.

namespace sidestep::preload {

/// Around such a call, known by its number and words; nothing happens around any other. The engine
/// is retired before, if its threads would keep what the caller gives away.
class RightsCall {
 public:
  RightsCall(long number, const long (&word)[6]) noexcept;
  /// After it. No system call: the caller may be in a sandbox.
  void returned(long result) const noexcept;

 private:
  bool is_sandbox_ = false;
};

}  // namespace sidestep::preload

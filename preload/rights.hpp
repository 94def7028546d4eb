#pragma once
/// Calls by which a thread gives rights away, or leaves what it shares with others.

namespace sidestep::preload {

/// Put around such a call, which is identified by its number and argument words; does nothing
/// around any other call. Retires the engine first if its threads would keep what the caller gives
/// away.
class RightsCall {
 public:
  RightsCall(long number, const long (&word)[6]) noexcept;
  /// Called after the call. Makes no system call: the caller may be in a sandbox.
  void returned(long result) const noexcept;

 private:
  bool is_sandbox_ = false;
};

}  // namespace sidestep::preload

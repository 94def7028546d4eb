#include "engine/wait.hpp"

namespace sidestep::engine {

SpinBudget& SpinBudget::mine() noexcept {
  static constinit thread_local SpinBudget budget;
  return budget;
}

}  // namespace sidestep::engine

#pragma once

namespace sidestep::engine {

class Connection;

/// A stream's place in the list of its connection; the base of Stream.
class BoundStream {
  friend class Connection;
  BoundStream* next_ = nullptr;
  BoundStream* previous_ = nullptr;
};

}  // namespace sidestep::engine

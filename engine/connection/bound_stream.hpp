#pragma once

namespace sidestep::engine {

class Connection;

/// The place of a stream in the list of its connection; the base of Stream.
class BoundStream {
  friend class Connection;
  BoundStream* next_ = nullptr;
  BoundStream* previous_ = nullptr;
};

}  // namespace sidestep::engine

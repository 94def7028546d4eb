// A library to preload: when /tmp/device-fails appears, the open RDMA devices report once that they
// have failed as a whole, as a real device does when its driver is unloaded. Soft-RoCE never
// reports this: its removal waits for the processes that use it.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string_view>

namespace {

bool is_event_file(int fd) noexcept {
  std::array<char, 32> link;
  std::array<char, 64> name;
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link.data(), name.data(), name.size());
  return length > 0 && std::string_view(name.data(), static_cast<size_t>(length)) ==
                           "anon_inode:[infinibandevent]";
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ssize_t read(int fd, void* data, size_t size) {
  using Read = ssize_t (*)(int, void*, size_t);
  static const auto next = reinterpret_cast<Read>(dlsym(RTLD_NEXT, "read"));
  // The size tells asynchronous events from completions. The reader that removes the file gets the
  // event.
  if (size == sizeof(ib_uverbs_async_event_desc) && is_event_file(fd) &&
      unlink("/tmp/device-fails") == 0) {
    const ib_uverbs_async_event_desc event{0, IBV_EVENT_DEVICE_FATAL, 0};
    __builtin_memcpy(data, &event, sizeof event);
    return sizeof event;
  }
  return next(fd, data, size);
}

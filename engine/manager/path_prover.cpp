#include "engine/manager/path_prover.hpp"

#include "engine/base/clock.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {

uint16_t PathProver::open_port() {
  const bool is_new = paths_.fd() < 0;
  const int fd = paths_.open();
  if (fd < 0) return 0;
  if (is_new) node_.watch(fd, EPOLLIN);
  return paths_.port();
}

void PathProver::read() {
  uint64_t number = 0;
  while (const auto path = paths_.receive(number)) {
    // Anybody can send such datagrams.
    if (!limit_.allows(path->other, now_ns())) {
      node_.progress.counters().datagrams_dropped.add();
      continue;
    }
    int error = 0;
    Link* const link = path->nid != node_.nid ? links_.to(path->nid, error) : nullptr;
    if (link == nullptr || !link->is_own) continue;
    paths_.expect(number, *path);
    links_.send(*link, control::Path{number, path->own, path->other});
  }
}

bool PathProver::is_proven(const Link& link, const Tuple& tuple, uint16_t port) {
  const NetworkPaths::Probe path{link.nid, tuple.remote.ip, tuple.local.ip};
  if (paths_.is_proven(path)) return true;
  if (port != 0 && open_port() != 0) paths_.probe(path, port, node_.nid);
  return false;
}

void PathProver::on_path(Link& link, const control::Path& path) {
  if (link.is_own && link.nid != 0 && paths_.confirm(path.number, {link.nid, path.from, path.to}))
    links_.send(link, control::PathOk{path});
}

void PathProver::on_path_ok(const Link& link, const control::PathOk& answer) {
  const control::Path& path = answer.path;
  paths_.accept(path.number, {link.nid, path.to, path.from});
}

}  // namespace sidestep::engine

#!/usr/bin/env python3
"""Many processes, each with a stream to every other one, over one RDMA device."""

import json
import time

import lab_case
from lab_case import LabTestCase, build_dir

PORT = 7200
KB = 1 << 10
FAILED = "the connection failed"


def user_limits():
    """Returns a command prefix that sets the limits which Debian gives a user.

    Half of the locked memory is for receiving. The rest has room for eight rings, each of which gets less
    than 4 MiB.
    """
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--inh-caps=-all",
            "prlimit", f"--memlock={8192 * KB}"]


class Mesh(LabTestCase):
    guests = 1
    memory = "3G"

    def run_mesh(self, count, size, rounds, pause, prefix=(), **options):
        """Returns the statistics of `count` nodes, after checking every byte. `prefix`: of the commands."""
        (guest,) = self.lab.guests
        guest.run("rm -f /tmp/mesh-*.json")
        nodes = []
        for me in range(count):
            env = {"LD_PRELOAD": str(build_dir() / "libsidestep.so"), "SIDESTEP_DEVICE": "verbs",
                   "SIDESTEP_STATS_FILE": f"/tmp/mesh-{me}.json", "SIDESTEP_ORB_SIZE": "128K",
                   "SIDESTEP_ASK_AFTER": "0", "SIDESTEP_ALLOW_NO_KEY": "yes",
                   "SIDESTEP_LOG_LEVEL": "warn",
                   **{f"SIDESTEP_{key.upper()}": str(value) for key, value in options.items()}}
            nodes.append(guest.start([
                *prefix, "python3", str(build_dir() / "programs" / "mesh_node.py"),
                *map(str, (me, count, PORT, size, rounds, pause))], env=env))
        codes = [node.wait(240) for node in nodes]
        said = "\n".join(node.output() for node in nodes)
        self.assertEqual(set(codes), {0}, said)
        self.assertEqual(said.count("all right"), count, said)
        return [json.loads(text) for text in
                guest.run("cat /tmp/mesh-*.json").output.replace("}{", "}\n{").splitlines()]

    def test_one_queue_pair_for_each_pair_of_processes(self):
        count = 32
        nodes = self.run_mesh(count, 64 * KB, 3, 8)
        elsewhere = 0
        for stats in nodes:
            # An emulated device that gets no processor for seconds gives up a connection; the stream then
            # goes on over the kernel, and comes back later.
            reasons = dict(stats["kernel_reasons"])
            elsewhere += reasons.pop(FAILED, 0) + count - 1 - stats["streams.engine"]
            self.assertEqual(reasons, {})
            engine = stats["engine"]
            self.assertGreaterEqual(engine["connections_opened"], count - 1)
            self.assertLessEqual(engine["connections_opened"] - engine["connections_lost"], count - 1)
            self.assertEqual(engine["connections_evicted"], 0)
        self.assertLess(elsewhere, count * (count - 1) // 20)

    def test_more_peers_than_connections(self):
        count = 16
        nodes = self.run_mesh(count, 64 * KB, 3, 4, connections=8)
        for stats in nodes:
            self.assertEqual(stats["streams.total"], count - 1)
            # Streams whose connection has made way come back as long as they are used.
            self.assertGreater(stats["streams.engine"], 0)
        self.assertGreater(sum(stats["engine"]["connections_evicted"] for stats in nodes), 0)

    def test_more_peers_than_there_is_locked_memory_for(self):
        (guest,) = self.lab.guests
        guest.run("chmod 666 /dev/infiniband/uverbs0")
        count = 16
        nodes = self.run_mesh(count, 64 * KB, 3, 4, prefix=user_limits(), orb_size="4M")
        for stats in nodes:
            self.assertEqual(stats["streams.total"], count - 1)
            self.assertGreater(stats["streams.engine"], 0)
            self.assertNotIn("the connection could not be made", stats["kernel_reasons"])
        self.assertGreater(sum(stats["engine"]["connections_evicted"] for stats in nodes), 0)

    def test_peers_that_hold_windows_and_say_nothing(self):
        (guest,) = self.lab.guests
        guest.run("chmod 666 /dev/infiniband/uverbs0; rm -f /tmp/idle.json")
        script = [*user_limits(), "python3", str(build_dir() / "programs" / "idle_peers.py")]
        env = {"LD_PRELOAD": str(build_dir() / "libsidestep.so"), "SIDESTEP_DEVICE": "verbs",
               "SIDESTEP_ORB_SIZE": "128K", "SIDESTEP_ASK_AFTER": "0",
               "SIDESTEP_ALLOW_NO_KEY": "yes", "SIDESTEP_LOG_LEVEL": "warn"}
        count = 8
        server = guest.start([*script, "server", str(PORT), str(count)],
                             env={**env, "SIDESTEP_STATS_FILE": "/tmp/idle.json"})
        clients = []
        for _ in range(count - 1):
            clients.append(guest.start([*script, "client", str(PORT), "idle"], env=env))
            limit = time.monotonic() + 60
            while "has moved" not in clients[-1].output():
                self.assertIsNone(clients[-1].poll(), clients[-1].output())
                self.assertLess(time.monotonic(), limit, "it can't talk to the server any more")
                time.sleep(0.1)
        clients.append(guest.start([*script, "client", str(PORT), "busy"], env=env))
        said = "\n".join(client.output() for client in clients)
        self.assertEqual([client.wait(120) for client in clients], [0] * count, said)
        self.assertEqual(server.wait(60), 0, server.output())
        stats = json.loads(guest.run("cat /tmp/idle.json").output)
        self.assertEqual(stats["streams.engine"], count)
        self.assertGreaterEqual(stats["bytes.rx.engine"], 8192 * KB)
        self.assertEqual(stats["engine"]["connections_evicted"], 0)

    def test_processes_that_end_while_their_streams_move(self):
        (guest,) = self.lab.guests
        guest.run("rm -f /tmp/lives.json")
        env = {"LD_PRELOAD": str(build_dir() / "libsidestep.so"), "SIDESTEP_DEVICE": "verbs",
               "SIDESTEP_ASK_AFTER": "0", "SIDESTEP_ALLOW_NO_KEY": "yes", "SIDESTEP_LOG_LEVEL": "warn"}
        script = ["python3", str(build_dir() / "programs" / "short_lives.py")]
        lives = 20
        server = guest.start([*script, "server", str(PORT), str(lives)],
                             env={**env, "SIDESTEP_STATS_FILE": "/tmp/lives.json"})
        for seed in range(lives):
            client = guest.start([*script, "client", str(PORT), str(seed)], env=env)
            self.assertEqual(client.wait(120), 0, server.output() + client.output())
        self.assertEqual(server.wait(60), 0, server.output())
        self.assertIn("all right", server.output())
        stats = json.loads(guest.run("cat /tmp/lives.json").output)
        self.assertGreaterEqual(stats["engine"]["connections_opened"], lives)


if __name__ == "__main__":
    lab_case.main()

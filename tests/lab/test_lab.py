#!/usr/bin/env python3
"""The lab itself: whether it keeps its promises to the tests that run in it."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import unittest
from unittest import mock

import lab_case
from lab import HERE, CommandFailed, GuestDied, Lab, LabError, TimedOut, dissect
from lab_case import LabTestCase

LISTENING = "until ss --listening --tcp --numeric --no-header | grep -q :{}; do sleep 0.1; done"


class TwoGuests(LabTestCase):
    def setUp(self):
        super().setUp()
        self.first, self.second = self.lab.guests

    def send_lat(self, iterations=100):
        """Runs one of perftest's latency tests from one guest to the other."""
        program = f"ib_send_lat --ib-dev=rxe0 --gid-index=1 --size=64 --iters={iterations}"
        server = self.first.start(program)
        self.first.run(LISTENING.format(18515))
        output = self.second.run(f"{program} {self.first.address}").output
        self.assertEqual(server.wait(), 0, server.describe())
        return output

    def test_each_has_its_name_and_its_number(self):
        for guest in self.lab.guests:
            self.assertEqual(guest.run("hostname; echo $NODE").output,
                             f"{guest.name}\n{guest.node}\n")

    def test_they_reach_each_other(self):
        for guest, other in ((self.first, self.second), (self.second, self.first)):
            guest.run(["ping", "-c", "1", "-W", "5", other.address])
            guest.run(["ping", "-c", "1", "-W", "5", "127.0.0.1"])

    def test_packets_of_the_largest_path_mtu_pass(self):
        self.first.run(f"ping -c 1 -W 5 -M do -s {4500 - 28} {self.second.address}")

    def test_the_rdma_device_is_active_with_the_largest_path_mtu(self):
        for guest in self.lab.guests:
            output = guest.run("ibv_devinfo --ib-dev=rxe0 --verbose").output
            self.assertIn("PORT_ACTIVE", output)
            self.assertRegex(output, r"active_mtu:\s+4096")
            self.assertRegex(output, rf"GID\[ +1\]:\s+::ffff:{guest.address}, RoCE v2")

    def test_rdma_passes_between_them_as_rocev2(self):
        with self.second.capture() as pcap:
            self.assertIn("t_typical", self.send_lat(iterations=100))
        packets = dissect(pcap, ["ip.src", "ip.dst", "infiniband.bth.opcode"],
                          only="udp.dstport == 4791 && infiniband.bth.opcode == 4")  # RC SEND only
        for here, there in ((self.first, self.second), (self.second, self.first)):
            sent = [packet for packet in packets
                    if (packet["ip.src"], packet["ip.dst"]) == (here.address, there.address)]
            self.assertGreaterEqual(len(sent), 100)

    def test_the_connection_manager_is_there(self):
        server = self.first.start(f"rping -s -a {self.first.address} -C 3")
        self.first.run("until rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done")
        self.second.run(f"rping -c -a {self.first.address} -C 3")
        server.wait(20)

    def test_limits_suit_rdma(self):
        self.assertEqual(self.first.run("ulimit -l; ulimit -n").output, "unlimited\n65536\n")

    def test_the_files_of_the_host_are_there_and_stay_as_they_are(self):
        here = self.first.run(["cat", __file__]).output
        self.assertEqual(here, pathlib.Path(__file__).read_text())
        self.first.run(f"echo changed >{HERE}/changed; echo changed >/etc/hostname")
        self.assertFalse((HERE / "changed").exists())
        self.assertNotEqual(pathlib.Path("/etc/hostname").read_text(), "changed\n")
        self.assertNotEqual(self.second.run("cat /etc/hostname").output, "changed\n")

    def test_the_shared_directory_is_written_and_read_on_both_sides(self):
        for content in ("one", "another", "a third"):
            (self.first.shared / "from-host").write_text(content)
            self.first.run("cp /lab/shared/from-host /lab/shared/from-guest")
            self.assertEqual((self.first.shared / "from-guest").read_text(), content)
        self.assertFalse((self.second.shared / "from-guest").exists(), "each guest has its own")

    def test_a_file_in_the_shared_directory_can_be_mapped(self):
        program = textwrap.dedent("""
            import mmap
            with open("/lab/shared/mapped", "w+b") as file:
                file.truncate(8192)
                with mmap.mmap(file.fileno(), 8192) as memory:
                    memory[5000:5005] = b"hello"
                    memory.flush()
        """)
        self.first.run(["python3", "-c", program])
        self.assertEqual((self.first.shared / "mapped").read_bytes()[5000:5005], b"hello")

    def test_exit_codes_signals_environment_and_output_come_back(self):
        self.assertEqual(self.first.run("exit 7", check=False).returncode, 7)
        self.assertEqual(self.first.run("kill -9 $$", check=False).returncode, -signal.SIGKILL)
        self.assertEqual(self.first.run("echo $X; pwd", env={"X": "x y"}, cwd="/usr").output,
                         "x y\n/usr\n")
        process = self.first.start("echo out; echo err >&2; printf '\\303\\244\\377'",
                                   separate_stderr=True)
        self.assertEqual(process.wait(), 0)
        self.assertEqual((process.output(), process.error_output()), ("out\nä\ufffd", "err\n"))
        with self.assertRaisesRegex(CommandFailed, "too bad"):
            self.first.run("echo too bad; false")
        with self.assertRaisesRegex(LabError, "FileNotFoundError"):
            self.first.run(["/nowhere/to/be/found"])

    def test_much_output_comes_back(self):
        self.assertEqual(self.first.run("seq 100000").output,
                         "".join(f"{i}\n" for i in range(1, 100001)))

    def test_many_programs_run_at_the_same_time(self):
        processes = [guest.start(f"sleep 0.{i}; exit {i}") for i in range(5)
                     for guest in self.lab.guests]
        self.assertEqual([p.wait(20) for p in processes], [i for i in range(5) for _ in (1, 2)])

    def test_a_program_that_hangs_is_killed_with_its_children(self):
        began = time.monotonic()
        with self.assertRaisesRegex(TimedOut, "started"):
            self.first.run("echo started; sleep 1000 & sleep 1000", timeout=1)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(self.first.leftovers(settle=2), [])

    def test_signals_reach_a_program(self):
        process = self.first.start("trap 'echo caught; exit 3' TERM; echo ready; "
                                   "while :; do sleep 0.1; done")
        self.first.run(f"until [[ -s /lab/output/{self.first.processes.index(process):04}.out ]]; "
                       "do sleep 0.1; done")
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(10), 3)
        self.assertEqual(process.output(), "ready\ncaught\n")

    def test_leftovers_are_seen_and_cleaned(self):
        self.first.run("setsid sleep 1000 & touch /dev/shm/forgotten")
        left = self.first.leftovers()
        self.assertTrue(any("sleep 1000" in one for one in left), left)
        self.assertIn("/dev/shm/forgotten", left)
        self.first.clean()
        self.assertEqual(self.first.leftovers(), [])

    def test_a_pulled_cable_takes_the_port_down(self):
        state = "rdma link show rxe0/1; ip -brief link show eth0"
        waited = "until [[ $(rdma link show rxe0/1) == *state\\ {}* ]]; do sleep 0.1; done"
        self.first.plug(False)
        try:
            self.first.run(waited.format("DOWN"), timeout=20)
            self.assertIn("NO-CARRIER", self.first.run(state).output)
        finally:
            self.first.plug(True)
        self.first.run(waited.format("ACTIVE"), timeout=20)
        self.first.run(f"ping -c 1 -W 5 {self.second.address}")

    def test_a_frozen_guest_goes_on_later(self):
        process = self.first.start("sleep 0.5")
        self.first.freeze(True)
        self.second.run(f"! ping -c 1 -W 1 {self.first.address}")
        self.assertIsNone(process.poll())
        self.first.freeze(False)
        self.assertEqual(process.wait(20), 0)
        self.second.run(f"ping -c 1 -W 5 {self.first.address}")

    def test_a_hard_power_off_is_seen_and_a_reboot_is_a_fresh_host(self):
        self.second.run("touch /tmp/here")
        (self.second.shared / "kept").touch()
        process = self.second.start("sleep 1000")
        old = self.second.run("cat /proc/sys/kernel/random/boot_id").output
        self.second.power_off_hard()
        self.assertFalse(self.second.running)
        with self.assertRaises(GuestDied):
            process.wait(5)
        with self.assertRaises(GuestDied):
            self.second.run("true")
        self.first.run(f"! ping -c 1 -W 1 {self.second.address}")
        self.second.reboot()
        self.assertNotEqual(self.second.run("cat /proc/sys/kernel/random/boot_id").output, old)
        self.second.run("[[ ! -e /tmp/here && -e /lab/shared/kept ]]")
        self.second.run(f"ping -c 1 -W 5 {self.first.address} && rdma link show rxe0/1")

    def test_a_crash_of_the_guest_is_seen(self):
        with self.assertRaisesRegex(GuestDied, "sysrq triggered crash"):
            self.second.run("echo c >/proc/sysrq-trigger", timeout=20)


def qemus_of(directory):
    """Returns the QEMUs that use a directory of a lab."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_text(errors="replace")
            except OSError:
                continue
            if "qemu" in command and f"{directory}/" in command:
                found.append(int(entry.name))
    return found


class ThreeGuests(LabTestCase):
    guests = 3
    jvm_safe = True

    def test_all_reach_each_other(self):
        for guest in self.lab.guests:
            for other in self.lab.guests:
                guest.run(f"ping -c 1 -W 5 {other.address}")

    @unittest.skipIf("SIDESTEP_LAB_ACCEL" in os.environ, "another accelerator was asked for")
    def test_each_guest_stays_on_one_processor(self):
        for guest in self.lab.guests:
            qemu, = qemus_of(guest.shared.parent.parent)
            self.assertEqual(len(os.sched_getaffinity(qemu)), 1)

    def test_java_runs(self):
        self.assertIn("openjdk", self.lab.guests[0].run("java -version").output)


class Ends(unittest.TestCase):
    """However the lab ends, nothing of it is left."""

    PROGRAM = textwrap.dedent("""
        import sys, time
        from lab import Lab
        with Lab(guests=1) as lab:
            print(lab._directory, flush=True)
            time.sleep(1000)
    """)

    def setUp(self):
        Lab.require()

    def test_the_death_of_the_test_is_the_death_of_its_guests(self):
        with subprocess.Popen([sys.executable, "-c", self.PROGRAM], stdout=subprocess.PIPE,
                              text=True, env=os.environ | {"PYTHONPATH": str(HERE)}) as test:
            try:
                directory = test.stdout.readline().strip()
                self.assertEqual(len(qemus_of(directory)), 1)
            finally:
                test.kill()
        deadline = time.monotonic() + 5
        while qemus_of(directory) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(qemus_of(directory), [])
        subprocess.run(["rm", "-r", directory], check=True)

    def test_a_boot_that_takes_too_long_is_an_error_and_leaves_nothing(self):
        lab = Lab(guests=1, boot_timeout=0.5)
        directory = lab.guests[0].shared.parent.parent.parent
        self.assertTrue(directory.exists())
        with self.assertRaisesRegex(LabError, "has not booted in time"):
            with lab:
                self.fail("has booted")
        self.assertFalse(directory.exists())
        self.assertEqual(qemus_of(str(directory)), [])

    def test_a_lab_that_was_not_prepared_skips_unless_it_is_required(self):
        environment = {"SIDESTEP_LAB_DIR": "/nowhere", "SIDESTEP_LAB": "", "CI": ""}
        with mock.patch.dict(os.environ, environment):
            self.assertIn("has not been prepared", Lab.unavailable())
            with self.assertRaisesRegex(unittest.SkipTest, "tests/lab/prepare"):
                Lab.require()
            for name, value in (("CI", "true"), ("SIDESTEP_LAB", "required")):
                with mock.patch.dict(os.environ, {name: value}):
                    with self.assertRaisesRegex(LabError, "tests/lab/prepare"):
                        Lab.require()


if __name__ == "__main__":
    lab_case.main()

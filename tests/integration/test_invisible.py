#!/usr/bin/env python3
"""The library's threads, and the files that it has open, are invisible to the program.

That holds for the end of the process, for what it shares and may do, for sandboxes, for copies of it made in
any way, and for the files that it has at its usual descriptor numbers.
"""

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase, build_dir

RIGHTS = ("unshare_files", "unshare_by_number", "close_range", "unshare_user", "join_user", "capabilities",
          "bounding_set", "no_new_privileges", "no_filter", "users_by_libc", "users_by_number", "landlock", "filter",
          "strict", "nice")
BESIDE = ("capabilities", "unshare_network")
ENDS = ("pthread_exit", "killed_thread", "killed_threads", "exit_by_number", "exit_group", "quick_exit",
        "execve_by_number")


class Invisible(SidestepTestCase):
    def run_program(self, mode, name, *arguments, env=None):
        program = self.start(name, [build_dir() / "programs" / name, *arguments], mode.both, env=env)
        program.wait(60)
        return program

    def compare(self, name, *arguments, on_engine=True):
        kernel = self.run_program(KERNEL, name, *arguments).stdout
        program = self.run_program(BOTH, name, *arguments)
        self.assertEqual(program.stdout, kernel)
        if on_engine:
            self.assertGreater(program.engine_bytes("tx"), 0)
        return program

    def test_rights_that_are_given_away_are_nobodys(self):
        for way in RIGHTS:
            with self.part(way=way):
                self.compare("rights", way)

    def test_threads_that_are_inside_calls_go_on(self):
        for way in BESIDE:
            for call in ("recv", "poll", "epoll", "select"):
                with self.part(way=way, call=call):
                    self.compare("rights", way, call)

    def test_no_engine_starts_in_a_sandbox(self):
        with self.part():
            self.compare("rights", "accept_in_filter", on_engine=False)

    def test_a_process_ends_when_its_own_threads_have_ended(self):
        for way in ENDS:
            with self.part(way=way):
                self.compare("last_things", way)

    def test_a_process_shares_its_memory_or_its_descriptors_with_another(self):
        for way in ("memory", "descriptors", "memory_and_descriptors"):
            with self.part(way=way):
                self.compare("last_things", way)

    def test_a_copy_of_a_process_past_the_library_loses_its_streams_and_no_more(self):
        for way in ("copy", "copy_of_memory"):
            with self.part(way=way, mode=KERNEL.name):
                lines = self.run_program(KERNEL, "last_things", way).stdout.splitlines()
                self.assertEqual(lines, ["copy: written", "copy: read", "copy: its own stream: end",
                                         "child: code 0 signal 0", "stream: works", "parent sees: end",
                                         "child: code 0 signal 0"])
            # The engine goes on in the parent, because nobody could tell which process wrote first.
            with self.part(way=way, mode=BOTH.name):
                program = self.run_program(BOTH, "last_things", way)
                first, second, *others = program.stdout.splitlines()
                self.assertEqual((first, second, others), ("copy: ECONNRESET", "copy: end", lines[2:]))
                self.assertIn("copied past the library", (program.directory / "sidestep.log").read_text())

    def test_a_copy_of_a_process_whose_engine_has_just_started_changes_its_groups(self):
        for _ in range(5):
            with self.part():
                self.compare("last_things", "raw_child", on_engine=False)

    def test_the_log_is_not_written_into_a_file_of_the_program(self):
        for mode in (KERNEL, BOTH):
            with self.part(mode=mode.name):
                data = self.directory / "data"
                self.run_program(mode, "last_things", "log", data,
                                 env={"SIDESTEP_LOG_FILE": "", "SIDESTEP_LOG_LEVEL": "debug"})
                self.assertEqual(data.read_bytes(), b"record")

    def test_the_document_of_statistics_is_not_written_through_a_link(self):
        with self.part():
            stats, other = self.directory / "stats.json", self.directory / "other"
            other.write_text("somebody's")
            stats.symlink_to(other)
            self.run_program(BOTH, "last_things", "link", stats, other, env={"SIDESTEP_STATS_FILE": str(stats)})
            self.assertEqual(other.read_text(), "somebody's")
            self.assertIn('"streams"', stats.read_text())
            self.assertFalse(stats.is_symlink())
            self.assertEqual({p.name for p in self.directory.glob("stats*")}, {"stats.json"})


if __name__ == "__main__":
    sidestep_harness.main()

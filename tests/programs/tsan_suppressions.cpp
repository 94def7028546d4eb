// What ThreadSanitizer can't know in a program with the shim in it: the library closes descriptors,
// and gets them from its peers, by system calls of its own. A number that another thread has had
// looks to ThreadSanitizer as if it were still that thread's.
extern "C" const char* __tsan_default_suppressions() {
  return "race:^sidestep::engine::shm::Region::map(\n"
         "race:^sidestep::engine::Directory::map_file(\n";
}

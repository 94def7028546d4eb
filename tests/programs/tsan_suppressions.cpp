// Tells ThreadSanitizer what it can't know about a program with the shim in it: the library closes
// descriptors, and gets them from its peers, by its own system calls. To ThreadSanitizer, a
// descriptor number that another thread once had still seems to belong to that thread.
extern "C" const char* __tsan_default_suppressions() {
  return "race:^sidestep::engine::shm::Region::map(\n"
         "race:^sidestep::engine::Directory::map_file(\n";
}

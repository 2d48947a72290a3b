// SPDX-License-Identifier: MIT
// A library whose constructor opens a device's file before the preload's own constructors ran. It
// leaves what it read in the environment, for the program to see.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace {

[[gnu::constructor(101)]] void read_early() {
  char text[32] = "";
  const int file = open("/sys/class/infiniband/vrb_test0/node_type", O_RDONLY);
  const ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  setenv("EARLY_READ", length > 0 ? text : "nothing", 1);
}

}  // namespace

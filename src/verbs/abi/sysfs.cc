// SPDX-License-Identifier: MIT
// The readers of sysfs that other libraries borrow: Open MPI asks for the path, drivers read their
// device's files.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/unique_fd.h"
#include "verbs/abi/entry.h"

namespace {

// Where sysfs is mounted: SYSFS_PATH without slashes at the end (not in set-uid programs), else
// /sys.
class SysfsPath {
 public:
  SysfsPath() {
    const char* asked = secure_getenv("SYSFS_PATH");
    std::size_t length = asked ? std::strlen(asked) : 0;
    if (length >= sizeof(text_)) length = 0;
    while (length > 0 && asked[length - 1] == '/')
      --length;
    if (length > 0) {
      std::memcpy(text_, asked, length);
    } else {
      std::memcpy(text_, "/sys", 4);
    }
  }
  const char* text() const { return text_; }

 private:
  char text_[IBV_SYSFS_PATH_MAX] = {};
};

}  // namespace

const char* ibv_get_sysfs_path() {
  static const SysfsPath path;
  return path.text();
}

// The content of directory/file without its last newline. Returns the length, or -1 where the file
// cannot be read or the buffer has no room for the content and a zero.
int ibv_read_sysfs_file(const char* directory, const char* file, char* buffer, std::size_t size) {
  char path[2 * IBV_SYSFS_PATH_MAX];
  const int wanted = std::snprintf(path, sizeof(path), "%s/%s", directory, file);
  if (wanted < 0 || static_cast<std::size_t>(wanted) >= sizeof(path)) {
    errno = ENAMETOOLONG;
    return -1;
  }
  const verbena::UniqueFd opened(::open(path, O_RDONLY | O_CLOEXEC));
  if (opened.get() < 0) return -1;
  ssize_t length = 0;
  do {
    length = ::read(opened.get(), buffer, size);
  } while (length < 0 && errno == EINTR);
  if (length <= 0) return static_cast<int>(length);

  if (buffer[length - 1] == '\n') {
    buffer[--length] = '\0';
  } else if (static_cast<std::size_t>(length) < size) {
    buffer[length] = '\0';
  } else {
    errno = EOVERFLOW;
    return -1;
  }
  return static_cast<int>(length);
}

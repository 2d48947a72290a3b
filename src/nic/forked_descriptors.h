// SPDX-License-Identifier: MIT
// Sockets of the reuseport group in the program's descriptor table. A forked child that lived on
// with copies of them would keep their places in the group when all members are gone, and packets
// for newcomers would go there. So they are closed in children, right after fork.
#pragma once

namespace verbena::nic {

// From now on, for good. A number that means another file by then is left alone.
void close_in_children(int fd);

}  // namespace verbena::nic

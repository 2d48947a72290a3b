// SPDX-License-Identifier: MIT
#include "cli/settings.h"

namespace verbena::cli {
namespace {

constexpr Setting kSettings[] = {
    {"VERBENA_LOG", "none", "What to say on standard error: none, error, warn, info or debug",
     "--log", "LEVEL", false},
    {"VERBENA_DEVICES", "all but those of containers and those without an address",
     "Which network interfaces make devices, as names or "
     "patterns separated by commas, or \"all\"",
     "--devices", "LIST", false},
    {"VERBENA_PATH", "auto",
     "how processes of this host reach each other. ring: everything is executed by the target, as "
     "a test of that path; wire: by RoCEv2, as other hosts; auto: by the initiator where it can",
     "--path", "PATH", false},
    {"VERBENA_ADOPT", "auto",
     "never: registered private memory stays private, and peers copy it by system calls; auto: "
     "small regions become memory that peers map",
     "--adopt", "WHEN", false},
    {"VERBENA_AGREE", "auto",
     "never: reliable connections by the wire do not ask whether the peer is Verbena; auto: they "
     "do, in reserved bits that others ignore, and then repeat only what is lost, and take "
     "acknowledgements along",
     "--agree", "WHEN", false},
    {"VERBENA_CONNECT_SECONDS", "300",
     "how long rdma_connect waits for an answer, however often the peer asks for time", nullptr,
     nullptr, false},
    {"VERBENA_FAULT", "a good line",
     "A bad line between this process and the wire, in both directions or in one: "
     "drop=1%,duplicate=1%,corrupt=0.1%,reorder=1%,reorder_by=50us,delay=2ms,jitter=1ms,"
     "rate=100Mbit,queue=64KiB,seed=7; in.drop=1% for what comes only, out.drop=1% for what "
     "leaves; "
     "full=1%: the socket has no room for what leaves",
     "--fault", "FAULTS", false},
    {"VERBENA_CAPTURE", "(nothing is recorded)",
     "File to record what goes over the wire, for Wireshark (pcapng); %p becomes the process id. "
     "It must not exist; recording ends at 1 GiB",
     "--capture", "FILE", false},
    {"VERBENA_SYSFS", "(set by verbena run)",
     "Folder with the device files that programs find below /sys/class/infiniband", nullptr,
     nullptr, true},
    {"SYSFS_PATH", "/sys", "Where libibverbs says that sysfs is mounted (as rdma-core's does)",
     nullptr, nullptr, false},
};

}  // namespace

std::span<const Setting> settings() { return kSettings; }

}  // namespace verbena::cli

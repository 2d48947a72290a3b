// SPDX-License-Identifier: MIT
#include "cli/settings.h"

namespace verbena::cli {
namespace {

constexpr Setting kSettings[] = {
    {"VERBENA_LOG", "none", "What to say on standard error: none, error, warn, info or debug",
     "--log", "LEVEL", false},
    {"VERBENA_SYSFS", "(set by verbena run)",
     "Folder with the device files that programs find below /sys/class/infiniband", nullptr,
     nullptr, true},
    {"SYSFS_PATH", "/sys", "Where libibverbs says that sysfs is mounted (as rdma-core's does)",
     nullptr, nullptr, false},
};

}  // namespace

std::span<const Setting> settings() { return kSettings; }

}  // namespace verbena::cli

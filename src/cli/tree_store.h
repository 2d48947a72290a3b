// SPDX-License-Identifier: MIT
// Where the tree of device files lies: a folder that programs started with the same devices share.
//
//   ${XDG_RUNTIME_DIR:-/tmp}/verbena-<uid>/<network namespace>-<hash of the content>/
//
// A tree is made under another name and renamed, so it is complete whenever it can be seen. The
// folder above belongs to the user alone (0700): in /tmp anybody can have put something there
// before, so its owner, kind and mode are checked, and nothing is done through a link.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/device_tree.h"

namespace verbena::cli {

// The folders to try, the best first, for this user and environment.
std::vector<std::string> tree_bases();

// The path of the tree with these entries, made where it is not there yet; or why there is none.
Result<std::string, std::string> store_tree(const std::string& base,
                                            std::span<const TreeEntry> entries);

// As many trees as are kept; the ones that were used longest ago go first.
inline constexpr std::size_t kTreesMax = 64;

}  // namespace verbena::cli

// SPDX-License-Identifier: MIT
// A table for people: columns as wide as what is in them, nothing behind the last.
#pragma once

#include <string>
#include <vector>

namespace verbena::cli {

using Row = std::vector<std::string>;

// One line a row, the cells of a column below each other.
std::string aligned(const std::vector<Row>& rows);

}  // namespace verbena::cli

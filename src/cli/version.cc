// SPDX-License-Identifier: MIT
// `verbena version`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace verbena::cli {
namespace {

class Version final : public Command {
 public:
  int run(const std::vector<std::string>&) override {
    fmt::print("verbena {}\n", VERBENA_VERSION);
    return 0;
  }
};

}  // namespace

std::unique_ptr<Command> add_version(CLI::App&) { return std::make_unique<Version>(); }

}  // namespace verbena::cli

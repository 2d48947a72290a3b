// SPDX-License-Identifier: MIT
// `verbena env`: what `verbena run` sets, as shell commands.
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "cli/launch.h"

namespace verbena::cli {
namespace {

// For a POSIX shell: nothing is special between single quotes but themselves.
std::string quoted(const std::string& value) {
  std::string text = "'";
  for (const char c : value) {
    if (c == '\'') {
      text += "'\\''";
    } else {
      text += c;
    }
  }
  return text + "'";
}

class Env final : public Command {
 public:
  int run(const std::vector<std::string>&) override;
};

int Env::run(const std::vector<std::string>&) {
  const Result<LaunchEnvironment, std::string> environment = launch_environment();
  if (!environment) {
    fmt::print(stderr, "verbena: {}\n", environment.error());
    return 1;
  }
  if (!environment->warning.empty()) fmt::print(stderr, "verbena: {}\n", environment->warning);
  for (const auto& [name, value] : environment->variables) {
    fmt::print("export {}={}\n", name, quoted(value));
  }
  return 0;
}

}  // namespace

std::unique_ptr<Command> add_env(CLI::App& app) {
  app.footer("Example: eval \"$(verbena env)\"   and this shell's programs use the software NIC");
  return std::make_unique<Env>();
}

}  // namespace verbena::cli

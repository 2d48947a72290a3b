// SPDX-License-Identifier: MIT
// `verbena`: looks up the subcommand and runs it.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace {

struct Entry {
  const char* name;
  const char* summary;
  std::unique_ptr<verbena::cli::Command> (*add)(CLI::App&);
};

constexpr Entry kCommands[] = {
    {"run", "Run an RDMA program on the software NIC", verbena::cli::add_run},
    {"ls", "List the devices that programs see", verbena::cli::add_ls},
    {"demo", "Watch a server write into the memory of a client", verbena::cli::add_demo},
    {"env", "Print what `run` sets, for a shell", verbena::cli::add_env},
    {"config", "List the environment variables that Verbena reads", verbena::cli::add_config},
    {"version", "Print the version", verbena::cli::add_version},
};

int run(int argc, char** argv) {
  CLI::App app("Verbena, an RDMA NIC made of software: RDMA programs run on any Linux machine.",
               "verbena");
  app.require_subcommand(1);
  app.set_version_flag("--version", "verbena " VERBENA_VERSION, "Print the version");
  app.footer("verbena COMMAND --help says more.  Try: verbena run -- ibv_devinfo");
  app.failure_message(CLI::FailureMessage::simple);

  std::vector<std::pair<CLI::App*, std::unique_ptr<verbena::cli::Command>>> commands;
  for (const Entry& entry : kCommands) {
    CLI::App* options = app.add_subcommand(entry.name, entry.summary);
    commands.emplace_back(options, entry.add(*options));
  }
  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return 2;
  }
  std::vector<std::string> words(argv + 1, argv + argc);
  const std::vector<std::string> program = verbena::cli::take_program(words);
  try {
    std::reverse(words.begin(), words.end());  // so CLI11 wants them
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    // Help was asked for and is no failure. A wrong use is 2, as with most programs, but `run`
    // keeps clear of what its program may return, as env(1) does.
    const bool is_run = argc > 1 && std::string_view(argv[1]) == "run";
    return app.exit(error) == 0 ? 0 : is_run ? 125 : 2;
  }
  for (const auto& [options, command] : commands) {
    if (options->parsed()) return command->run(program);
  }
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "verbena: %s\n", error.what());
    return 1;
  }
}

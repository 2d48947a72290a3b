// SPDX-License-Identifier: MIT
// The subcommands of `verbena`. Each has a file of its own: its add_ function declares the options
// and hands back the command, which holds their values.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 has it so
class App;
}

namespace verbena::cli {

class Command {
 public:
  Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  virtual ~Command() = default;
  // Once the options are parsed. `program` is what follows the options of `verbena run`, and empty
  // for the others. Returns the exit status of `verbena`.
  virtual int run(const std::vector<std::string>& program) = 0;
};

std::unique_ptr<Command> add_run(CLI::App& app);
std::unique_ptr<Command> add_ls(CLI::App& app);
std::unique_ptr<Command> add_demo(CLI::App& app);
std::unique_ptr<Command> add_env(CLI::App& app);
std::unique_ptr<Command> add_config(CLI::App& app);
std::unique_ptr<Command> add_version(CLI::App& app);

// Takes the program and its arguments off a command line `verbena run [OPTIONS] [--] PROGRAM ...`,
// so that they come through as they are. `words` starts with "run".
std::vector<std::string> take_program(std::vector<std::string>& words);

}  // namespace verbena::cli

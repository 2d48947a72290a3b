// SPDX-License-Identifier: MIT
// `verbena run`: prepares the environment, then becomes the program. Standard input, signals and
// the exit status are the program's own from then on.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "cli/launch.h"
#include "cli/settings.h"

namespace verbena::cli {
namespace {

// As env(1) has them.
constexpr int kFailed = 125;
constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;

int become(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  fmt::print(stderr, "verbena: cannot run '{}': {}\n", words[0], std::strerror(error));
  return error == ENOENT ? kNotFound : kCannotRun;
}

bool takes_value(const std::string& word) {
  return std::ranges::any_of(settings(), [&word](const Setting& setting) {
    return setting.option && word == setting.option;
  });
}

// CLI11 knows nothing of the program that follows the options.
std::string help_text(const CLI::App* app, std::string name, CLI::AppFormatMode mode) {
  std::string text = CLI::Formatter().make_help(app, std::move(name), mode);
  const std::string options = "[OPTIONS]";
  const std::size_t at = text.find(options);
  if (at != std::string::npos) text.replace(at, options.size(), "[OPTIONS] [--] PROGRAM [ARGS...]");
  return text;
}

class Run final : public Command {
 public:
  explicit Run(CLI::App& app) {
    for (const Setting& setting : settings()) {
      if (!setting.option) continue;
      app.add_option(setting.option, chosen_[setting.variable], setting.help)
          ->option_text(fmt::format("{} (sets {})", setting.value, setting.variable));
    }
  }
  int run(const std::vector<std::string>& program) override;

 private:
  std::map<std::string, std::string> chosen_;  // by variable
};

int Run::run(const std::vector<std::string>& program) {
  if (program.empty()) {
    fmt::print(stderr, "verbena: which program? For example: verbena run -- ibv_devinfo\n");
    return kFailed;
  }
  for (const auto& [variable, value] : chosen_) {
    if (!value.empty()) setenv(variable.c_str(), value.c_str(), 1);
  }
  const Result<LaunchEnvironment, std::string> environment = launch_environment();
  if (!environment) {
    fmt::print(stderr, "verbena: {}\n", environment.error());
    return kFailed;
  }
  const char* log = std::getenv("VERBENA_LOG");
  const bool is_silent = log && std::string_view(log) == "none";
  if (!environment->warning.empty() && !is_silent) {
    fmt::print(stderr, "verbena: {}\n", environment->warning);
  }
  apply(*environment);
  return become(program);
}

}  // namespace

std::vector<std::string> take_program(std::vector<std::string>& words) {
  if (words.empty() || words[0] != "run") return {};
  std::size_t first = 1;
  while (first < words.size() && words[first].starts_with("-") && words[first] != "--") {
    first += takes_value(words[first]) ? 2 : 1;
  }
  const std::size_t end_of_options = std::min(first, words.size());
  if (first < words.size() && words[first] == "--") ++first;
  std::vector<std::string> program;
  if (first < words.size()) program.assign(words.begin() + static_cast<long>(first), words.end());
  words.resize(end_of_options);
  return program;
}

std::unique_ptr<Command> add_run(CLI::App& app) {
  app.footer(
      "The program finds Verbena's libibverbs instead of the system's, and the files of its "
      "devices\n"
      "below /sys/class/infiniband. Nothing is installed, and no other program notices. What the\n"
      "program starts inherits it.\n\n"
      "Examples:\n"
      "  verbena run -- ibv_devinfo -v\n"
      "  verbena run -- ib_write_bw -F &  verbena run -- ib_write_bw -F localhost\n"
      "  verbena run -- bash        everything that is started from there\n\n"
      "The exit status is the program's; 127: not found, 126: cannot be run, 125: anything else.");
  app.formatter_fn(help_text);
  return std::make_unique<Run>(app);
}

}  // namespace verbena::cli

// SPDX-License-Identifier: MIT
// `verbena config`: every environment variable, what holds without it, and what it does.
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/settings.h"
#include "cli/table.h"

namespace verbena::cli {
namespace {

class Config final : public Command {
 public:
  explicit Config(CLI::App& app) { app.add_flag("--json", as_json_, "Print them as JSON"); }

  int run(const std::vector<std::string>&) override {
    if (as_json_) {
      print_json();
    } else {
      print_text();
    }
    return 0;
  }

 private:
  static void print_json() {
    nlohmann::json list = nlohmann::json::array();
    for (const Setting& setting : settings()) {
      const char* value = std::getenv(setting.variable);
      list.push_back({{"variable", setting.variable},
                      {"default", setting.fallback},
                      {"value", value ? nlohmann::json(value) : nlohmann::json()},
                      {"help", setting.help},
                      {"option", setting.option ? nlohmann::json(setting.option) : nullptr}});
    }
    fmt::print("{}\n", nlohmann::json{{"settings", list}}.dump(2));
  }

  static void print_text() {
    for (const Setting& setting : settings()) {
      const char* value = std::getenv(setting.variable);
      fmt::print(
          "{}\n  {}.\n  Default: {}{}\n", setting.variable, setting.help, setting.fallback,
          setting.option ? fmt::format("; verbena run {} {}", setting.option, setting.value) : "");
      if (value) fmt::print("  Set here to: {}\n", value);
      fmt::print("\n");
    }
  }

  bool as_json_ = false;
};

}  // namespace

std::unique_ptr<Command> add_config(CLI::App& app) { return std::make_unique<Config>(app); }

}  // namespace verbena::cli

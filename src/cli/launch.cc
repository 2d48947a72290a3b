// SPDX-License-Identifier: MIT
#include "cli/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cli/device_tree.h"
#include "cli/tree_store.h"
#include "nic/device.h"

namespace verbena::cli {
namespace {

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> entries;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(':'), list.size());
    entries.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return entries;
}

std::string joined(const std::vector<std::string>& entries) {
  return fmt::format("{}", fmt::join(entries, ":"));
}

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

Result<std::string, std::string> make_tree_of_devices() {
  const std::vector<nic::Device> devices = nic::devices();
  std::vector<Locality> near;
  for (const nic::Device& device : devices)
    near.push_back(locality_of(device.interface));
  const std::vector<TreeEntry> entries = describe_tree(devices, near);
  std::string reasons;
  for (const std::string& base : tree_bases()) {
    Result<std::string, std::string> tree = store_tree(base, entries);
    if (tree) return tree;
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", tree.error());
  }
  return refuse(reasons);
}

}  // namespace

Result<std::string, std::string> library_folder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return refuse("cannot find my own place: " + error.message());
  const std::filesystem::path here = self.parent_path();
  for (const char* way : {"../lib", VERBENA_LIBDIR_FROM_BINDIR}) {
    const std::filesystem::path folder = (here / way).lexically_normal();
    if (std::filesystem::exists(folder / kPreloadName, error)) return folder.string();
  }
  return refuse(fmt::format("{} is neither in {} nor in {}: is the build complete?", kPreloadName,
                            (here / "../lib").lexically_normal().string(),
                            (here / VERBENA_LIBDIR_FROM_BINDIR).lexically_normal().string()));
}

std::string with_front(std::string_view list, const std::string& entry) {
  std::vector<std::string> entries = split(list);
  std::erase(entries, entry);
  entries.insert(entries.begin(), entry);
  return joined(entries);
}

std::string with_end(std::string_view list, const std::string& entry) {
  std::vector<std::string> entries = split(list);
  std::erase(entries, entry);
  entries.push_back(entry);
  return joined(entries);
}

Result<LaunchEnvironment, std::string> launch_environment() {
  const Result<std::string, std::string> folder = library_folder();
  if (!folder) return refuse(folder.error());
  if (folder->find_first_of(":;") != std::string::npos) {
    return refuse(fmt::format(
        "the loader cannot find libraries in {}, because of the ':' or ';' in its name", *folder));
  }
  LaunchEnvironment result;
  // An empty entry means the current folder to the loader, and did so before.
  result.variables.emplace_back("LD_LIBRARY_PATH",
                                with_front(value_of("LD_LIBRARY_PATH"), *folder));
  // Others' preloads (a sanitizer's) must come first. The loader splits the list at blanks as well;
  // a name without a folder is looked up along LD_LIBRARY_PATH.
  const bool has_blank = folder->find_first_of(" \t") != std::string::npos;
  const std::string preload = has_blank ? kPreloadName : *folder + "/" + kPreloadName;
  result.variables.emplace_back("LD_PRELOAD", with_end(value_of("LD_PRELOAD"), preload));
  const Result<std::string, std::string> tree = make_tree_of_devices();
  if (tree) {
    result.variables.emplace_back("VERBENA_SYSFS", *tree);
  } else {
    result.warning = fmt::format(
        "no place for the files of the devices, so programs that look below /sys/class/infiniband "
        "find none ({})",
        tree.error());
  }
  return result;
}

void apply(const LaunchEnvironment& environment) {
  for (const auto& [name, value] : environment.variables)
    setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace verbena::cli

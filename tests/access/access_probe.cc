// SPDX-License-Identifier: MIT
// access_probe SCENE [ARGUMENT]: ends with 0, or prints why not. The scenes are in the other files.
#include <cstdio>
#include <string_view>

#include "traffic.h"

int main(int argc, char** argv) {
  using namespace access_test;
  const std::string_view scene = argc > 1 ? argv[1] : "";
  const char* const argument = argc > 2 ? argv[2] : "";
  if (scene == "takings") {
    takings(argument);
  } else if (scene == "held") {
    held(argument);
  } else if (scene == "many-regions") {
    many_regions();
  } else if (scene == "bystander") {
    bystander();
  } else if (scene == "serves") {
    serves();
  } else if (scene == "taken-back") {
    taken_back();
  } else if (scene == "last-words") {
    last_words();
  } else if (scene == "death") {
    death_behind_messages();
  } else if (scene == "registered-anew") {
    registered_anew();
  } else if (scene == "taken-beside") {
    taken_beside();
  } else if (scene == "key-zero") {
    key_zero();
  } else {
    std::fprintf(stderr, "no such scene\n");
    return 2;
  }
  return 0;
}

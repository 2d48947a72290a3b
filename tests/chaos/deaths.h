// SPDX-License-Identifier: MIT
// The ways in which a process ends by itself, and what its children do.
#pragma once

#include <infiniband/verbs.h>

#include <string_view>

namespace chaos {

// What a child finds inherited.
struct Inherited {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_qp* qp = nullptr;  // may be none
  ibv_cq* cq = nullptr;
};

// Ends this process: exit, quick (_exit), abort, segv, exec (something else that lives on), fork
// (the child lives on).
[[noreturn]] void die(std::string_view how, const Inherited& inherited, int driver);
// A child that tries what it inherited, lives on for a while and ends; this process goes on.
void have_a_child(const Inherited& inherited, int driver);

}  // namespace chaos

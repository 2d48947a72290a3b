// SPDX-License-Identifier: MIT
#include "plan.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/random.h"
#include "roce/agreement.h"

namespace verbena::fabric {
namespace {

constexpr std::array kKnobs{
    Knob{"nodes", &Plan::nodes, 2},
    Knob{"connections", &Plan::connections, 1},
    Knob{"operations", &Plan::operations, 1},
    Knob{"size_max", &Plan::size_max, 64},
    Knob{"service", &Plan::service, kReliable, false},
    Knob{"lives", &Plan::lives, 1},
    Knob{"managed", &Plan::managed, 0},
    Knob{"thinking_us", &Plan::thinking_us, 0},
    Knob{"rejects", &Plan::rejects, 0},
    Knob{"path_mtu", &Plan::path_mtu, 256, false},
    Knob{"ipv6", &Plan::ipv6, 0},
    Knob{"partition_key", &Plan::partition_key, 0x7FFF, false},
    Knob{"packets_in_flight", &Plan::packets_in_flight, 64},
    Knob{"kib_in_flight", &Plan::kib_in_flight, 64, false},
    Knob{"reads_max", &Plan::reads_max, 4},
    Knob{"reorder_packets", &Plan::reorder_packets, 0, false},
    Knob{"reorder_patience_us", &Plan::reorder_patience_us, 0},
    Knob{"agreeing", &Plan::agreeing, kNobodyAsks, false},
    Knob{"psn_wraps", &Plan::psn_wraps, 0},
    Knob{"unsignaled", &Plan::unsignaled, 0},
    Knob{"fences", &Plan::fences, 0},
    Knob{"shared_receives", &Plan::shared_receives, 0},
    Knob{"retry_count", &Plan::retry_count, 7},
    Knob{"rnr_retry", &Plan::rnr_retry, 7},
    Knob{"dcqcn", &Plan::dcqcn, 0},
    Knob{"megabits", &Plan::megabits, 25'000},
    Knob{"delay_ns", &Plan::delay_ns, 2'000},
    Knob{"queue_kib", &Plan::queue_kib, 1024},
    Knob{"loss", &Plan::loss, 0},
    Knob{"duplicate", &Plan::duplicate, 0},
    Knob{"reorder", &Plan::reorder, 0},
    Knob{"reorder_us", &Plan::reorder_us, 5},
    Knob{"corrupt", &Plan::corrupt, 0},
    Knob{"truncate", &Plan::truncate, 0},
    Knob{"mark", &Plan::mark, 0},
    Knob{"partition_us", &Plan::partition_us, 0},
    Knob{"pause_us", &Plan::pause_us, 0},
    Knob{"crashes", &Plan::crashes, 0},
    Knob{"restarts", &Plan::restarts, 0},
    Knob{"jump_us", &Plan::jump_us, 0},
    Knob{"receiver_storm", &Plan::receiver_storm, 0},
    Knob{"bad_requests", &Plan::bad_requests, 0},
    Knob{"revokes", &Plan::revokes, 0},
    Knob{"completions", &Plan::completions, 8192, false},
    Knob{"scarce_memory", &Plan::scarce_memory, 0},
    Knob{"connection_room", &Plan::connection_room, 65'536, false},
    Knob{"stops", &Plan::stops, 0},
};

std::uint32_t pick(SeededRandom& random, std::uint64_t bound) {
  return static_cast<std::uint32_t>(random.below(bound));
}

void plan_network(SeededRandom& random, Plan& plan) {
  const auto chance = [&](std::uint64_t most) {
    return random.one_in(2) ? 0 : 1 + pick(random, most);
  };
  plan.megabits = random.one_in(4) ? 1'000 : 25'000;
  plan.delay_ns = 500 << pick(random, 6);
  plan.queue_kib = random.one_in(4) ? 16u << pick(random, 4) : 1024;
  plan.loss = chance(6000);
  plan.duplicate = chance(8000);
  plan.reorder = chance(8000);
  plan.reorder_us = 1 + pick(random, 40);
  plan.corrupt = random.one_in(3) ? chance(4000) : 0;
  plan.truncate = random.one_in(3) ? chance(4000) : 0;
  plan.mark = random.one_in(3) ? chance(8000) : 0;
}

void plan_transport(SeededRandom& random, Plan& plan) {
  plan.path_mtu = 256u << pick(random, 5);
  plan.ipv6 = pick(random, 2);
  if (random.one_in(4)) plan.partition_key = 1 + pick(random, 0x7FFE);
  plan.packets_in_flight = 1 + pick(random, 128);
  plan.kib_in_flight = 1u << pick(random, 8);
  plan.reads_max = 1 + pick(random, 8);
  plan.psn_wraps = pick(random, 2);
  plan.unsignaled = pick(random, 2);
  plan.fences = pick(random, 2);
  plan.shared_receives = random.one_in(3) ? 1 : 0;
  plan.dcqcn = random.one_in(4) ? 1 : 0;
  if (random.one_in(3)) {
    plan.reorder_packets = 8u << pick(random, 5);
    plan.reorder_patience_us = pick(random, 30);
  }
  if (random.one_in(2)) {
    plan.agreeing = kOneAsks + pick(random, 3);
    plan.reorder_packets = roce::kAgreedSpan;
    plan.reorder_patience_us = pick(random, 30);
  }
}

// One or two of the things that break connections, and mostly none.
void plan_mischief(SeededRandom& random, Plan& plan) {
  for (unsigned count = pick(random, 3); count > 0; --count) {
    switch (random.below(10)) {
      case 0: plan.partition_us = 100u << pick(random, 9); break;
      case 1: plan.pause_us = 50u << pick(random, 9); break;
      case 2:
        plan.crashes = 1;
        plan.restarts = pick(random, 2);
        break;
      case 3: plan.jump_us = 100u << pick(random, 10); break;
      case 4: plan.receiver_storm = 1; break;
      case 5: plan.bad_requests = 1; break;
      case 6: plan.revokes = 1; break;
      case 7: plan.stops = 1; break;
      case 8: plan.retry_count = pick(random, 8); break;
      default: plan.rnr_retry = pick(random, 8); break;
    }
  }
}

}  // namespace

std::span<const Knob> knobs() { return kKnobs; }

Plan plan_of(std::uint64_t seed) {
  SeededRandom random(seed ^ 0x5EED0F9A17);
  Plan plan;
  const bool is_large = random.one_in(50);
  plan.nodes = is_large ? 8 + pick(random, 57) : 2 + pick(random, 3);
  plan.connections = is_large ? plan.nodes : 1 + pick(random, 3);
  plan.operations = 4 + pick(random, random.one_in(4) ? 40 : 12);
  plan.size_max = random.one_in(4) ? 8192 : 16 + pick(random, 3000);
  const auto service = random.below(10);
  plan.service = service < 5 ? kReliable : kUnreliable + pick(random, 4);
  plan.lives = 1 + pick(random, 2);
  if (random.one_in(3)) {
    plan.managed = 1;
    plan.thinking_us = random.one_in(3) ? 1u << pick(random, 12) : 0;
    plan.rejects = random.one_in(8) ? 1 : 0;
  }
  plan_transport(random, plan);
  plan_network(random, plan);
  plan_mischief(random, plan);
  if (random.one_in(12)) plan.completions = 1 + pick(random, 24);
  plan.scarce_memory = random.one_in(6) ? 1 : 0;
  if (random.one_in(12)) plan.connection_room = 1 + pick(random, 3);
  if (plan.service == kAnyService) plan.shared_receives = 0;
  return plan;
}

bool is_valid(const Plan& plan) {
  // What comes unreliably, and twice, would take the receives that reliable messages wait for.
  if (plan.service == kAnyService && plan.shared_receives) return false;
  return plan.completions >= 1 && plan.connection_room >= 1 && plan.nodes >= 2 &&
         plan.nodes <= 64 && plan.connections >= 1 &&
         (plan.agreeing == kNobodyAsks || plan.reorder_packets >= roce::kAgreedSpan);
}

std::string describe(const Plan& plan) {
  std::string text;
  for (const Knob& knob : kKnobs) {
    if (plan.*knob.member == knob.plain) continue;
    text += text.empty() ? "" : " ";
    text += knob.name;
    text += "=" + std::to_string(plan.*knob.member);
  }
  return text;
}

bool change(std::string_view words, Plan& plan) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos) return false;
    const auto knob = std::ranges::find(kKnobs, word.substr(0, equals), &Knob::name);
    if (knob == kKnobs.end()) return false;
    const std::string_view value = word.substr(equals + 1);
    const auto [end, error] =
        std::from_chars(value.data(), value.data() + value.size(), plan.*knob->member);
    if (error != std::errc() || end != value.data() + value.size()) return false;
  }
  return true;
}

}  // namespace verbena::fabric

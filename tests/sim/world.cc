// SPDX-License-Identifier: MIT
#include "world.h"

namespace verbena::sim {

namespace {

constexpr Duration kFaultyTime = Duration::milliseconds(3);
// In virtual time: long after the last retry of the slowest run.
constexpr Duration kPatience = Duration::seconds(20);
constexpr std::uint32_t kFirstNumber = 0x100;
constexpr std::uint32_t kAmple = 4096;
constexpr std::uint32_t kScarce = 8;

std::uint32_t completions_of(const Plan& plan) {
  return plan.mischief == Mischief::kSmallCompletionQueue ? kScarce : kAmple;
}

}  // namespace

World::World(std::uint64_t seed)
    : random(seed),
      plan(plan_of(random)),
      near(0, random, failures, completions_of(plan)),
      far(1, random, failures, kAmple) {
  for (std::uint32_t number = kFirstNumber; sides_.size() / 2 < plan.connections; number += 2) {
    auto a = std::make_unique<Side>(*this, near, far, QpNum{number});
    auto b = std::make_unique<Side>(*this, far, near, QpNum{number + 1});
    a->connect(*b);
    b->connect(*a);
    sides_.push_back(std::move(a));
    sides_.push_back(std::move(b));
  }
}

Verdict World::run() {
  for (life_ = 0; life_ < plan.lives && !failures.any(); ++life_) {
    if (near.is_dead || far.is_dead || near.overruns + far.overruns > 0) break;
    run_life();
  }
  return {
      .plan = describe(plan), .failure = failures.first(), .trace = trace_, .statuses = statuses_};
}

void World::run_life() {
  faults_end_ = clock.now() + kFaultyTime;
  mischief_done = false;
  for (auto& side : sides_)
    side->begin_life();
  for (auto& side : sides_)
    schedule_program(*side);
  const Instant end = clock.now() + kPatience;
  while (!failures.any() && clock.run_one()) {
    if (clock.now() > end) failures.add("does not finish");
  }
  if (failures.any()) return;
  for (auto& side : sides_)
    side->end_life();
  poll(near);
  poll(far);
  near.compare_memory();
  far.compare_memory();
  for (auto& side : sides_) {
    side->sends().finish();
    side->receives().finish();
    side->to_reset();
  }
  clock.forget_all();
}

void World::schedule_program(Side& side) {
  const auto gap = Duration::nanoseconds(static_cast<std::int64_t>(200 + random.below(40'000)));
  clock.after(gap, [this, &side] {
    side.program();
    side.drive();
    if (!is_finished()) schedule_program(side);
  });
}

bool World::is_finished() const {
  for (const auto& side : sides_)
    if (!side->is_finished()) return false;
  return true;
}

Side* World::find(QpNum number) {
  const std::uint32_t place = number.value - kFirstNumber;
  return place < sides_.size() ? sides_[place].get() : nullptr;
}

void World::transmit(Packet packet) {
  packet.life = life_;
  if (is_faulty() && percent(plan.loss_percent)) return;
  const unsigned copies = is_faulty() && percent(plan.duplicate_percent) ? 2 : 1;
  for (unsigned i = 0; i < copies; ++i) {
    const auto delay = Duration::nanoseconds(
        static_cast<std::int64_t>(500 + random.below(plan.delay_max_us * std::uint64_t{1000})));
    clock.after(delay, [this, packet] { deliver(packet); });
  }
}

void World::deliver(const Packet& packet) {
  Side* side = find(packet.to);
  if (packet.life != life_ || !side || side->is_dead()) return;
  note(packet.to.value ^ (packet.request ? packet.request->index : ~packet.reply.index));
  side->carrier().arrived(packet);
  side->drive();
}

void World::poll(Endpoint& endpoint) {
  if (endpoint.is_dead) return;
  std::array<queues::Completion, 8> some;
  for (queues::CompletionQueue* queue : {&endpoint.sends, &endpoint.receives}) {
    while (const std::size_t count = queue->poll(some)) {
      for (std::size_t i = 0; i < count; ++i) {
        const queues::Completion& completion = some[i];
        note(completion.wr_id ^ static_cast<std::uint64_t>(completion.status) << 32);
        ++statuses_[static_cast<std::size_t>(completion.status)];
        if (Side* side = find(completion.qp))
          side->completed(completion);
        else
          failures.add("a completion of no queue pair");
      }
    }
  }
}

}  // namespace verbena::sim

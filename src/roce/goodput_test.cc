// SPDX-License-Identifier: MIT
// What the engines make of a line that loses, reorders and fills up: the goals of the project, and
// a table of it that is kept in the repository (goodput.txt), so that each change of it is seen.
// `roce_test --gtest_filter='Goodput.*' --update` writes the table anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdarg>
#include <fstream>
#include <iterator>
#include <string>

#include "roce/test_goodput.h"

namespace verbena::roce {
namespace {

constexpr std::array kPathMtus = {4096u, 1024u};
constexpr std::array kLosses = {0u, 100u, 1000u, 5000u};

// The table, line by line, as the tests below fill it.
class Table {
 public:
  [[gnu::format(printf, 2, 3)]] void line(const char* format, ...) {
    std::array<char, 200> text{};
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text.data(), text.size(), format, arguments);
    va_end(arguments);
    text_ += text.data();
    text_ += '\n';
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

double percent(double part) { return part * 100; }

void go_back_n(Table& table) {
  table.line("Go-back-N. WRITEs of 1 MiB; of theory see go_back_n_gigabits() in test_goodput.h.");
  table.line("   mtu  window  loss %%  theory  measured  part %%  repeated %%  probes  timeouts");
  for (const std::uint32_t mtu : kPathMtus) {
    for (const std::uint32_t window : {8u, 32u, 64u, 128u}) {
      for (const std::uint32_t loss : kLosses) {
        const GoodputSetting setting{.path_mtu = mtu, .window = window, .loss = loss};
        const Goodput measured = goodput(setting);
        const double theory = go_back_n_gigabits(setting);
        table.line("%6u  %6u  %6.1f  %6.2f  %8.2f  %6.1f  %10.1f  %6llu  %8llu", mtu, window,
                   loss / 1000.0, theory, measured.gigabits, percent(measured.gigabits / theory),
                   percent(measured.part_repeated()),
                   static_cast<unsigned long long>(measured.probes),
                   static_cast<unsigned long long>(measured.timeouts));
        EXPECT_GE(measured.gigabits, 0.85 * theory) << mtu << " " << window << " " << loss;
        EXPECT_GT(measured.gigabits, 0);
      }
    }
  }
}

void selective_repeat(Table& table, bool delay_control) {
  table.line("\nSelective repeat%s. WRITEs of 1 MiB, window 256.",
             delay_control ? " and delay control" : "");
  table.line("   mtu  loss %%  measured  of lossless %%  repeated %%  probes  timeouts");
  for (const std::uint32_t mtu : kPathMtus) {
    double lossless = 0;
    for (const std::uint32_t loss : kLosses) {
      const Goodput measured = goodput({.path_mtu = mtu,
                                        .window = 256,
                                        .loss = loss,
                                        .selective = true,
                                        .delay_control = delay_control});
      if (loss == 0) lossless = measured.gigabits;
      table.line("%6u  %6.1f  %8.2f  %13.1f  %10.2f  %6llu  %8llu", mtu, loss / 1000.0,
                 measured.gigabits, percent(measured.gigabits / lossless),
                 percent(measured.part_repeated()),
                 static_cast<unsigned long long>(measured.probes),
                 static_cast<unsigned long long>(measured.timeouts));
      const double goal = loss <= 100 ? 0.97 : loss <= 1000 ? 0.90 : 0.20;
      EXPECT_GE(measured.gigabits, goal * lossless) << mtu << " " << loss;
    }
  }
}

void reads(Table& table) {
  table.line("\nREADs of 1 MiB, window 64.");
  table.line("   mtu  loss %%  measured  requests repeated %%");
  for (const std::uint32_t mtu : kPathMtus) {
    for (const std::uint32_t loss : kLosses) {
      const Goodput measured = goodput(
          {.path_mtu = mtu, .window = 64, .loss = loss, .opcode = queues::SendOpcode::kRead});
      table.line("%6u  %6.1f  %8.2f  %19.1f", mtu, loss / 1000.0, measured.gigabits,
                 percent(measured.part_repeated()));
      EXPECT_GT(measured.gigabits, loss > 1000 ? 5 : 12);
    }
  }
}

void reordering(Table& table) {
  table.line("\n1 %% of the packets come 5 us late. Selective repeat, patience 8 us.");
  table.line("   mtu  measured  repeated %%");
  for (const std::uint32_t mtu : kPathMtus) {
    const Goodput measured =
        goodput({.path_mtu = mtu, .window = 256, .reorder = 1000, .selective = true});
    table.line("%6u  %8.2f  %10.3f", mtu, measured.gigabits, percent(measured.part_repeated()));
    EXPECT_LE(measured.part_repeated(), 0.001);
  }
}

void last_packets(Table& table) {
  table.line("\nThe last packet is lost; round trips until the message is complete.");
  table.line("                     after 8 bytes  after 1 MiB");
  const auto row = [&](const char* what, const GoodputSetting& setting, int from, auto lost) {
    std::array<double, 2> trips{};
    for (std::size_t i = 0; i < 2; ++i) {
      const std::uint32_t before = i == 0 ? 8 : kGoodputMessage;
      trips[i] = recovery_round_trips(setting, before, from, lost);
      EXPECT_GT(trips[i], 1) << what;
      EXPECT_LE(trips[i], 3) << what;
    }
    table.line("%-19s  %13.2f  %11.2f", what, trips[0], trips[1]);
  };
  const auto is_last = [](const wire::Packet& p) {
    return p.opcode.code() == wire::Code::kWriteLast;
  };
  row("WRITE, go-back-N", {}, 0, is_last);
  row("WRITE, selective", {.window = 256, .selective = true}, 0, is_last);
  row("acknowledgement", {}, 1,
      [](const wire::Packet& p) { return p.shape->kind == wire::Kind::kAcknowledge; });
  row("READ response", {.opcode = queues::SendOpcode::kRead}, 1,
      [](const wire::Packet& p) { return p.opcode.code() == wire::Code::kReadResponseLast; });
}

void incast(Table& table) {
  table.line("\n16 senders, one receiver behind a queue of 1 MiB; 40 ms from the start.");
  table.line("                              mtu  sum Gb/s  least  Jain   dropped  repeated %%");
  struct Row {
    const char* what;
    IncastSetting setting;
  };
  const std::array rows = {
      Row{"DCQCN, marks", {}},
      Row{"delay control", {.delay_control = true, .marks = false}},
      Row{"delay control, marks", {.delay_control = true}},
      Row{"delay control, 8 come later",
          {.delay_control = true, .marks = false, .first = 8, .most = Duration::milliseconds(100)}},
  };
  for (const Row& row : rows) {
    for (const std::uint32_t mtu : kPathMtus) {
      IncastSetting setting = row.setting;
      setting.path_mtu = mtu;
      const Shares shares = incast_shares(setting);
      table.line("%-27s  %4u  %8.2f  %5.2f  %.3f  %7llu  %10.2f", row.what, mtu, shares.gigabits,
                 shares.least, shares.jain, static_cast<unsigned long long>(shares.dropped),
                 percent(shares.part_repeated));
      EXPECT_FALSE(shares.has_failed) << row.what;
      EXPECT_GE(shares.jain, 0.95) << row.what;
      EXPECT_GE(shares.least, 0.5) << row.what;
    }
  }
}

// The words of the command line.
bool wants_update() {
  std::ifstream command_line("/proc/self/cmdline", std::ios::binary);
  for (std::string word; std::getline(command_line, word, '\0');)
    if (word == "--update") return true;
  return false;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
constexpr bool kIsSanitized = __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
constexpr bool kIsSanitized = false;
#endif

TEST(Goodput, IsWhatTheTableSays) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer takes ten times as long; the table is release's";
  Table table;
  table.line(
      "What is left of 25 Gb/s over a round trip of 20 us, in the simulator: Gb/s of payload.");
  table.line("Written by roce_test --gtest_filter='Goodput.*' --update; held by the same test.\n");
  go_back_n(table);
  selective_repeat(table, false);
  selective_repeat(table, true);
  reads(table);
  reordering(table);
  last_packets(table);
  incast(table);
  if (wants_update()) {
    std::ofstream(VERBENA_GOODPUT) << table.text();
    return;
  }
  std::ifstream file(VERBENA_GOODPUT);
  const std::string kept{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(table.text(), kept) << "If this is meant: run with --update and commit the table.";
}

}  // namespace
}  // namespace verbena::roce

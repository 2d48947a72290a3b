// SPDX-License-Identifier: MIT
// Static rates: the codes of IBTA vol 1, 9.11.1 (inter-packet delay), as multiples of 2.5 Gbit/s
// and in Mbit/s.
#include "verbs/abi/entry.h"

namespace {

constexpr int kNoMultiple = -1;

struct Rate {
  ibv_rate code;
  int multiple;  // of 2.5 Gbit/s, as programs know it: most rates of lanes faster than 10 Gbit/s
                 // have none
  int mbps;      // what the link carries: x.25 Gbit/s are the 64/66 coded lanes
};

constexpr Rate kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},
    {IBV_RATE_5_GBPS, 2, 5000},
    {IBV_RATE_10_GBPS, 4, 10000},
    {IBV_RATE_20_GBPS, 8, 20000},
    {IBV_RATE_30_GBPS, 12, 30000},
    {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},
    {IBV_RATE_80_GBPS, 32, 80000},
    {IBV_RATE_120_GBPS, 48, 120000},
    {IBV_RATE_14_GBPS, kNoMultiple, 14062},
    {IBV_RATE_56_GBPS, kNoMultiple, 56250},
    {IBV_RATE_112_GBPS, kNoMultiple, 112500},
    {IBV_RATE_168_GBPS, kNoMultiple, 168750},
    {IBV_RATE_25_GBPS, kNoMultiple, 25781},
    {IBV_RATE_100_GBPS, kNoMultiple, 103125},
    {IBV_RATE_200_GBPS, kNoMultiple, 206250},
    {IBV_RATE_300_GBPS, kNoMultiple, 309375},
    {IBV_RATE_28_GBPS, 11, 28125},
    {IBV_RATE_50_GBPS, 20, 53125},
    {IBV_RATE_400_GBPS, 160, 425000},
    {IBV_RATE_600_GBPS, 240, 637500},
    {IBV_RATE_800_GBPS, 320, 850000},
    {IBV_RATE_1200_GBPS, 480, 1275000},
};

VERBENA_ANY_VALUE const Rate* find(ibv_rate code) {
  for (const Rate& rate : kRates) {
    if (rate.code == code) return &rate;
  }
  return nullptr;
}

}  // namespace

VERBENA_ANY_VALUE int ibv_rate_to_mult(ibv_rate rate) {
  const Rate* known = find(rate);
  return known ? known->multiple : kNoMultiple;
}

ibv_rate mult_to_ibv_rate(int mult) {
  for (const Rate& rate : kRates) {
    if (mult != kNoMultiple && rate.multiple == mult) return rate.code;
  }
  return IBV_RATE_MAX;
}

VERBENA_ANY_VALUE int ibv_rate_to_mbps(ibv_rate rate) {
  const Rate* known = find(rate);
  return known ? known->mbps : -1;
}

ibv_rate mbps_to_ibv_rate(int mbps) {
  for (const Rate& rate : kRates) {
    if (rate.mbps == mbps) return rate.code;
  }
  return IBV_RATE_MAX;
}

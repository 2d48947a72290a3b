// SPDX-License-Identifier: MIT
// How this processor stores few bytes by `rep movsb`, which is how the kernel copies them into the
// memory of another process (x86 with FSRM; elsewhere it does so by whole words, ascending).
//
// Found by experiment, one thread spinning on the bytes and overwriting them. Intel (Ice Lake)
// stores the even number of bytes, eight that are aligned together, and after that the last byte by
// itself: of an even number of bytes it is stored twice. On AMD (Zen 3, Zen 5) that was not seen.
#pragma once

namespace verbena {

struct ShortCopy {
  bool is_by_string = false;      // `rep movsb` for any length
  bool ends_with_a_byte = false;  // the last byte by itself, after the even number of them
};

// Of this processor; the same at each call.
ShortCopy short_copy();

}  // namespace verbena

// SPDX-License-Identifier: MIT
#include "cm/engine.h"

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hooks.h"

// Opens the engine; null: there is none that works, which has been said, or it is not wanted.
const struct collprobe_hooks* open_engine(void);

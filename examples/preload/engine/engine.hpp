// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../hooks.h"

/// The only function that the engine exports to the first stage. It may be called again, and gives the same.
extern "C" const collprobe_hooks* collprobe_engine_open(unsigned abi);

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

struct real;

// The NCCL that this thread is in, by a wrapper; null: it is in the program's own code. What NCCL calls
// through its PLT then, and what the engine calls, is for this NCCL and passes by the hooks.
const struct real* inside(void);

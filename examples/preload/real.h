// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds the NCCL behind a wrapper.
#pragma once

#include <stddef.h>

#include "hooks.h"

struct unique_id { // ncclUniqueId, which is passed by value
    char bytes[128];
};

enum symbol {
#define COLLPROBE_DATA(name, ...) symbol_##name,
#define COLLPROBE_COUNT(name, ...) symbol_##name,
#define COLLPROBE_STATE(name, ...) symbol_##name,
#define COLLPROBE_FORWARD(name, ...) symbol_##name,
#include "symbols.def"
    symbols
};

// A loaded NCCL. A function that it lacks returns ncclInvalidUsage: no place is null.
struct real {
    struct collprobe_nccl nccl;
    void* const* functions; // what a wrapper calls, by symbol
    void* const* own; // the same, but never another interposer's
    struct link_map* object;
    struct real* next;
};

// The NCCL that the object with the code at `caller` would call if the wrapper of `symbol` did not stand
// between. Never null: if there is none, its functions return ncclSystemError. After a first call from a
// place this is a look-up.
const struct real* real_of(enum symbol symbol, const void* caller);

// The proxy's: opens a NCCL from a file, for an object that would have loaded it.
void* open_installed(struct link_map* object);

// The folder of this object with its slash, or a null if it does not fit.
const char* own_folder(char* path, size_t size);

// The object with this address; null: there is none.
struct link_map* object_of(const void* address);

// A handle of a loaded object, for dlclose; null: it is not loaded any more.
void* open_object(const struct link_map* object);

// One line on stderr: "collprobe: ", then the texts up to a null.
void say(const char* text, ...) __attribute__((sentinel));

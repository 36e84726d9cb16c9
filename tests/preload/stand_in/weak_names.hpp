// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/preload/stand_in/nccl_names.hpp"

// Included before `nccl.cpp`, where the public functions are: as in NCCL, each name is weak and has a strong twin.
#define STAND_IN_NCCL_EXPORT(name) \
    extern "C" __attribute__((weak, visibility("default"))) decltype(name) name; \
    extern "C" __attribute__((alias(#name), visibility("default"))) decltype(name) p##name;
STAND_IN_NCCL_NAMES(STAND_IN_NCCL_EXPORT)
#undef STAND_IN_NCCL_EXPORT

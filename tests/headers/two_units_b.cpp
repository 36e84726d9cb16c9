// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "all_headers.inc"
// And once more.
#include "all_headers.inc"

int version_of_other_unit();

int version_of_other_unit() { return COLLPROBE_VERSION; }

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "all_headers.inc"
// And once more.
#include "all_headers.inc"

int version_of_other_unit();

int main() { return version_of_other_unit() == COLLPROBE_VERSION ? 0 : 1; }

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstring>

#include <collprobe/collprobe.hpp>

/// Prints the version of the collprobe it was compiled with; fails if it is not the expected one.
int main(int argc, char** argv)
{
    char version[32];
    std::snprintf(version, sizeof version, "%d.%d.%d", COLLPROBE_VERSION_MAJOR, COLLPROBE_VERSION_MINOR,
        COLLPROBE_VERSION_PATCH);
    std::printf("collprobe %s\n", version);
    return argc == 2 && std::strcmp(argv[1], version) == 0 ? 0 : 1;
}

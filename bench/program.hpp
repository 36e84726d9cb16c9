// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../examples/support/command_line.hpp"

namespace collprobe::bench {

/// What a program's `main` returns: reads the options of `line`, then calls `run`.
template <class Run>
int run_program(const char* name, support::command_line& line, int argc, char** argv, Run run)
{
    try {
        line.parse({argv + 1, argv + argc});
        run();
        return 0;
    } catch (const std::exception& problem) {
        return support::explain(name, problem);
    }
}

} // namespace collprobe::bench

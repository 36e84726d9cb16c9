// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/order/stream_order.hpp>

#if COLLPROBE_STREAM_ORDER

#include <cstdio>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A checker that is installed before `main`. It writes each hazard to stderr when it is found, and their number at the
/// end of the process. It gives way to a checker of the program's own while that is installed.
class process_checker {
public:
    process_checker() : checker_({.on_hazard = &write, .gives_way = true})
    {
        try {
            checker_.install();
        } catch (const error&) { // the program has installed its own already
        }
    }
    process_checker(const process_checker&) = delete;
    process_checker& operator=(const process_checker&) = delete;
    ~process_checker()
    {
        checker_.uninstall();
        const auto hazards = static_cast<unsigned long long>(checker_.hazard_count());
        if (hazards == 0) return;
        std::fprintf(stderr, "stream order: %llu hazard%s in this process\n", hazards, hazards == 1 ? "" : "s");
    }

private:
    static void write(const stream_hazard& found, void*) { std::fprintf(stderr, "%s\n", found.message().c_str()); }

    stream_order checker_;
};
inline process_checker checker_of_this_process;

} // namespace collprobe::detail

#endif

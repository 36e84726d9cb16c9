// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/order/stream_order.hpp>

#if COLLPROBE_STREAM_ORDER

#include <cstdio>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A checker from before `main` on, for the time in which the program has installed none. It writes each hazard to
/// stderr when it is found, and their number at the end of the process.
class process_checker {
public:
    process_checker() { stream_order::of_process_.store(&checker_); }
    process_checker(const process_checker&) = delete;
    process_checker& operator=(const process_checker&) = delete;
    ~process_checker()
    {
        stream_order::of_process_.store(nullptr);
        const auto hazards = static_cast<unsigned long long>(checker_.hazard_count());
        if (hazards == 0) return;
        std::fprintf(stderr, "stream order: %llu hazard%s in this process\n", hazards, hazards == 1 ? "" : "s");
    }

private:
    static void write(const stream_hazard& found, void*) { std::fprintf(stderr, "%s\n", found.message().c_str()); }

    stream_order& checker_ = *new stream_order({.on_hazard = &write}); ///< never deleted: a thread may be telling it
};
inline process_checker checker_of_this_process;

} // namespace collprobe::detail

#endif

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/order/stream_order.hpp>

/// The checker of stream order in the laboratory. Targets of it are compiled with COLLPROBE_STREAM_ORDER=1.
namespace collprobe::race_lab {

/// A hazard that must be reported; `earlier` has no line where the hazard is no pair.
struct expected_hazard {
    hazard_kind kind;
    call_site earlier;
    call_site later;

    bool is(const stream_hazard& found) const
    {
        return found.kind == kind && same(found.earlier.where, earlier) && same(found.later.where, later);
    }

private:
    static bool same(call_site a, call_site b) { return a.line == b.line && std::string(a.file) == b.file; }
};

/// The checker, installed while one run lasts.
class watch {
public:
    watch()
    {
        checker_.install();
        current() = &checker_;
    }
    watch(const watch&) = delete;
    ~watch() { current() = nullptr; }

    /// It has found these, and nothing else.
    void check(const std::vector<expected_hazard>& expected) const
    {
        std::string messages;
        const std::vector<stream_hazard> found = checker_.hazards();
        for (const stream_hazard& each : found) messages += each.message() + "\n";
        CAPTURE(messages);
        for (const expected_hazard& one : expected) {
            const auto is_it = [&](const stream_hazard& each) { return one.is(each); };
            CHECK(std::any_of(found.begin(), found.end(), is_it));
        }
        for (const stream_hazard& each : found) {
            const auto is_this = [&](const expected_hazard& one) { return one.is(each); };
            CHECK(std::any_of(expected.begin(), expected.end(), is_this));
        }
    }

    /// For what the library's calls cannot tell.
    static stream_order& checker() { return *current(); }

private:
    static stream_order*& current()
    {
        static stream_order* one = nullptr;
        return one;
    }
    stream_order checker_;
};

/// Order between host threads: `acquire` comes behind `release`.
class handoff {
public:
    void release() const { watch::checker().handoff_release(this); }
    void acquire() const { watch::checker().handoff_acquire(this); }
};

/// Bytes are freed, and given out again, in the order of a stream.
template <class StreamRef, class T>
void pool_release(const StreamRef& on, view<T> bytes, call_site where)
{
    watch::checker().release(bytes, order_hooks::stream_of(on), where);
    watch::checker().allocate(bytes, order_hooks::stream_of(on), where);
}

} // namespace collprobe::race_lab

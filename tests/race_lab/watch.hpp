// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/error.hpp>
#include <collprobe/view.hpp>

namespace collprobe::race_lab {

enum class hazard_kind {
    read_after_write,
    write_after_read,
    write_after_write,
    unrecorded_event,
    released_in_use,
    overwritten_in_group,
    stale_generation,
    half_captured,
    weakly_ordered,
};

/// A hazard that the checker of stream order must report.
struct expected_hazard {
    hazard_kind kind;
    call_site earlier;
    call_site later;
};

/// Order between host threads, told to the checker: `acquire` comes behind `release`.
class handoff {
public:
    void release() const {}
    void acquire() const {}
};

/// Tells the checker that bytes are freed and given out again, in the order of a stream.
template <class StreamRef, class T>
void pool_release(StreamRef, view<T>, call_site)
{
}
/// And of which generation bytes are, and must be.
template <class T>
void tag_generation(view<T>, std::uint64_t)
{
}
template <class T>
void require_generation(view<T>, std::uint64_t, call_site)
{
}

/// Launches a graph, and says so.
template <class Graph, class StreamRef>
void launch_graph(const Graph& graph, StreamRef on, call_site)
{
    graph.launch(on);
}

/// The checker over one run.
class watch {
public:
    /// It has found these, and nothing else.
    void check([[maybe_unused]] const std::vector<expected_hazard>& expected) const {}
};

} // namespace collprobe::race_lab

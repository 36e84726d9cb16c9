// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/device/host/stream.hpp>

#include "support/rank_memory.hpp"

namespace collprobe::testing {

/// A call of most ranks, that of another one, and what a message says of the two.
template <class Comm>
struct unequal_call {
    using call_t = std::function<void(Comm&, host::stream_ref, rank_memory&)>;
    const char* majority;
    const char* minority;
    call_t good;
    call_t bad;
};

/// The calls are those of `where`.
template <class Comm>
std::vector<unequal_call<Comm>> unequal_calls(call_site where = call_site::current())
{
    using call_t = typename unequal_call<Comm>::call_t;
    const auto reduce = [=](std::uint64_t count, reduction operation) -> call_t {
        return [=](Comm& c, auto on, rank_memory& m) {
            c.all_reduce(m.in().part(0, count), m.out().part(0, count), operation, on, where);
        };
    };
    const auto broadcast = [=](int root) -> call_t {
        return [=](Comm& c, auto on, rank_memory& m) {
            c.broadcast(m.in().part(0, 8), m.out().part(0, 8), root, on, where);
        };
    };
    const call_t barrier = [=](Comm& c, auto on, rank_memory&) { c.barrier(on, where); };
    const call_t sum_8 = reduce(8, reduction::sum);
    const char* const sum = "all_reduce of float, count 8, sum";
    return {{sum, "count 7", sum_8, reduce(7, reduction::sum)}, {sum, "max", sum_8, reduce(8, reduction::max)},
        {sum, "int32, count 16, min", sum_8,
            [=](Comm& c, auto on, rank_memory& m) {
                auto* const data = reinterpret_cast<std::int32_t*>(m.receive.data());
                c.all_reduce(view<std::int32_t>(data, 16), reduction::min, on, where);
            }},
        {sum, "barrier", sum_8, barrier}, {"broadcast of float, count 8, root 0", "root 1", broadcast(0), broadcast(1)},
        {"barrier", "all_reduce of float, count 0, sum", barrier, reduce(0, reduction::sum)},
        {"all_gather of float, count 4", "all_to_all of float, count 4",
            [=](Comm& c, auto on, rank_memory& m) {
                c.all_gather(m.in().part(0, 4), m.out().part(0, 4 * static_cast<unsigned>(c.size())), on, where);
            },
            [=](Comm& c, auto on, rank_memory& m) {
                const std::uint64_t all = 4 * static_cast<unsigned>(c.size());
                c.all_to_all(m.in().part(0, all), m.out().part(0, all), on, where);
            }}};
}

} // namespace collprobe::testing

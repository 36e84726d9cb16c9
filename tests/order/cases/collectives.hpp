// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "order/cases/bench.hpp"

/// Calls of NCCL, on a communicator of one rank.
namespace collprobe::order_cases {

struct communicator {
    ncclComm_t comm = nullptr;
    communicator()
    {
        ncclUniqueId id{};
        must(ncclGetUniqueId(&id));
        must(ncclCommInitRank(&comm, 1, id, 0));
    }
    communicator(const communicator&) = delete;
    ~communicator()
    {
        (void)(cudaDeviceSynchronize)();
        (void)ncclCommDestroy(comm);
    }
};

inline const order_case collective_cases[] = {
    {"an all-gather reads what another stream has written", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            communicator world;
            writes(on.first, on.data);
            if (right) edge(on, on.first, on.second);
            must(ncclAllGather(on.data, on.other, count, ncclFloat, world.comm, on.second));
        }},
    {"a communicator orders its own calls, but does not promise it", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            communicator world;
            must(ncclAllReduce(on.data, on.data, count, ncclFloat, ncclSum, world.comm, on.first));
            if (right) edge(on, on.first, on.second);
            must(ncclBroadcast(on.data, on.other, count, ncclFloat, 0, world.comm, on.second));
        }},
    {"a count is of elements, not of bytes", {hazard_kind::beyond_allocation, hazard_kind::beyond_allocation},
        [](bench& on, bool right) {
            communicator world;
            if (right)
                must(ncclReduceScatter(on.data, on.other, count, ncclFloat, ncclSum, world.comm, on.first));
            // Said only: the call would leave its memory.
            constexpr std::size_t too_many = size * sizeof(float);
            if (!right) ordered::touch(on.first, {{on.data, too_many}}, {{on.other, too_many}}, "reduce");
        }},
    {"the calls of a group are one operation, which their streams wait for", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            communicator world;
            must(ncclGroupStart());
            must(ncclAllReduce(on.data, on.data, count, ncclFloat, ncclSum, world.comm, on.first));
            must(ncclAllReduce(on.other, on.other, count, ncclFloat, ncclSum, world.comm, on.first));
            must(ncclGroupEnd());
            if (right) edge(on, on.first, on.second);
            reads(on.second, on.other);
        }},
};

} // namespace collprobe::order_cases

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "order/cases/bench.hpp"

/// Captures and graphs.
namespace collprobe::order_cases {

/// What `body` enqueues on the first stream, and an executable graph of it.
struct captured {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t step = nullptr;

    template <class Body>
    captured(const bench& on, const Body& body)
    {
        must(cudaStreamBeginCapture(on.first, cudaStreamCaptureModeThreadLocal));
        body();
        must(cudaStreamEndCapture(on.first, &graph));
        must(cudaGraphInstantiate(&step, graph, 0));
    }
    captured(const captured&) = delete;
    ~captured()
    {
        (void)cudaGraphExecDestroy(step);
        (void)cudaGraphDestroy(graph);
    }
};

inline const order_case captures[] = {
    {"the input of a graph is written before the launch, also while the capture is open",
        {hazard_kind::write_after_read},
        [](bench& on, bool right) {
            const captured made(on, [&] {
                reads(on.first, on.managed);
                if (right) host_writes(on.managed);
            });
            must(cudaGraphLaunch(made.step, on.first));
            if (!right) host_writes(on.managed);
        }},
    {"another stream's work while a capture is open is ordered before the launch by an event",
        {hazard_kind::half_captured},
        [](bench& on, bool right) {
            const captured made(on, [&] {
                writes(on.second, on.data); // enqueued while the capture is open, though it is still empty
                reads(on.first, on.data);
            });
            if (right) edge(on, on.second, on.first);
            must(cudaGraphLaunch(made.step, on.first));
        }},
    {"one executable graph does not overlap itself, two of one graph do", {hazard_kind::write_after_write},
        [](bench& on, bool right) {
            const captured made(on, [&] { writes(on.first, on.data); });
            cudaGraphExec_t again = nullptr;
            must(cudaGraphInstantiateWithFlags(&again, made.graph, 0));
            must(cudaGraphLaunch(made.step, on.first));
            must(cudaGraphLaunch(right ? made.step : again, on.second));
            must(cudaGraphExecDestroy(again));
        }},
};

} // namespace collprobe::order_cases

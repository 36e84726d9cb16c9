// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "order/cases/bench.hpp"

/// Captures and graphs.
namespace collprobe::order_cases {

inline const order_case captures[] = {
    {"the input of a graph is written before the launch, also while the capture is open",
        {hazard_kind::write_after_read},
        [](bench& on, bool right) {
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t step = nullptr;
            must(cudaStreamBeginCapture(on.first, cudaStreamCaptureModeThreadLocal));
            reads(on.first, on.managed);
            if (right) host_writes(on.managed);
            must(cudaStreamEndCapture(on.first, &graph));
            must(cudaGraphInstantiate(&step, graph, 0));
            must(cudaGraphLaunch(step, on.first));
            if (!right) host_writes(on.managed);
            must(cudaGraphExecDestroy(step));
            must(cudaGraphDestroy(graph));
        }},
    {"another stream's work while a capture is open is ordered before the launch by an event",
        {hazard_kind::half_captured},
        [](bench& on, bool right) {
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t step = nullptr;
            must(cudaStreamBeginCapture(on.first, cudaStreamCaptureModeThreadLocal));
            writes(on.second, on.data); // enqueued while the capture is open, though it is still empty
            reads(on.first, on.data);
            must(cudaStreamEndCapture(on.first, &graph));
            must(cudaGraphInstantiateWithFlags(&step, graph, 0));
            if (right) edge(on, on.second, on.first);
            must(cudaGraphLaunch(step, on.first));
            must(cudaGraphExecDestroy(step));
            must(cudaGraphDestroy(graph));
        }},
    {"one executable graph does not overlap itself, two of one graph do", {hazard_kind::write_after_write},
        [](bench& on, bool right) {
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t step = nullptr;
            cudaGraphExec_t again = nullptr;
            must(cudaStreamBeginCapture(on.first, cudaStreamCaptureModeThreadLocal));
            writes(on.first, on.data);
            must(cudaStreamEndCapture(on.first, &graph));
            must(cudaGraphInstantiate(&step, graph, 0));
            must(cudaGraphInstantiate(&again, graph, 0));
            must(cudaGraphLaunch(step, on.first));
            must(cudaGraphLaunch(right ? step : again, on.second));
            must(cudaGraphExecDestroy(step));
            must(cudaGraphExecDestroy(again));
            must(cudaGraphDestroy(graph));
        }},
};

} // namespace collprobe::order_cases

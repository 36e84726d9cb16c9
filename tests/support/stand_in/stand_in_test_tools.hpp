// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <collprobe/device/cuda/device.hpp>

#include "tests/support/checks.hpp"
#include "tests/support/stand_in/kernels.hpp"
#include "tests/support/stand_in/stand_in.hpp"

/// What tests over the stand-in share.
namespace collprobe::testing {

/// Holds a stream up until opened, at the latest when it is destroyed.
class gate {
public:
    explicit gate(cuda::stream_ref on)
    {
        cuda::check(stand_in::enqueue(on.get(), [closed = closed_] { closed->wait(); }), "enqueue");
    }
    gate(const gate&) = delete;
    gate& operator=(const gate&) = delete;
    ~gate() { open(); }
    void open()
    {
        if (closed_) closed_->count_down();
        closed_.reset();
    }

private:
    std::shared_ptr<std::latch> closed_ = std::make_shared<std::latch>(1);
};

/// A capture that is begun, and ended, given up or turned into a graph to launch.
class captured_graph {
public:
    explicit captured_graph(cuda::stream_ref on, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) : on_(on)
    {
        cuda::check(cudaStreamBeginCapture(on.get(), mode), "cudaStreamBeginCapture");
    }
    captured_graph(const captured_graph&) = delete;
    captured_graph& operator=(const captured_graph&) = delete;
    ~captured_graph()
    {
        if (!ended_) (void)end();
        if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
        if (runnable_ != nullptr) (void)cudaGraphExecDestroy(runnable_);
        (void)cudaGetLastError();
    }
    cudaError_t end()
    {
        ended_ = true;
        cudaError_t code = cudaStreamEndCapture(on_.get(), &graph_);
        if (code == cudaSuccess) code = cudaGraphInstantiateWithFlags(&runnable_, graph_, 0);
        return code;
    }
    void launch(cuda::stream_ref on) const { cuda::check(cudaGraphLaunch(runnable_, on.get()), "cudaGraphLaunch"); }

private:
    cuda::stream_ref on_;
    cudaGraph_t graph_ = nullptr;
    cudaGraphExec_t runnable_ = nullptr;
    bool ended_ = false;
};

/// Makes CUDA create an event: takes events of the pool until there was none.
inline void create_event(int device)
{
    std::vector<detail::ref<cuda::detail::event_node>> taken;
    const std::uint64_t before = stand_in::calls("cudaEventCreateWithFlags");
    while (stand_in::calls("cudaEventCreateWithFlags") == before) {
        taken.push_back(cuda::detail::event_pool::take(device, call_site::current()));
    }
}

} // namespace collprobe::testing

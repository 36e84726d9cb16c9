// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/guard/nccl/copy_then_all_gather.hpp>

#include "tests/race_lab/watch.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::race_lab {

/// CUDA streams of the stand-in, and ranks of NCCL's stand-in with a device each. As NCCL's default is not, their
/// communicators are non-blocking.
struct nccl_lab {
    using device = cuda::device;
    using communicator = testing::nccl_owner;
    using gate = testing::gate;
    static constexpr int ranks = 2;

    template <class Body>
    static void run(int count, Body body)
    {
        // The stand-in's streams are the library's, and tell the checker of themselves until they are gone.
        struct drained {
            ~drained() { stand_in::drain_destroyed_streams(); }
        };
        const testing::watchdog guard("a failure mode", 120);
        const drained at_exit;
        const testing::clean_stand_in clean;
        testing::nccl_provider{count}.run(body);
    }
    /// For a thread that works on the streams of another.
    static void enter_device(const auto& at)
    {
        cuda::check(cudaSetDevice(at.producer.device()), "cudaSetDevice");
    }
    /// No order between it and the streams of the bench, which are non-blocking.
    static cuda::stream_ref default_stream(const auto&) { return cuda::stream_ref(cudaStreamLegacy); }
};

/// A capture that the checker is told of.
class captured_graph {
public:
    explicit captured_graph(cuda::stream_ref on, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
        : graph_(on, mode), number_(on.capture_number())
    {
        watch::checker().capture_begin(number_);
    }
    cudaError_t end()
    {
        watch::checker().capture_end(number_);
        return graph_.end();
    }
    /// Behind its last launch, on whatever stream that was: a graph does not overlap itself.
    void launch(cuda::stream_ref on, call_site where = call_site::current())
    {
        const order_stream told = order_hooks::stream_of(on);
        if (last_.recorded()) watch::checker().wait(told, last_, where);
        watch::checker().launch_graph(number_, told, where);
        watch::checker().record(last_, told);
        graph_.launch(on);
    }

private:
    testing::captured_graph graph_;
    unsigned long long number_;
    order_point last_;
};

} // namespace collprobe::race_lab

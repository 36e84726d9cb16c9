// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The stand-in for CUDA must not hide what a GPU would show: a copy on one stream and a kernel on
// another that uses it. With the argument "ordered" an event lies between the two and ThreadSanitizer
// must stay quiet; with "unordered" it must report a race. The same, with "graph", for work that was
// captured, where an event orders branches of a graph.

#include <cstdio>
#include <cstring>
#include <ctime>

#include "tests/support/stand_in/kernels.hpp"

namespace {

void sleep_ms(long milliseconds)
{
    const timespec nap{0, milliseconds * 1'000'000};
    nanosleep(&nap, nullptr);
}

} // namespace

int main(int argument_count, char** arguments)
{
    using namespace collprobe;
    if (argument_count < 4) {
        std::fprintf(
            stderr, "usage: %s ordered|unordered streams|graph copy_first|use_first\n", arguments[0]);
        return 2;
    }
    const bool ordered = std::strcmp(arguments[1], "ordered") == 0;
    const bool graph = std::strcmp(arguments[2], "graph") == 0;
    const bool copy_first = std::strcmp(arguments[3], "copy_first") == 0;

    cuda::pinned_buffer<int> source(1000);
    cuda::buffer<int> shard(1000);
    const cuda::stream copies;
    const cuda::stream uses;
    const auto nap_on = [](cuda::stream_ref on, long milliseconds) {
        cuda::check(stand_in::enqueue(on.get(), [=] { sleep_ms(milliseconds); }), "enqueue");
    };
    cuda::event begun;
    cuda::event copied;
    cuda::event used;

    if (graph) {
        cuda::check(cudaStreamBeginCapture(copies.get(), cudaStreamCaptureModeGlobal),
            "cudaStreamBeginCapture");
        begun.record(copies);
        uses.wait(begun);
    }
    // The naps are in the streams: they say when, and order nothing. Even where it comes first the copy naps: who
    // waits for what was in front of it would otherwise, if late, be ordered behind the copy by accident.
    nap_on(copies, 200);
    cuda::device::copy(copies, view<const int>(source), view<int>(shard));
    copied.record(copies);
    if (ordered) uses.wait(copied);
    if (copy_first) nap_on(uses, 500);
    cuda::device::fill(uses, view<int>(shard), 1);
    used.record(uses);
    copies.wait(used);
    if (graph) {
        cudaGraph_t body = nullptr;
        cudaGraphExec_t runnable = nullptr;
        cuda::check(cudaStreamEndCapture(copies.get(), &body), "cudaStreamEndCapture");
        cuda::check(cudaGraphInstantiateWithFlags(&runnable, body, 0), "cudaGraphInstantiateWithFlags");
        cuda::check(cudaGraphLaunch(runnable, copies.get()), "cudaGraphLaunch");
        copies.synchronize();
        cuda::check(cudaGraphExecDestroy(runnable), "cudaGraphExecDestroy");
        cuda::check(cudaGraphDestroy(body), "cudaGraphDestroy");
    }
    uses.synchronize();
    copies.synchronize();
    if (ordered && shard.data()[999] != 1) std::puts("wrong value");
    std::puts("finished");
    return 0;
}

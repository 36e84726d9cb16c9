// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

#include <collprobe/order/cuda/ordered.hpp>
#include <collprobe/order/stream_order.hpp>

/// Puts an existing file under the checker of stream order by one include, without a change of its calls:
///
///     #include <collprobe/order/cuda/intercept.hpp> // the last include of the file
///
/// From there on CUDA's names of copies, fills, events, streams, memory and graphs mean the functions of
/// cuda/ordered.hpp. Each hazard is written to stderr when it is found, unless the program installs a checker of its
/// own. Kernels are no such calls: say by `ordered::touch` what they read and write. Calls of other names are not seen:
/// copies of symbols, arrays and three dimensions, cudaMemcpyPeer, prefetches, callbacks, graphs that are not captured.
///
/// Include it after all other headers, because the code behind it calls the wrappers, too. `(cudaMemcpy)(...)` is
/// CUDA's own function, but not in files that are compiled for per-thread default streams. All files of a program are
/// compiled for the same kind of default stream. With COLLPROBE_STREAM_ORDER=0 this header changes nothing.
#if COLLPROBE_STREAM_ORDER
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

#undef cudaMemcpy
#define cudaMemcpy(...) collprobe::ordered::memcpy(__VA_ARGS__)
#undef cudaMemcpyAsync
#define cudaMemcpyAsync(...) collprobe::ordered::memcpy_async(__VA_ARGS__)
#undef cudaMemcpyPeerAsync
#define cudaMemcpyPeerAsync(...) collprobe::ordered::memcpy_peer_async(__VA_ARGS__)
#undef cudaMemcpy2D
#define cudaMemcpy2D(...) collprobe::ordered::memcpy_2d(__VA_ARGS__)
#undef cudaMemcpy2DAsync
#define cudaMemcpy2DAsync(...) collprobe::ordered::memcpy_2d_async(__VA_ARGS__)
#undef cudaMemset
#define cudaMemset(...) collprobe::ordered::memset(__VA_ARGS__)
#undef cudaMemsetAsync
#define cudaMemsetAsync(...) collprobe::ordered::memset_async(__VA_ARGS__)
#undef cudaMemset2D
#define cudaMemset2D(...) collprobe::ordered::memset_2d(__VA_ARGS__)
#undef cudaMemset2DAsync
#define cudaMemset2DAsync(...) collprobe::ordered::memset_2d_async(__VA_ARGS__)
#undef cudaLaunchHostFunc
#define cudaLaunchHostFunc(...) collprobe::ordered::launch_host_func(__VA_ARGS__)
#undef cudaEventCreate
#define cudaEventCreate(...) collprobe::ordered::event_create(__VA_ARGS__)
#undef cudaEventCreateWithFlags
#define cudaEventCreateWithFlags(...) collprobe::ordered::event_create(__VA_ARGS__)
#undef cudaEventRecord
#define cudaEventRecord(...) collprobe::ordered::event_record(__VA_ARGS__)
#undef cudaEventQuery
#define cudaEventQuery(...) collprobe::ordered::event_query(__VA_ARGS__)
#undef cudaEventSynchronize
#define cudaEventSynchronize(...) collprobe::ordered::event_synchronize(__VA_ARGS__)
#undef cudaEventDestroy
#define cudaEventDestroy(...) collprobe::ordered::event_destroy(__VA_ARGS__)
#undef cudaStreamCreate
#define cudaStreamCreate(...) collprobe::ordered::stream_create(__VA_ARGS__)
#undef cudaStreamCreateWithFlags
#define cudaStreamCreateWithFlags(...) collprobe::ordered::stream_create(__VA_ARGS__)
#undef cudaStreamCreateWithPriority
#define cudaStreamCreateWithPriority(...) collprobe::ordered::stream_create(__VA_ARGS__)
#undef cudaStreamWaitEvent
#define cudaStreamWaitEvent(...) collprobe::ordered::stream_wait_event(__VA_ARGS__)
#undef cudaStreamQuery
#define cudaStreamQuery(...) collprobe::ordered::stream_query(__VA_ARGS__)
#undef cudaStreamSynchronize
#define cudaStreamSynchronize(...) collprobe::ordered::stream_synchronize(__VA_ARGS__)
#undef cudaStreamDestroy
#define cudaStreamDestroy(...) collprobe::ordered::stream_destroy(__VA_ARGS__)
#undef cudaDeviceSynchronize
#define cudaDeviceSynchronize(...) collprobe::ordered::device_synchronize(__VA_ARGS__)
#undef cudaMalloc
#define cudaMalloc(...) collprobe::ordered::malloc(__VA_ARGS__)
#undef cudaMallocPitch
#define cudaMallocPitch(...) collprobe::ordered::malloc_pitch(__VA_ARGS__)
#undef cudaMallocManaged
#define cudaMallocManaged(...) collprobe::ordered::malloc_managed(__VA_ARGS__)
#undef cudaMallocHost
#define cudaMallocHost(...) collprobe::ordered::malloc_host(__VA_ARGS__)
#undef cudaMallocFromPoolAsync
#define cudaMallocFromPoolAsync(...) collprobe::ordered::malloc_async(__VA_ARGS__)
#undef cudaMallocAsync
#define cudaMallocAsync(...) collprobe::ordered::malloc_async(__VA_ARGS__)
#undef cudaHostAlloc
#define cudaHostAlloc(...) collprobe::ordered::host_alloc(__VA_ARGS__)
#undef cudaHostRegister
#define cudaHostRegister(...) collprobe::ordered::host_register(__VA_ARGS__)
#undef cudaHostUnregister
#define cudaHostUnregister(...) collprobe::ordered::host_unregister(__VA_ARGS__)
#undef cudaFree
#define cudaFree(...) collprobe::ordered::free(__VA_ARGS__)
#undef cudaFreeHost
#define cudaFreeHost(...) collprobe::ordered::free_host(__VA_ARGS__)
#undef cudaFreeAsync
#define cudaFreeAsync(...) collprobe::ordered::free_async(__VA_ARGS__)
#undef cudaStreamBeginCapture
#define cudaStreamBeginCapture(...) collprobe::ordered::stream_begin_capture(__VA_ARGS__)
#undef cudaStreamEndCapture
#define cudaStreamEndCapture(...) collprobe::ordered::stream_end_capture(__VA_ARGS__)
#undef cudaGraphInstantiateWithFlags
#define cudaGraphInstantiateWithFlags(...) collprobe::ordered::graph_instantiate(__VA_ARGS__)
#undef cudaEventRecordWithFlags
#define cudaEventRecordWithFlags(...) collprobe::ordered::event_record_with_flags(__VA_ARGS__)
#undef cudaGraphExecUpdate
#define cudaGraphExecUpdate(...) collprobe::ordered::graph_exec_update(__VA_ARGS__)
#undef cudaGraphDestroy
#define cudaGraphDestroy(...) collprobe::ordered::graph_destroy(__VA_ARGS__)
#undef cudaGraphExecDestroy
#define cudaGraphExecDestroy(...) collprobe::ordered::graph_exec_destroy(__VA_ARGS__)
#undef cudaGraphLaunch
#define cudaGraphLaunch(...) collprobe::ordered::graph_launch(__VA_ARGS__)
#undef cudaGraphInstantiate
#define cudaGraphInstantiate(...) collprobe::ordered::graph_instantiate(__VA_ARGS__)
#endif

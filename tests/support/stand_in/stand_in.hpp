// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include <cuda_runtime_api.h>

#include <collprobe/device/host/stream.hpp>

/// A CUDA runtime without a GPU, for tests: the functions of `cuda_runtime_api.h` that the library
/// calls, with their documented meaning, linked in place of libcudart (`cuda_runtime.cpp`). Streams
/// are `host::stream`s: work runs asynchronously on a thread per stream and nothing orders two of
/// them but events, so a missing edge is a race that ThreadSanitizer sees. Streams in a graph stay
/// apart when it is launched, for the same reason.
///
/// "Device" memory is host memory. It is filled with a pattern when allocated and when freed.
namespace collprobe::stand_in {

// --- What tests script and count ---

/// How many devices there are; 2 unless set. Set it before a device is used.
void set_device_count(int count);

/// Whether devices can read any memory of the process, until `reset`.
void set_reads_pageable(bool reads);

/// The next call of `function` ("cudaMalloc") that is not scripted yet returns `code` and does nothing
/// else, after `skip` more calls that work. Several scripts of a function are used in the order given.
/// Kernel launches are "cudaLaunchKernel". Any number, so that other stand-ins can use this as well.
void fail_next(const char* function, int code, unsigned skip = 0);

/// How often `function` has been called, by any thread, since the start or `reset`.
std::uint64_t calls(const char* function);

/// Whether the process has a primary context on `device`: any call but the few that CUDA documents as free
/// of it creates one on the calling thread's device, and cudaSetDevice on its own (as of CUDA 12).
bool has_context(int device);
/// As if no device had been used yet. Their objects stay usable.
void forget_contexts();

/// How often a launch had to load its kernel while its device had work to do. CUDA may wait for that
/// work, and the work for what the waiting thread would do next. (Nothing waits here.)
std::uint64_t loads_behind_work();

/// Forgets scripts, counts, broken devices and the calling thread's last error.
void reset();

/// Waits until the streams destroyed so far have done their work and are gone: before what they may still tell goes.
void drain_destroyed_streams();

/// Live allocations of all CUDA's calls.
std::size_t live_allocations();

/// Where memory that the runtime knows comes from: it allocated it itself, alone or from a pool; the host's memory was
/// registered; or its addresses were reserved, for handles to be mapped there (cuMemAddressReserve, cuMemMap).
enum class memory_origin { allocation, pool, registration, reservation };

/// Memory of a test's own that the runtime takes for the current device's while this lives. So tests choose addresses.
class lent_memory {
public:
    /// \throws std::invalid_argument if the runtime knows the first byte, or any other of these.
    lent_memory(void* memory, std::size_t bytes, cudaMemoryType type, memory_origin origin);
    lent_memory(const lent_memory&) = delete;
    lent_memory& operator=(const lent_memory&) = delete;
    ~lent_memory();

private:
    void* memory_;
    memory_origin origin_;
};

/// A function of a stand-in: counts its calls and gives out its scripted failures. Counting orders no
/// threads: what is scripted is looked at only while there is something.
class scripted {
public:
    /// The one of that name, made on first use; valid for ever.
    static scripted& named(const char* function);
    /// Counts a call; the code it shall fail with, 0 for none.
    int enter();

    void add(unsigned skip, int code);
    void reset();
    std::uint64_t calls() const noexcept { return calls_.load(std::memory_order_relaxed); }

private:
    struct script {
        unsigned skip;
        int code;
    };
    std::atomic<std::uint64_t> calls_{0};
    std::atomic<std::size_t> armed_{0};
    std::mutex guard_;
    std::deque<script> scripts_;
};

// --- Work on streams ---

namespace detail {

/// Where work on a stream goes: to the host stream underneath, or into the capture.
struct target {
    std::optional<host::stream_ref> stream;
};
/// Empty target: the stream is capturing.
cudaError_t resolve(cudaStream_t on, target& to);
cudaError_t append(cudaStream_t on, std::function<void(host::stream_ref)> issue);
/// What a kernel launch checks first, and loads.
cudaError_t enter_launch(cudaStream_t on, const void* kernel);
void reset_scripts();
/// Sets the calling thread's last error.
cudaError_t finish(cudaError_t code);

} // namespace detail

/// Runs `task` (copyable, no arguments) in the order of the stream, or at each launch of the graph
/// that the stream is capturing.
template <class Task>
cudaError_t enqueue(cudaStream_t on, Task task)
{
    detail::target to;
    cudaError_t code = detail::resolve(on, to);
    if (code != cudaSuccess) return detail::finish(code);
    if (to.stream) {
        to.stream->enqueue(std::move(task));
    } else {
        code
            = detail::append(on, [task = std::move(task)](host::stream_ref stream) { stream.enqueue(task); });
    }
    return detail::finish(code);
}

/// A kernel launch: `enqueue`, but the stream's device must be the current one and it can be scripted.
/// `kernel` is any address that stands for it; where it was not loaded yet, it is now.
template <class Task>
cudaError_t launch(cudaStream_t on, const void* kernel, Task task)
{
    if (const cudaError_t code = detail::enter_launch(on, kernel); code != cudaSuccess) return detail::finish(code);
    return enqueue(on, std::move(task));
}

} // namespace collprobe::stand_in

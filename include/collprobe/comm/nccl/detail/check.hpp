// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>

#include <collprobe/comm/nccl/detail/handle.hpp>
#include <collprobe/comm/nccl/options.hpp>
#include <collprobe/comm/nccl/types.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/cuda/device.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl::detail {

/// Refuses what NCCL or the device could not use, before NCCL sees it. Nothing is enqueued then, and the communicator
/// stays usable. Makes the communicator's device current while it lives.
class argument_check {
public:
    /// \throws error the communicator's failure; `invalid_argument` or `unsupported` for a stream that cannot be
    ///   used.
    argument_check(handle& comm, collective call, cuda::stream_ref on, call_site where)
        : comm_(comm), call_(call), on_(on), where_(where), current_(usable(comm, call, where), where)
    {
        stream();
    }

    /// Requires that the device can read and write the buffers, and that each lies in one allocation; and that NCCL
    /// has the reduction.
    void places(const collective_call& call) const
    {
        if (call.reduces() && !can_reduce(call.type)) {
            fail(std::string("NCCL before 2.24 does not reduce ") + collprobe::name(call.type), status::unsupported);
        }
        if (call.sends(comm_.rank())) place(call.send, call.send_count, call.element_bytes(), "send");
        place(call.receive, call.receive_count, call.element_bytes(), "receive");
    }
    /// Checks all requirements of one buffer.
    template <class T>
    void buffer(view<T> buffer, const char* argument) const
    {
        const std::string flaw = collprobe::detail::flaw_of_buffer(buffer);
        if (!flaw.empty()) fail(argument + flaw);
        place(buffer.data(), buffer.count(), sizeof(T), argument);
    }

private:
    [[noreturn]] void fail(const std::string& message, status code = status::invalid_argument) const
    {
        throw error(code, message, comm_.origin(collprobe::name(call_), where_), {comm_.rank()});
    }
    static int usable(const handle& comm, collective call, call_site where)
    {
        comm.require_usable(collprobe::name(call), where);
        return comm.device();
    }

    /// Refuses streams of other devices, and streams that mean different things to different threads or libraries.
    void stream() const
    {
        const blocking_mode mode = comm_.settings().mode;
        if (on_.is_per_thread()) {
            if (mode == blocking_mode::blocking) return;
            // NVIDIA/nccl issue 1976.
            fail("stream is cudaStreamPerThread, and the communicator is non-blocking or not known to be blocking: "
                 "NCCL may enqueue from another thread, on that thread's stream, and the data are silently wrong",
                status::unsupported);
        }
        if (on_.is_default()) {
            if (mode != blocking_mode::non_blocking) return;
            // Work on this stream is ordered by the time at which it is enqueued, and another thread decides that
            // time here. NCCL's copy-engine collectives do not work on it either (NVIDIA/nccl issue 2003).
            fail("stream is the legacy default stream, which a non-blocking communicator cannot use",
                status::unsupported);
        }
        if (const int device = on_.device(where_); device != comm_.device()) {
            fail("stream is on device " + std::to_string(device) + ", the communicator on device "
                + std::to_string(comm_.device()));
        }
    }

    void place(const void* data, std::uint64_t count, std::uint64_t element_bytes, const char* argument) const
    {
        if (count == 0) return;
        cudaPointerAttributes found{};
        cuda::check(cudaPointerGetAttributes(&found, data), "cudaPointerGetAttributes", comm_.device(), on_.get(),
            where_);
        if (found.type == cudaMemoryTypeUnregistered) {
            int reads_all = 0; // on machines whose GPU reads any memory of the process
            cuda::check(cudaDeviceGetAttribute(&reads_all, cudaDevAttrPageableMemoryAccess, comm_.device()),
                "cudaDeviceGetAttribute", comm_.device(), on_.get(), where_);
            if (reads_all != 0) return;
            fail(std::string(argument) + " is host memory that the device cannot read (neither pinned nor managed)");
        }
        if (found.type == cudaMemoryTypeDevice && found.device != comm_.device()) {
            fail(std::string(argument) + " is on device " + std::to_string(found.device)
                + ", the communicator on device " + std::to_string(comm_.device()));
        }
        const std::uint64_t bytes = count * element_bytes;
        if (const std::uint64_t held = cuda::detail::bytes_in_allocation(data, bytes); held < bytes) {
            fail(std::string(argument) + " reaches beyond its allocation: it has " + std::to_string(count)
                + " elements, " + std::to_string(bytes) + " bytes, and the rest of the allocation has "
                + std::to_string(held) + " bytes");
        }
    }

    handle& comm_;
    collective call_;
    cuda::stream_ref on_;
    call_site where_;
    cuda::device_guard current_;
};

} // namespace collprobe::nccl::detail

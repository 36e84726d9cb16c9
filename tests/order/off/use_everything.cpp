// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Makes the compiler generate everything that tells the checker of stream order something; see no_code.cmake.

#include <collprobe/collprobe.hpp>
#include <collprobe/comm/local/device.hpp>
#include <collprobe/guard.hpp>
#include <collprobe/reduce.hpp>

#if defined(WITH_NCCL)
#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/device/cuda/device.hpp>
#endif

using namespace collprobe;

#if !COLLPROBE_STREAM_ORDER
// What an event carries for the checker takes no room.
static_assert(sizeof(host::event) == sizeof(void*) + sizeof(std::uint64_t));
#if defined(WITH_NCCL)
static_assert(sizeof(cuda::event) == 2 * sizeof(void*) + sizeof(unsigned long long));
#endif
#endif

template <class Device>
void use_device(typename Device::stream_ref on, typename Device::stream_ref other)
{
    typename Device::stream own;
    typename Device::template buffer<float> from(64), to(64);
    typename Device::event event;
    Device::copy(on, view<const float>(from), view<float>(to));
    Device::zero(on, view<float>(to));
    event.record(on);
    const typename Device::event copy = event;
    other.wait(copy);
    other.wait(event);
    if (!event.query()) event.synchronize();
    event.synchronize(10);
    if (!on.query()) on.synchronize();
    own.get().synchronize(10);
}

template <class Comm>
void use_communicator(Comm& comm, typename Comm::stream_ref on, view<float> data, view<float> result)
{
    const view<const float> send = data;
    comm.all_reduce(send, result, reduction::sum, on);
    comm.reduce_scatter(send, result.part(0, result.count() / static_cast<std::uint64_t>(comm.size())), reduction::sum, on);
    comm.all_gather(send.part(0, send.count() / static_cast<std::uint64_t>(comm.size())), result, on);
    comm.all_to_all(send, result, on);
    comm.broadcast(send, result, 0, on);
    comm.barrier(on);
}

void use_host(host::stream_ref on, host::stream_ref other, view<float> data, view<float> result)
{
    use_device<host::device>(on, other);
    host::device::fill(on, data, 1.0f);
    local::run(2, [&](local::communicator& comm) {
        use_communicator(comm, on, data, result);
        reproducible exact(comm);
        exact.all_reduce(view<const float>(data), result, reduction::sum, on);
        copy_then_all_gather(view<const float>(data), result, comm, on, {other}, {other});
    });
    local::run_on<host::device>(2, local::options{}, [&](local::device_communicator<host::device>& comm) {
        use_communicator(comm, on, data, result);
    });
}

#if defined(WITH_NCCL)
void use_nccl(nccl::communicator_ref comm, cuda::stream_ref on, cuda::stream_ref other, view<float> data, view<float> result)
{
    use_device<cuda::device>(on, other);
    cuda::pinned_buffer<float> pinned(8);
    cuda::workspace work;
    nccl::group group;
    use_communicator(comm, on, data, result);
    group.end();
}
#endif

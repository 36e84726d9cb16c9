// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Kernels by address over the stand-in for CUDA: what the host code of nvcc does, with PTX written by hand.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>

#include "stand_in/kernel_program.hpp"
#include "stand_in/runtime_objects.hpp"
#include "support/stand_in/fat_binary.hpp"
#include "support/stand_in/stand_in.hpp"

namespace collprobe::testing::launch_test {
namespace {

// Each thread stores `value` at its element of `to`, if that is below `count`.
const std::string fill = R"(
.visible .entry fill(.param .u64 to, .param .u32 count, .param .u32 value)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [value];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r3, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r3, %r1;
    @%p1 bra $end;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r3, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
$end:
    ret;
}
)";

// Waits until the word at `flag` is not 0.
const std::string wait = R"(
.visible .entry wait(.param .u64 flag)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [flag];
$again:
    ld.volatile.u32 %r1, [%rd1];
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra $again;
    ret;
}
)";

// The addresses that name them.
const char fill_address = 0, wait_address = 0;

cudaError_t launch_fill(unsigned* to, unsigned count, unsigned value, cudaStream_t on, dim3 grid = 2, dim3 block = 64,
    std::size_t dynamic_shared = 0, const void* address = &fill_address)
{
    void* arguments[] = {&to, &count, &value};
    return cudaLaunchKernel(address, grid, block, arguments, dynamic_shared, on);
}
cudaError_t launch_with(const void* address, unsigned* word, cudaStream_t on)
{
    void* arguments[] = {&word};
    return cudaLaunchKernel(address, 1, 1, arguments, 0, on);
}

/// Words of host memory that the device sees, all 0.
struct words {
    static constexpr unsigned count = 100;
    unsigned* data = nullptr;

    words()
    {
        REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&data), count * sizeof(unsigned), cudaHostAllocDefault)
            == cudaSuccess);
        for (unsigned i = 0; i < count; ++i) data[i] = 0;
    }
    words(const words&) = delete;
    ~words() { (void)cudaFreeHost(data); }
    bool are(unsigned value) const
    {
        for (unsigned i = 0; i < count; ++i) {
            if (data[i] != value) return false;
        }
        return true;
    }
};

struct filling_program : kernel_program {
    filling_program() : kernel_program(fat_binary({{90, ptx_of(fill + wait)}}))
    {
        add_kernel(&fill_address, "fill");
        add_kernel(&wait_address, "wait");
    }
};

/// The stand-in as it was: no device is broken, the first is current.
struct mended_stand_in {
    ~mended_stand_in()
    {
        stand_in::reset();
        (void)cudaSetDevice(0);
    }
};

} // namespace

TEST_CASE("a kernel runs in the order of its stream")
{
    const filling_program program;
    const runtime_stream stream;
    const words all;
    runtime_gate closed(stream.handle);
    CHECK(launch_fill(all.data, words::count, 7, stream.handle) == cudaSuccess);
    CHECK(all.are(0));
    closed.open();
    CHECK(stream.synchronize());
    CHECK(all.are(7));
}

TEST_CASE("kernels on two streams run at the same time")
{
    const filling_program program;
    const runtime_stream waiting, storing;
    const words all;
    CHECK(launch_with(&wait_address, all.data, waiting.handle) == cudaSuccess);
    CHECK(cudaStreamQuery(waiting.handle) == cudaErrorNotReady);
    CHECK(launch_fill(all.data, 1, 1, storing.handle) == cudaSuccess);
    CHECK(waiting.synchronize());
}

TEST_CASE("a captured launch runs at each launch of the graph, with its arguments")
{
    const filling_program program;
    const runtime_stream stream;
    const words all;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(launch_fill(all.data, words::count, 3, stream.handle) == cudaSuccess);
    REQUIRE(cudaStreamEndCapture(stream.handle, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&runnable, graph, 0) == cudaSuccess);
    CHECK(all.are(0));
    for (unsigned round = 0; round < 2; ++round) {
        for (unsigned i = 0; i < words::count; ++i) all.data[i] = 0;
        CHECK(cudaGraphLaunch(runnable, stream.handle) == cudaSuccess);
        CHECK(stream.synchronize());
        CHECK(all.are(3));
    }
    (void)cudaGraphExecDestroy(runnable);
    (void)cudaGraphDestroy(graph);
}

TEST_CASE("a store beside all memory is a failed launch, and breaks the device")
{
    const mended_stand_in at_exit;
    const filling_program program;
    const runtime_stream stream;
    const words all;
    CHECK(launch_fill(all.data, words::count + 1, 7, stream.handle) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream.handle) == cudaErrorLaunchFailure);
    CHECK(launch_fill(all.data, 1, 7, stream.handle) == cudaErrorLaunchFailure);
}

TEST_CASE("what CUDA refuses to launch")
{
    const mended_stand_in at_exit;
    const filling_program program;
    const runtime_stream stream;
    const words all;
    CHECK(launch_fill(all.data, 1, 7, stream.handle, 0) == cudaErrorInvalidConfiguration);
    CHECK(launch_fill(all.data, 1, 7, stream.handle, 1, 0) == cudaErrorInvalidConfiguration);
    CHECK(launch_fill(all.data, 1, 7, stream.handle, 1, dim3(1024, 2)) == cudaErrorInvalidConfiguration);
    CHECK(launch_fill(all.data, 1, 7, stream.handle, 1, 1, 0, &all) == cudaErrorInvalidDeviceFunction);
    CHECK(launch_fill(all.data, 1, 7, stream.handle, 1, 1, 49153) == cudaErrorInvalidValue);
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    CHECK(launch_fill(all.data, 1, 7, stream.handle) == cudaErrorInvalidResourceHandle);
    CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
}

TEST_CASE("programs may have kernels of the same name")
{
    static const char other_address = 0;
    std::string other = fill;
    other.replace(other.find("setp.ge.u32"), 11, "setp.lt.u32"); // fills the rest
    const filling_program program;
    const kernel_program second(fat_binary({{90, ptx_of(other)}}));
    second.add_kernel(&other_address, "fill");
    const runtime_stream stream;
    const words all;
    CHECK(launch_fill(all.data, 50, 1, stream.handle, 1, words::count) == cudaSuccess);
    CHECK(launch_fill(all.data, 50, 2, stream.handle, 1, words::count, 0, &other_address) == cudaSuccess);
    CHECK(stream.synchronize());
    CHECK(all.data[49] == 1);
    CHECK(all.data[50] == 2);
}

TEST_CASE("a program that is gone has no kernels")
{
    const mended_stand_in at_exit;
    const runtime_stream stream;
    const words all;
    {
        const filling_program program;
        CHECK(launch_fill(all.data, words::count, 7, stream.handle) == cudaSuccess);
    }
    CHECK(launch_fill(all.data, 1, 9, stream.handle) == cudaErrorInvalidDeviceFunction);
    CHECK(stream.synchronize());
    CHECK(all.are(7));
}

} // namespace collprobe::testing::launch_test

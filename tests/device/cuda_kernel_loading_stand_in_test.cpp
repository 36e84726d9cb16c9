// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/device/cuda/detail/kernel_loading.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/step/probed.hpp>

#include "examples/support/device_ranks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::cuda_kernel_loading_stand_in_test {

using cuda::device;

namespace {

// Each test has a device of its own: what is loaded there stays loaded.
[[maybe_unused]] const bool has_devices = (stand_in::set_device_count(8), true);

struct count_up {
    std::uint64_t* values;
    void operator()(std::uint64_t index) const { values[index] = index; }
};

/// How many kernels CUDA is asked for when all are loaded onto a device.
std::uint64_t loaded_onto(int device)
{
    const cuda::device_guard here(device);
    const std::uint64_t before = stand_in::calls("cudaFuncGetAttributes");
    cuda::device::load_kernels();
    return stand_in::calls("cudaFuncGetAttributes") - before;
}

/// A shared library with one kernel (support/kernel_plugin.cpp).
class plugin {
public:
    explicit plugin(const char* path) : path_(path), handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL))
    {
        REQUIRE_MESSAGE(handle_ != nullptr, std::string(dlerror()));
    }
    void close()
    {
        REQUIRE(dlclose(handle_) == 0);
        REQUIRE(dlopen(path_, RTLD_NOW | RTLD_NOLOAD) == nullptr); // or nothing would be shown
    }

private:
    const char* path_;
    void* handle_;
};

} // namespace

TEST_CASE("load_kernels loads all that the program contains, once on each device")
{
    stand_in::reset();
    const cuda::device_guard here(2);
    cuda::pinned_buffer<std::uint64_t> values(4);
    const cuda::stream held;
    const cuda::stream stream;
    cuda::device::load_kernels();
    const std::uint64_t asked = stand_in::calls("cudaFuncGetAttributes");
    CHECK(asked >= 1);
    cuda::device::load_kernels();
    CHECK(stand_in::calls("cudaFuncGetAttributes") == asked);
    gate closed(held);
    device::for_each(stream, 4, count_up{values.data()});
    CHECK(stand_in::loads_behind_work() == 0);
    closed.open();
    held.synchronize(soon_ms);
    stream.synchronize(soon_ms);
    CHECK(values[3] == 3);
}

TEST_CASE("a kernel that cannot be loaded is no error before its launch")
{
    stand_in::reset();
    const cuda::device_guard here(3);
    stand_in::fail_next("cudaFuncGetAttributes", cudaErrorInvalidValue);
    cuda::device::load_kernels();
    CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("loading gives up no capture of another thread")
{
    const cuda::stream stream;
    captured_graph capture(stream);
    std::thread([] {
        const cuda::device_guard here(4);
        cuda::device::load_kernels();
    }).join();
    CHECK(capture.end() == cudaSuccess);
}

TEST_CASE("probed loads its kernels at construction, so that none waits for a running collective")
{
    stand_in::reset();
    const cuda::device_guard here(5);
    const cuda::stream stream;
    cuda::buffer<float> gradient(100);
    cuda::buffer<double> other(50);
    probed comm(local::device_group<device>(1).communicator(0), {.direction = direction_mode::exact});
    const std::uint64_t launches = stand_in::calls("cudaLaunchKernel");
    gate running(stream); // as a collective that waits for another rank
    comm.all_reduce(view<const float>(gradient.data(), 100), view(gradient), reduction::sum, stream);
    comm.all_reduce(view<const double>(other.data(), 50), view(other), reduction::sum, stream);
    comm.end_step(0, {.loss = 1}, stream);
    CHECK(stand_in::calls("cudaLaunchKernel") > launches + 4);
    CHECK(stand_in::loads_behind_work() == 0);
    running.open();
    stream.synchronize(soon_ms);
}

TEST_CASE("kernels of a library that is opened later are loaded by the next call, those of a closed one are forgotten")
{
    stand_in::reset();
    const std::uint64_t own = loaded_onto(6);
    REQUIRE(own >= 1);
    plugin first(FIRST_PLUGIN);
    CHECK(loaded_onto(6) == 1);
    plugin second(SECOND_PLUGIN);
    CHECK(loaded_onto(6) == 1);
    CHECK(loaded_onto(6) == 0);
    first.close(); // the older one: the other's entry stands before it
    CHECK(loaded_onto(6) == 0);
    CHECK(loaded_onto(7) == own + 1);
    plugin again(FIRST_PLUGIN); // as another library, maybe where it was before
    CHECK(loaded_onto(6) == 1);
    second.close();
    again.close();
    CHECK(loaded_onto(6) == 0);
    CHECK(loaded_onto(7) == 0);
}

TEST_CASE("libraries come and go while another thread loads kernels")
{
    stand_in::reset();
    std::atomic<bool> enough{false};
    std::thread loader([&] {
        for (int device = 0; !enough; device = (device + 1) % 8) (void)loaded_onto(device);
    });
    for (int i = 0; i < 50; ++i) {
        plugin first(FIRST_PLUGIN);
        plugin second(SECOND_PLUGIN);
        first.close();
        second.close();
    }
    enough = true;
    loader.join();
    (void)loaded_onto(0);
    CHECK(loaded_onto(0) == 0);
}

} // namespace collprobe::testing::cuda_kernel_loading_stand_in_test

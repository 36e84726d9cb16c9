// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Kernels by address: what the host code of nvcc registers and launches, executed by the engine of tests/support/ptx
// as tasks of the stand-in's streams. Environment variables:
//     COLLPROBE_EMULATED_SEED=n           random schedules: `ptx::schedule::seed`, other numbers for each launch
//     COLLPROBE_EMULATED_CHECK=1          `ptx::schedule::check`
//     COLLPROBE_EMULATED_DROP="a|b|n"     from kernels with `a` in their names, the instruction number n (from 0)
//                                         with `b` in its text is taken out
//     COLLPROBE_EMULATED_PUT="c"          the instruction `c` is put in its place
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <x86intrin.h>

#include "tests/support/ptx/engine.hpp"
#include "tests/support/stand_in/launch.hpp"
#include "tests/support/stand_in/runtime_internal.hpp"
#include "tests/support/stand_in/stand_in.hpp"

using namespace collprobe;
using namespace collprobe::stand_in::detail;

namespace {

// --- What the environment asks for ---

struct settings {
    std::uint64_t seed = 0;
    bool check = false;
    std::string drop_in, drop; ///< part of the kernel's name, part of the instruction's text
    std::string put; ///< instead of it
    unsigned drop_number = 0;

    static const settings& given()
    {
        static const settings* const own = new settings;
        return *own;
    }

private:
    settings()
    {
        const auto text = [](const char* name) {
            const char* const value = std::getenv(name);
            return std::string(value == nullptr ? "" : value);
        };
        const auto number = [&](const char* name) { return std::strtoull(text(name).c_str(), nullptr, 0); };
        seed = number("COLLPROBE_EMULATED_SEED");
        check = number("COLLPROBE_EMULATED_CHECK") != 0;
        put = text("COLLPROBE_EMULATED_PUT");
        const std::string mutation = text("COLLPROBE_EMULATED_DROP");
        const std::size_t first = mutation.find('|');
        const std::size_t last = mutation.rfind('|'); // the text of an instruction may have some, too
        if (mutation.empty()) return;
        if (first == last) {
            std::fprintf(stderr, "emulated: COLLPROBE_EMULATED_DROP is not of the form kernel|text|number\n");
            std::exit(2);
        }
        drop_in = mutation.substr(0, first);
        drop = mutation.substr(first + 1, last - first - 1);
        drop_number = static_cast<unsigned>(std::strtoul(mutation.c_str() + last + 1, nullptr, 10));
    }
};

// --- What the program registers ---

/// The PTX of the newest architecture in a fat binary (`data` of the wrapper that the host code registers).
/// \throws std::runtime_error if there is none, or if it is compressed.
std::string find_ptx(const unsigned char* data)
{
    // As nvcc 11 to 13 write it. A header of the file (magic, version, its own size, size of the rest), then entries:
    // kind, version, size of the header, size of the payload, and at byte 28 the architecture.
    const auto read = [](const unsigned char* at, auto value) {
        std::memcpy(&value, at, sizeof value);
        return value;
    };
    constexpr std::uint32_t magic = 0xBA55ED50;
    constexpr std::uint16_t kind_ptx = 1;
    if (read(data, std::uint32_t{}) != magic) throw std::runtime_error("this is no fat binary of nvcc");
    const unsigned char* entry = data + read(data + 6, std::uint16_t{});
    const unsigned char* const end = entry + read(data + 8, std::uint64_t{});
    std::string found;
    std::uint32_t newest = 0;
    while (entry < end) {
        const auto kind = read(entry, std::uint16_t{});
        const auto architecture = read(entry + 28, std::uint32_t{});
        const unsigned char* const payload = entry + read(entry + 4, std::uint32_t{});
        const auto bytes = static_cast<std::size_t>(read(entry + 8, std::uint64_t{}));
        if (kind == kind_ptx && architecture >= newest) {
            const std::string_view text(reinterpret_cast<const char*>(payload), bytes);
            found = text.substr(0, text.find('\0'));
            newest = architecture;
            if (found.find(".version") == std::string::npos)
                throw std::runtime_error("the PTX is compressed: nvcc needs --no-compress");
        }
        entry = payload + bytes;
    }
    if (found.empty()) throw std::runtime_error("there is no PTX: nvcc needs -gencode arch=compute_90,code=compute_90");
    return found;
}

/// The device code of a translation unit.
struct binary {
    std::string text;
    std::string problem; ///< why there is no text
    std::shared_ptr<ptx::module> module; ///< under the lock of `programs`
};

struct registered_kernel {
    std::shared_ptr<binary> in;
    std::string name;
    std::atomic<const ptx::kernel*> code{nullptr}; ///< null: not decoded yet
};

struct programs {
    std::shared_mutex guard;
    std::unordered_map<const void*, std::shared_ptr<registered_kernel>> kernels; ///< by the address on the host
    std::atomic<bool> counting{false};
    std::mutex taken_guard;
    ptx::counts taken; ///< since the last `take_counts`

    static programs& instance()
    {
        static programs* const own = new programs; // streams may work after static destructors
        return *own;
    }
};

void say(const std::string& name, const std::string& problem)
{
    std::fprintf(stderr, "emulated: %s: %s\n", name.c_str(), problem.c_str());
}

/// The decoded kernel; null, after a line on stderr, if there is none.
const ptx::kernel* code_of(registered_kernel& kernel)
{
    if (const ptx::kernel* const code = kernel.code.load(std::memory_order_acquire); code != nullptr) return code;
    const std::lock_guard lock(programs::instance().guard);
    if (const ptx::kernel* const code = kernel.code.load(std::memory_order_relaxed); code != nullptr) return code;
    try {
        binary& in = *kernel.in;
        if (!in.problem.empty()) throw std::runtime_error(in.problem);
        if (!in.module) in.module = ptx::load(in.text);
        const settings& given = settings::given();
        if (!given.drop.empty() && kernel.name.find(given.drop_in) != std::string::npos) {
            const bool dropped = ptx::replace(*in.module, kernel.name, given.drop, given.drop_number, given.put);
            say(kernel.name, (dropped ? "dropped " : "has no ") + given.drop);
        }
        const ptx::kernel* const code = ptx::find_kernel(*in.module, kernel.name);
        if (code == nullptr) say(kernel.name, "not in the PTX");
        kernel.code.store(code, std::memory_order_release);
        return code;
    } catch (const std::exception& problem) {
        say(kernel.name, problem.what());
        return nullptr;
    }
}

std::shared_ptr<registered_kernel> find_registered(const void* function)
{
    programs& all = programs::instance();
    const std::shared_lock lock(all.guard);
    const auto found = all.kernels.find(function);
    return found == all.kernels.end() ? nullptr : found->second;
}

ptx::memory_range find_range(std::uint64_t address)
{
    const live_memory found = find_memory(address);
    return {found.begin, found.begin + found.bytes};
}

constexpr std::size_t block_shared_bytes = 48 * 1024; ///< more is not asked for by any kernel

// --- Launches ---

/// A launch, and in a graph each of its launches.
struct launch_task {
    std::shared_ptr<registered_kernel> kernel;
    const ptx::kernel* code;
    ptx::dims grid, block;
    std::size_t dynamic_shared;
    std::vector<unsigned char> arguments;

    void operator()() const
    {
        static std::atomic<std::uint64_t> turn{0};
        const settings& given = settings::given();
        ptx::schedule how;
        if (given.seed != 0) how.seed = given.seed + turn.fetch_add(1, std::memory_order_relaxed);
        how.check = given.check;
        programs& all = programs::instance();
        how.count = all.counting.load(std::memory_order_relaxed);
        how.find_range = &find_range;
        try {
            const ptx::counts counted = ptx::run(*code, grid, block, dynamic_shared, arguments, how);
            const std::lock_guard lock(all.taken_guard);
            all.taken += counted;
        } catch (const std::exception& problem) {
            say(kernel->name, problem.what());
            throw; // which breaks the device, as a fault in a kernel does
        }
    }
};

cudaError_t check_configuration(const ptx::kernel& code, dim3 grid, dim3 block, std::size_t dynamic_shared)
{
    const ptx::dims blocks{grid.x, grid.y, grid.z}, threads{block.x, block.y, block.z};
    if (blocks.count() == 0 || grid.x > 0x7FFFFFFF || grid.y > 0xFFFF || grid.z > 0xFFFF)
        return cudaErrorInvalidConfiguration;
    if (threads.count() == 0 || threads.count() > 1024 || block.z > 64) return cudaErrorInvalidConfiguration;
    if (threads.count() > ptx::most_threads(code)) return cudaErrorLaunchOutOfResources;
    if (dynamic_shared + ptx::static_shared_bytes(code) > block_shared_bytes) return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t launch_kernel(
    const void* function, dim3 grid, dim3 block, void** arguments, std::size_t dynamic_shared, cudaStream_t stream)
{
    std::shared_ptr<registered_kernel> kernel = find_registered(function);
    if (!kernel) return finish(cudaErrorInvalidDeviceFunction);
    const ptx::kernel* const code = code_of(*kernel);
    if (code == nullptr) return finish(cudaErrorNoKernelImageForDevice);
    if (const cudaError_t wrong = check_configuration(*code, grid, block, dynamic_shared);
        wrong != cudaSuccess)
        return finish(wrong);
    std::vector<unsigned char> values(ptx::parameter_bytes(*code));
    const std::vector<ptx::parameter_place>& places = ptx::parameters(*code);
    for (std::size_t k = 0; k < places.size(); ++k)
        std::memcpy(values.data() + places[k].offset, arguments[k], places[k].bytes);
    return stand_in::launch(stream, function,
        launch_task{std::move(kernel), code, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, dynamic_shared,
            std::move(values)});
}

struct call_configuration {
    dim3 grid, block;
    std::size_t dynamic_shared;
    cudaStream_t stream;
};
thread_local std::vector<call_configuration> configurations; // of launches by <<<>>> whose arguments are being set up

// --- Attributes ---

constexpr int multiprocessors = 4;
constexpr int blocks_per_multiprocessor = 2;
constexpr std::size_t multiprocessor_shared_bytes = 228 * 1024;
constexpr std::size_t reserved_shared_bytes = 1024; ///< of each block
constexpr std::size_t device_bytes = std::size_t{1} << 30;

/// Of what the kernels' clock counts: the processor's time stamps. Measured once, in a millisecond.
int clock_kilohertz()
{
    static const int kilohertz = [] {
        using std::chrono::steady_clock;
        const auto start = steady_clock::now();
        const std::uint64_t first = __rdtsc();
        while (steady_clock::now() - start < std::chrono::milliseconds(1)) {}
        const double ticks = static_cast<double>(__rdtsc() - first);
        return static_cast<int>(ticks / std::chrono::duration<double, std::milli>(steady_clock::now() - start).count());
    }();
    return kilohertz;
}

bool attribute(int& value, cudaDeviceAttr what)
{
    switch (what) {
    case cudaDevAttrMultiProcessorCount: value = multiprocessors; break;
    case cudaDevAttrClockRate: value = clock_kilohertz(); break;
    default: return false; // nothing is guessed
    }
    return true;
}

cudaError_t find_code(const void* function)
{
    const std::shared_ptr<registered_kernel> kernel = find_registered(function);
    if (!kernel) return cudaErrorInvalidDeviceFunction;
    return code_of(*kernel) == nullptr ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

} // namespace

ptx::counts collprobe::testing::take_counts()
{
    programs& all = programs::instance();
    all.counting.store(true, std::memory_order_relaxed);
    const std::lock_guard lock(all.taken_guard);
    return std::exchange(all.taken, {});
}

extern "C" {

// What the host code of nvcc calls.

void** __cudaRegisterFatBinary(void* wrapper)
{
    struct {
        std::uint32_t magic, version;
        const unsigned char* data;
    } fields;
    std::memcpy(&fields, wrapper, sizeof fields);
    auto made = std::make_shared<binary>();
    try {
        made->text = find_ptx(fields.data);
    } catch (const std::exception& problem) {
        made->problem = problem.what(); // told when a kernel of it is wanted
    }
    find_kernels_by(&find_code);
    give_attributes_by(&attribute);
    return reinterpret_cast<void**>(new std::shared_ptr<binary>(std::move(made)));
}
void __cudaRegisterFatBinaryEnd(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaUnregisterFatBinary(void** handle)
{
    auto* const of = reinterpret_cast<std::shared_ptr<binary>*>(handle);
    programs& all = programs::instance();
    const std::lock_guard lock(all.guard);
    std::erase_if(all.kernels, [&](const auto& each) { return each.second->in == *of; });
    delete of;
}
void __cudaRegisterFunction(
    void** handle, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*)
{
    auto made = std::make_shared<registered_kernel>();
    made->in = *reinterpret_cast<std::shared_ptr<binary>*>(handle);
    made->name = name;
    programs& all = programs::instance();
    const std::lock_guard lock(all.guard);
    all.kernels.try_emplace(function, std::move(made)); // an instance of a template may be in several binaries
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_shared, cudaStream_t stream)
{
    configurations.push_back({grid, block, dynamic_shared, stream});
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic_shared, void* stream)
{
    if (configurations.empty()) return finish(cudaErrorMissingConfiguration);
    const call_configuration last = configurations.back();
    configurations.pop_back();
    *grid = last.grid;
    *block = last.block;
    *dynamic_shared = last.dynamic_shared;
    *static_cast<cudaStream_t*>(stream) = last.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function)
{
    *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(
    cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t dynamic_shared, cudaStream_t stream)
{
    return launch_kernel(kernel, grid, block, arguments, dynamic_shared, stream);
}

// Launches, and what is asked of kernels.

cudaError_t CUDARTAPI cudaLaunchKernel(
    const void* function, dim3 grid, dim3 block, void** arguments, size_t dynamic_shared, cudaStream_t stream)
{
    return launch_kernel(function, grid, block, arguments, dynamic_shared, stream);
}
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* function, int threads, size_t dynamic_shared, unsigned)
{
    STAND_IN_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
    const std::shared_ptr<registered_kernel> kernel = find_registered(function);
    if (!kernel) return finish(cudaErrorInvalidDeviceFunction);
    if (threads <= 0) return finish(cudaErrorInvalidValue);
    const ptx::kernel* const code = code_of(*kernel);
    if (code == nullptr) return finish(cudaErrorNoKernelImageForDevice);
    const std::size_t shared = ptx::static_shared_bytes(*code) + dynamic_shared;
    const bool fits
        = static_cast<unsigned>(threads) <= ptx::most_threads(*code) && shared <= block_shared_bytes;
    const std::size_t by_shared = multiprocessor_shared_bytes / (shared + reserved_shared_bytes);
    *blocks = fits ? static_cast<int>(std::min<std::size_t>(blocks_per_multiprocessor, by_shared)) : 0;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, const void* function, int threads, size_t dynamic_shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, dynamic_shared, 0);
}

// Devices.

cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal)
{
    STAND_IN_CALL(cudaGetDeviceProperties);
    if (ordinal < 0 || ordinal >= device_count()) return finish(cudaErrorInvalidDevice);
    *properties = {};
    std::strcpy(properties->name, "emulated");
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaMemGetInfo(size_t* free, size_t* total)
{
    STAND_IN_CALL(cudaMemGetInfo);
    const std::size_t used = allocated_bytes(current_device());
    *total = device_bytes;
    *free = used < *total ? *total - used : 0;
    return cudaSuccess;
}

} // extern "C"

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

#include "tests/support/stand_in/cuda_objects.hpp"
#include "tests/support/stand_in/runtime_internal.hpp"
#include "tests/support/stand_in/stand_in.hpp"

using namespace collprobe;
using namespace collprobe::stand_in;
using namespace collprobe::stand_in::detail;

namespace {

thread_local int this_threads_device = 0;
thread_local cudaError_t this_threads_error = cudaSuccess;
thread_local cudaStreamCaptureMode this_threads_mode = cudaStreamCaptureModeGlobal;

struct fake_device {
    std::atomic<int> broken{0};
    std::atomic<bool> has_context{false};
    std::atomic<bool> default_used{false};
    std::mutex guard;
    std::vector<CUstream_st*> streams;
    std::unique_ptr<CUstream_st> default_stream;
};

struct runtime {
    std::array<fake_device, most_devices> devices;
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); // empty: none
    std::atomic<int> count{visible != nullptr && *visible == '\0' ? 0 : 2};

    static runtime& instance()
    {
        static runtime own;
        return own;
    }

private:
    runtime() { (void)reaper::instance(); } // made first, so that it ends last
};

fake_device& device(int ordinal) { return runtime::instance().devices[static_cast<std::size_t>(ordinal)]; }

cudaError_t as_error(int code) { return static_cast<cudaError_t>(code); }

cudaError_t done(cudaError_t code)
{
    if (code != cudaSuccess) this_threads_error = code;
    return code;
}

// A task that threw is what a fault in a kernel is: the device is broken from then on.
template <class Body>
cudaError_t or_broken(int ordinal, Body body)
{
    try {
        return body();
    } catch (...) {
        device(ordinal).broken.store(cudaErrorLaunchFailure, std::memory_order_relaxed);
        return cudaErrorLaunchFailure;
    }
}

// --- Streams ---

CUstream_st* default_stream_of(int ordinal)
{
    fake_device& here = device(ordinal);
    const std::lock_guard lock(here.guard);
    if (!here.default_stream) {
        here.default_stream = std::make_unique<CUstream_st>(ordinal, false, true);
        here.default_used.store(true, std::memory_order_relaxed);
    }
    return here.default_stream.get();
}
CUstream_st* default_stream() { return default_stream_of(this_threads_device); }

CUstream_st* new_stream(int ordinal, bool blocking)
{
    auto* const made = new CUstream_st(ordinal, blocking, false);
    const std::lock_guard lock(device(ordinal).guard);
    device(ordinal).streams.push_back(made);
    return made;
}

void end_stream(CUstream_st* stream)
{
    {
        const std::lock_guard lock(device(stream->device).guard);
        std::erase(device(stream->device).streams, stream);
    }
    if (stream->capturing.load(std::memory_order_relaxed)) {
        const std::lock_guard lock(captures::instance().guard);
        if (stream->capture) {
            stream->capture->valid = false;
            stream->capture->members[stream->branch] = nullptr;
        }
    }
    delete stream;
}

struct per_thread_streams {
    std::array<CUstream_st*, most_devices> streams{};
    ~per_thread_streams()
    {
        for (CUstream_st* const stream : streams) {
            if (stream != nullptr) end_stream(stream);
        }
    }
};
thread_local per_thread_streams this_threads_streams;

CUstream_st* object(cudaStream_t handle)
{
    if (handle == nullptr || handle == cudaStreamLegacy) return default_stream();
    if (handle != cudaStreamPerThread) return handle;
    CUstream_st*& own = this_threads_streams.streams[static_cast<std::size_t>(this_threads_device)];
    if (own == nullptr) own = new_stream(this_threads_device, true);
    return own;
}

bool blocking_stream_captures(CUstream_st* default_one, bool invalidate)
{
    if (captures::instance().count.load(std::memory_order_relaxed) == 0) return false;
    const std::lock_guard lock(captures::instance().guard);
    bool found = false;
    const std::lock_guard device_lock(device(default_one->device).guard);
    for (CUstream_st* const stream : device(default_one->device).streams) {
        if (!stream->blocking || !stream->capture) continue;
        found = true;
        if (invalidate) stream->capture->valid = false;
    }
    return found;
}

// The implicit order between the default stream and those not created as non-blocking.
cudaError_t order_with_default(CUstream_st* stream)
{
    fake_device& here = device(stream->device);
    if (!here.default_used.load(std::memory_order_relaxed)) return cudaSuccess;
    if (stream->is_default) {
        if (blocking_stream_captures(stream, true)) return cudaErrorStreamCaptureImplicit;
        const std::lock_guard lock(here.guard);
        for (CUstream_st* const other : here.streams) {
            if (!other->blocking) continue;
            host::event edge;
            edge.record(*other->queue);
            stream->queue->wait(edge);
        }
    } else if (stream->blocking) {
        host::event edge;
        edge.record(*default_stream_of(stream->device)->queue);
        stream->queue->wait(edge);
    }
    return cudaSuccess;
}

// The end of the work that a host waits for with this stream, beside its own: the work of the streams that are ordered
// with it without events. The streams themselves are not ordered by it.
std::vector<host::event> ends_of_peers(CUstream_st* stream)
{
    std::vector<host::event> ends;
    fake_device& here = device(stream->device);
    if (stream->is_default) {
        const std::lock_guard lock(here.guard);
        for (CUstream_st* const other : here.streams) {
            if (other->blocking) ends.emplace_back().record(*other->queue);
        }
    } else if (stream->blocking && here.default_used.load(std::memory_order_relaxed)) {
        ends.emplace_back().record(*default_stream_of(stream->device)->queue);
    }
    return ends;
}

cudaError_t synchronize(CUstream_st* stream)
{
    return or_broken(stream->device, [stream] {
        for (const host::event& end : ends_of_peers(stream)) end.synchronize();
        stream->queue->synchronize();
        return cudaSuccess;
    });
}

// --- Captures ---

// A call that no mode allows on a stream that captures.
cudaError_t forbid_on_capturing(CUstream_st* stream)
{
    if (stream->is_default && blocking_stream_captures(stream, true)) return cudaErrorStreamCaptureImplicit;
    if (!stream->capturing.load(std::memory_order_relaxed)) return cudaSuccess;
    const std::lock_guard lock(captures::instance().guard);
    if (!stream->capture) return cudaSuccess;
    stream->capture->valid = false;
    return cudaErrorStreamCaptureUnsupported;
}

host::event recorded_in(CUevent_st* event)
{
    const std::lock_guard lock(event->guard);
    return event->recorded;
}

cudaError_t forbid_captured(CUevent_st* event)
{
    std::shared_ptr<captured_point> point;
    {
        const std::lock_guard lock(event->guard);
        point = event->captured;
    }
    if (!point) return cudaSuccess;
    const std::lock_guard lock(captures::instance().guard);
    if (!point->of->ended) point->of->valid = false;
    return cudaErrorCapturedEvent;
}

cudaError_t capture_state(CUstream_st* stream, cudaStreamCaptureStatus* state, unsigned long long* number)
{
    *state = cudaStreamCaptureStatusNone;
    if (stream->is_default && blocking_stream_captures(stream, false)) return cudaErrorStreamCaptureImplicit;
    if (!stream->capturing.load(std::memory_order_relaxed)) return cudaSuccess;
    const std::lock_guard lock(captures::instance().guard);
    if (!stream->capture) return cudaSuccess;
    *state = stream->capture->valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
    if (number != nullptr) *number = stream->capture->number;
    return cudaSuccess;
}

void join(CUstream_st* stream, const std::shared_ptr<capture>& into, frontier start)
{
    stream->capture = into;
    stream->branch = into->add_branch(stream, std::move(start));
    stream->capturing.store(true, std::memory_order_relaxed);
}

cudaError_t record_captured(CUevent_st* event, CUstream_st* stream)
{
    const std::lock_guard captures_lock(captures::instance().guard);
    capture& into = *stream->capture;
    if (!into.valid) return cudaErrorStreamCaptureInvalidated;
    auto point = std::make_shared<captured_point>();
    point->of = stream->capture;
    point->event = into.body.events++;
    point->reached = into.reached[stream->branch];
    into.body.operations.push_back({stream->branch, nullptr, point->event, true});
    const std::lock_guard lock(event->guard);
    event->captured = std::move(point);
    return cudaSuccess;
}

cudaError_t wait_captured(CUstream_st* stream, const std::shared_ptr<captured_point>& point)
{
    const std::lock_guard lock(captures::instance().guard);
    if (!stream->capture) {
        if (point->of->ended) return cudaErrorCapturedEvent;
        if (!point->of->valid) return cudaErrorStreamCaptureInvalidated;
        if (stream->is_default) return cudaErrorStreamCaptureImplicit;
        join(stream, point->of, {});
    }
    capture& into = *stream->capture;
    if (!into.valid) return cudaErrorStreamCaptureInvalidated;
    if (!point || point->of->ended) {
        into.valid = false;
        return cudaErrorStreamCaptureIsolation;
    }
    if (point->of != stream->capture) {
        into.valid = false;
        point->of->valid = false;
        return cudaErrorStreamCaptureMerge;
    }
    into.body.operations.push_back({stream->branch, nullptr, point->event, false});
    merge(into.reached[stream->branch], point->reached);
    return cudaSuccess;
}

// --- Memory ---

struct allocation {
    std::size_t bytes = 0;
    cudaMemoryType type = cudaMemoryTypeUnregistered;
    int device = 0;
    memory_origin origin = memory_origin::allocation;
};

struct memory_table {
    std::mutex guard;
    std::map<std::uintptr_t, allocation> live; // by first address

    // The allocation that holds `address`. For a caller that has the lock.
    std::map<std::uintptr_t, allocation>::const_iterator find(std::uintptr_t address) const
    {
        auto found = live.upper_bound(address);
        if (found == live.begin()) return live.end();
        --found;
        return address - found->first < found->second.bytes ? found : live.end();
    }

    static memory_table& instance()
    {
        static memory_table* const own = new memory_table; // buffers may outlive static destructors
        return *own;
    }
};

// Makes memory known that the runtime did not allocate itself.
cudaError_t add_memory(void* memory, std::size_t bytes, cudaMemoryType type, memory_origin origin)
{
    memory_table& table = memory_table::instance();
    const auto first = reinterpret_cast<std::uintptr_t>(memory);
    const std::lock_guard lock(table.guard);
    const auto next = table.live.upper_bound(first);
    const bool is_known
        = table.find(first) != table.live.end() || (next != table.live.end() && next->first - first < bytes);
    if (is_known || bytes == 0) return cudaErrorInvalidValue;
    table.live[first] = {bytes, type, this_threads_device, origin};
    return cudaSuccess;
}

cudaError_t remove_memory(void* memory, memory_origin origin)
{
    memory_table& table = memory_table::instance();
    const std::lock_guard lock(table.guard);
    const auto found = table.live.find(reinterpret_cast<std::uintptr_t>(memory));
    if (found == table.live.end() || found->second.origin != origin) return cudaErrorInvalidValue;
    table.live.erase(found);
    return cudaSuccess;
}

cudaError_t allocate(
    void** memory, std::size_t bytes, cudaMemoryType type, memory_origin origin = memory_origin::allocation)
{
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    constexpr std::size_t most_bytes = std::size_t{1} << 36;
    if (bytes > most_bytes || posix_memalign(memory, 256, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*memory, 0xFF, bytes);
    const std::lock_guard lock(memory_table::instance().guard);
    memory_table::instance().live[reinterpret_cast<std::uintptr_t>(*memory)]
        = {bytes, type, this_threads_device, origin};
    return cudaSuccess;
}

/// Whether a range that begins in memory of a device ends behind that.
bool leaves_memory(const void* begin, std::size_t bytes)
{
    const auto first = reinterpret_cast<std::uintptr_t>(begin);
    memory_table& table = memory_table::instance();
    const std::lock_guard lock(table.guard);
    const auto found = table.find(first);
    return found != table.live.end() && found->second.type != cudaMemoryTypeHost
        && bytes > found->first + found->second.bytes - first;
}

// Bytes of `cudaMemcpy` from pageable memory that have not arrived.
std::atomic<int> uploads_under_way{0};

// Does not wait for the device, as cudaFree mostly does: that must not be relied on, and work that
// still uses the memory is found by the sanitizers.
cudaError_t deallocate(void* memory, cudaMemoryType type)
{
    if (memory == nullptr) return cudaSuccess;
    std::size_t bytes = 0;
    {
        const std::lock_guard lock(memory_table::instance().guard);
        const auto found = memory_table::instance().live.find(reinterpret_cast<std::uintptr_t>(memory));
        if (found == memory_table::instance().live.end()) return cudaErrorInvalidValue;
        const bool managed = found->second.type == cudaMemoryTypeManaged && type == cudaMemoryTypeDevice;
        if (found->second.type != type && !managed) return cudaErrorInvalidValue;
        const bool is_own
            = found->second.origin == memory_origin::allocation || found->second.origin == memory_origin::pool;
        if (!is_own) return cudaErrorInvalidValue;
        bytes = found->second.bytes;
        memory_table::instance().live.erase(found);
    }
    std::memset(memory, 0xDD, bytes);
    std::free(memory);
    return cudaSuccess;
}

// --- Kernels ---

struct kernel_table {
    std::mutex guard;
    std::set<std::pair<const void*, int>> loaded;
    std::atomic<std::uint64_t> behind_work{0};
    std::atomic<find_function> find{nullptr};

    static kernel_table& instance()
    {
        static kernel_table own;
        return own;
    }
};

/// Whether it was not loaded before on the current device. A thread asks once, so that launches do not
/// order threads.
bool load_here(const void* kernel)
{
    thread_local std::set<std::pair<const void*, int>> known;
    const std::pair key(kernel, this_threads_device);
    if (known.contains(key)) return false;
    known.insert(key);
    kernel_table& table = kernel_table::instance();
    const std::lock_guard lock(table.guard);
    return table.loaded.insert(key).second;
}

bool has_unfinished_work(fake_device& on)
{
    const std::lock_guard lock(on.guard);
    const auto is_busy = [](const CUstream_st* stream) { return !stream->queue->query(); };
    return std::any_of(on.streams.begin(), on.streams.end(), is_busy)
        || (on.default_stream && is_busy(on.default_stream.get()));
}

} // namespace

// --- What the files of the runtime share ---

namespace collprobe::stand_in::detail {

int current_device() { return this_threads_device; }
int device_count() { return runtime::instance().count.load(std::memory_order_relaxed); }

void enter_context() { device(this_threads_device).has_context.store(true, std::memory_order_relaxed); }

cudaError_t broken_here() { return as_error(device(this_threads_device).broken.load(std::memory_order_relaxed)); }

// Forbidden where the documentation of cudaThreadExchangeStreamCaptureMode says so, and the capture is lost then.
cudaError_t forbid_during_capture()
{
    captures& all = captures::instance();
    if (this_threads_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    if (all.count.load(std::memory_order_relaxed) == 0) return cudaSuccess;
    const std::lock_guard lock(all.guard);
    cudaError_t result = cudaSuccess;
    for (const auto& running : all.active) {
        const bool own = running->owner == std::this_thread::get_id();
        const bool forbids = own
            ? running->mode != cudaStreamCaptureModeRelaxed
            : running->mode == cudaStreamCaptureModeGlobal && this_threads_mode == cudaStreamCaptureModeGlobal;
        if (!forbids) continue;
        running->valid = false;
        result = cudaErrorStreamCaptureUnsupported;
    }
    return result;
}

live_memory find_memory(std::uintptr_t address)
{
    memory_table& table = memory_table::instance();
    const std::lock_guard lock(table.guard);
    const auto found = table.find(address);
    return found == table.live.end() ? live_memory{} : live_memory{found->first, found->second.bytes};
}

std::size_t allocated_bytes(int on)
{
    memory_table& table = memory_table::instance();
    const std::lock_guard lock(table.guard);
    std::size_t sum = 0;
    for (const auto& [begin, each] : table.live) {
        if (each.type != cudaMemoryTypeHost && each.device == on) sum += each.bytes;
    }
    return sum;
}

void find_kernels_by(find_function find) { kernel_table::instance().find.store(find); }

namespace {
std::atomic<attribute_function> give_attribute{nullptr};
std::atomic<bool> reads_pageable{false};
} // namespace

void give_attributes_by(attribute_function give) { give_attribute.store(give); }

} // namespace collprobe::stand_in::detail

// --- What tests see ---

namespace collprobe::stand_in {

void set_device_count(int count) { runtime::instance().count.store(std::min(count, most_devices)); }

void set_reads_pageable(bool reads) { detail::reads_pageable.store(reads); }

bool has_context(int ordinal) { return device(ordinal).has_context.load(std::memory_order_relaxed); }

void forget_contexts()
{
    for (fake_device& each : runtime::instance().devices) each.has_context.store(false, std::memory_order_relaxed);
}

std::uint64_t loads_behind_work() { return kernel_table::instance().behind_work.load(std::memory_order_relaxed); }

void reset()
{
    kernel_table::instance().behind_work.store(0, std::memory_order_relaxed);
    detail::reads_pageable.store(false);
    detail::reset_scripts();
    for (fake_device& each : runtime::instance().devices) each.broken.store(0);
    this_threads_error = cudaSuccess;
}

void drain_destroyed_streams() { reaper::instance().drain(); }

std::size_t live_allocations()
{
    const std::lock_guard lock(memory_table::instance().guard);
    return memory_table::instance().live.size();
}

lent_memory::lent_memory(void* memory, std::size_t bytes, cudaMemoryType type, memory_origin origin)
    : memory_(memory), origin_(origin)
{
    if (add_memory(memory, bytes, type, origin) != cudaSuccess) throw std::invalid_argument("known already, or empty");
}
lent_memory::~lent_memory() { (void)remove_memory(memory_, origin_); }

namespace detail {

cudaError_t finish(cudaError_t code) { return done(code); }

cudaError_t resolve(cudaStream_t on, target& to)
{
    CUstream_st* const stream = object(on);
    if (stream->capturing.load(std::memory_order_relaxed)) return cudaSuccess;
    if (const cudaError_t code = order_with_default(stream); code != cudaSuccess) return code;
    to.stream = *stream->queue;
    return cudaSuccess;
}

cudaError_t append(cudaStream_t on, std::function<void(host::stream_ref)> issue)
{
    CUstream_st* const stream = object(on);
    const std::lock_guard lock(captures::instance().guard);
    if (!stream->capture || !stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
    stream->capture->add_work(stream->branch, std::move(issue));
    return cudaSuccess;
}

cudaError_t enter_launch(cudaStream_t on, const void* kernel)
{
    static scripted& own = scripted::named("cudaLaunchKernel");
    if (const int code = own.enter(); code != 0) return as_error(code);
    enter_context();
    if (const cudaError_t broken = broken_here(); broken != cudaSuccess) return broken;
    if (object(on)->device != this_threads_device) return cudaErrorInvalidResourceHandle;
    if (load_here(kernel) && has_unfinished_work(device(this_threads_device)))
        kernel_table::instance().behind_work.fetch_add(1, std::memory_order_relaxed);
    return cudaSuccess;
}

} // namespace detail

} // namespace collprobe::stand_in

// --- The runtime's functions ---

extern "C" {

// Errors and devices.

cudaError_t CUDARTAPI cudaGetLastError(void)
{
    const cudaError_t code = this_threads_error;
    this_threads_error = broken_here();
    return code;
}
cudaError_t CUDARTAPI cudaPeekAtLastError(void) { return this_threads_error; }

const char* CUDARTAPI cudaGetErrorName(cudaError_t code)
{
#define STAND_IN_NAME(name) if (code == name) return #name
    STAND_IN_NAME(cudaSuccess);
    STAND_IN_NAME(cudaErrorInvalidValue);
    STAND_IN_NAME(cudaErrorMemoryAllocation);
    STAND_IN_NAME(cudaErrorInvalidDevice);
    STAND_IN_NAME(cudaErrorNoDevice);
    STAND_IN_NAME(cudaErrorInvalidResourceHandle);
    STAND_IN_NAME(cudaErrorIllegalAddress);
    STAND_IN_NAME(cudaErrorECCUncorrectable);
    STAND_IN_NAME(cudaErrorLaunchFailure);
    STAND_IN_NAME(cudaErrorStreamCaptureUnsupported);
    STAND_IN_NAME(cudaErrorStreamCaptureInvalidated);
    STAND_IN_NAME(cudaErrorStreamCaptureIsolation);
    STAND_IN_NAME(cudaErrorStreamCaptureImplicit);
#undef STAND_IN_NAME
    return "unrecognized error code";
}
const char* CUDARTAPI cudaGetErrorString(cudaError_t) { return "said by the stand-in"; }

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count)
{
    STAND_IN_CALL_WITHOUT_CONTEXT(cudaGetDeviceCount);
    *count = device_count();
    return done(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}
cudaError_t CUDARTAPI cudaGetDevice(int* ordinal)
{
    STAND_IN_CALL_WITHOUT_CONTEXT(cudaGetDevice);
    *ordinal = this_threads_device;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaSetDevice(int ordinal)
{
    STAND_IN_CALL_WITHOUT_CONTEXT(cudaSetDevice);
    if (ordinal < 0 || ordinal >= device_count()) return done(cudaErrorInvalidDevice);
    this_threads_device = ordinal;
    enter_context();
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceSynchronize(void)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaDeviceSynchronize);
    std::vector<host::event> ends;
    {
        fake_device& here = device(this_threads_device);
        const std::lock_guard lock(here.guard);
        for (CUstream_st* const stream : here.streams) ends.emplace_back().record(*stream->queue);
        if (here.default_stream) ends.emplace_back().record(*here.default_stream->queue);
    }
    return done(or_broken(this_threads_device, [&ends] {
        for (const host::event& end : ends) end.synchronize();
        return cudaSuccess;
    }));
}
cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

// The driver's functions that the library looks up.
static int primary_context_state(int ordinal, unsigned int* flags, int* active)
{
    constexpr int invalid_device = 101;
    if (ordinal < 0 || ordinal >= device_count()) return invalid_device;
    *flags = 0;
    *active = has_context(ordinal) ? 1 : 0;
    return 0;
}
// With ints for the enumerations, as the library calls it: UndefinedBehaviorSanitizer compares the types.
static int pointer_attributes(unsigned int count, int* attributes, void** values, unsigned long long address)
{
    static scripted& own_script = scripted::named("cuPointerGetAttributes");
    if (const int code = own_script.enter(); code != 0) return code;
    memory_table& table = memory_table::instance();
    const std::lock_guard lock(table.guard);
    const auto found = table.find(static_cast<std::uintptr_t>(address));
    const bool is_known = found != table.live.end();
    const allocation of = is_known ? found->second : allocation{};
    for (unsigned int i = 0; i < count; ++i) {
        switch (attributes[i]) {
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *static_cast<CUdeviceptr*>(values[i]) = is_known ? found->first : 0;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<std::size_t*>(values[i]) = of.bytes; break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *static_cast<unsigned int*>(values[i]) = !is_known ? 0u
                : of.type == cudaMemoryTypeHost                ? unsigned{CU_MEMORYTYPE_HOST}
                                                               : unsigned{CU_MEMORYTYPE_DEVICE};
            break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            *static_cast<unsigned int*>(values[i]) = of.type == cudaMemoryTypeManaged ? 1 : 0;
            break;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            *static_cast<unsigned int*>(values[i])
                = of.type == cudaMemoryTypeDevice && of.origin == memory_origin::allocation ? 1 : 0;
            break;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            *static_cast<void**>(values[i]) = of.origin == memory_origin::pool ? &table : nullptr;
            break;
        default: return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}
[[maybe_unused]] static cudaError_t find_driver_function(
    const std::string& name, void** function, cudaDriverEntryPointQueryResult* status)
{
    STAND_IN_CALL_WITHOUT_CONTEXT(cudaGetDriverEntryPoint);
    *function = name == "cuDevicePrimaryCtxGetState" ? reinterpret_cast<void*>(&primary_context_state)
        : name == "cuPointerGetAttributes"           ? reinterpret_cast<void*>(&pointer_attributes)
                                                     : nullptr;
    *status = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
#if CUDART_VERSION >= 12050
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned int, unsigned long long, cudaDriverEntryPointQueryResult* status)
{
    return find_driver_function(name, function, status);
}
#else
cudaError_t CUDARTAPI cudaGetDriverEntryPoint(
    const char* name, void** function, unsigned long long, cudaDriverEntryPointQueryResult* status)
{
    return find_driver_function(name, function, status);
}
#endif

// Kernels.

cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaFuncGetAttributes);
    *attributes = {};
    (void)load_here(kernel);
    const find_function find = kernel_table::instance().find.load();
    return done(find == nullptr ? cudaSuccess : find(kernel));
}

// Memory.

cudaError_t CUDARTAPI cudaMalloc(void** memory, size_t bytes)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaMalloc);
    return done(allocate(memory, bytes, cudaMemoryTypeDevice));
}
cudaError_t CUDARTAPI cudaMallocPitch(void** memory, size_t* pitch, size_t width, size_t height)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaMallocPitch);
    *pitch = (width + 511) / 512 * 512;
    return done(allocate(memory, *pitch * height, cudaMemoryTypeDevice));
}
cudaError_t CUDARTAPI cudaFree(void* memory)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaFree);
    // For the caller such a copy was over: its memory may be freed.
    while (uploads_under_way.load() != 0) std::this_thread::yield();
    return done(deallocate(memory, cudaMemoryTypeDevice));
}
cudaError_t CUDARTAPI cudaMallocAsync(void** memory, size_t bytes, cudaStream_t)
{
    STAND_IN_CALL(cudaMallocAsync);
    return done(allocate(memory, bytes, cudaMemoryTypeDevice, memory_origin::pool));
}
cudaError_t CUDARTAPI cudaFreeAsync(void* memory, cudaStream_t stream)
{
    STAND_IN_CALL(cudaFreeAsync);
    return enqueue(stream, [memory] { (void)deallocate(memory, cudaMemoryTypeDevice); });
}
cudaError_t CUDARTAPI cudaMallocManaged(void** memory, size_t bytes, unsigned int)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaMallocManaged);
    return done(allocate(memory, bytes, cudaMemoryTypeManaged));
}
cudaError_t CUDARTAPI cudaMallocHost(void** memory, size_t bytes)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaMallocHost);
    return done(allocate(memory, bytes, cudaMemoryTypeHost));
}
cudaError_t CUDARTAPI cudaHostAlloc(void** memory, size_t bytes, unsigned int)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaHostAlloc);
    return done(allocate(memory, bytes, cudaMemoryTypeHost));
}
cudaError_t CUDARTAPI cudaFreeHost(void* memory)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaFreeHost);
    return done(deallocate(memory, cudaMemoryTypeHost));
}
cudaError_t CUDARTAPI cudaHostRegister(void* memory, size_t bytes, unsigned int)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaHostRegister);
    return done(add_memory(memory, bytes, cudaMemoryTypeHost, memory_origin::registration));
}
cudaError_t CUDARTAPI cudaHostUnregister(void* memory)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaHostUnregister);
    return done(remove_memory(memory, memory_origin::registration));
}
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int ordinal)
{
    STAND_IN_CALL(cudaDeviceGetAttribute);
    if (ordinal < 0 || ordinal >= device_count()) return finish(cudaErrorInvalidDevice);
    if (what == cudaDevAttrPageableMemoryAccess) *value = reads_pageable.load() ? 1 : 0;
    else if (const attribute_function give = give_attribute.load(); give == nullptr || !give(*value, what))
        return finish(cudaErrorInvalidValue);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory)
{
    STAND_IN_CALL(cudaPointerGetAttributes);
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2; // cudaInvalidDeviceId
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    memory_table& table = memory_table::instance();
    const std::lock_guard lock(table.guard);
    const auto found = table.find(address);
    if (found == table.live.end()) return cudaSuccess;
    attributes->type = found->second.type;
    attributes->device = found->second.device;
    attributes->devicePointer = const_cast<void*>(memory);
    if (found->second.type == cudaMemoryTypeHost) attributes->hostPointer = const_cast<void*>(memory);
    return cudaSuccess;
}
} // extern "C"

namespace {

// Rows of bytes with a distance between them; a plain copy has one.
struct rows {
    const void* first;
    std::size_t width;
    std::size_t pitch;
    std::size_t height;

    std::size_t extent() const { return width == 0 || height == 0 ? 0 : (height - 1) * pitch + width; }
    bool is_wrong() const { return first == nullptr || pitch < width || leaves_memory(first, extent()); }
    unsigned char* row(std::size_t number) const
    {
        return static_cast<unsigned char*>(const_cast<void*>(first)) + number * pitch;
    }
};
cudaMemoryType type_of(const void* memory)
{
    cudaPointerAttributes attributes{};
    (void)cudaPointerGetAttributes(&attributes, memory);
    return attributes.type;
}
bool is_pageable(const void* memory) { return type_of(memory) == cudaMemoryTypeUnregistered; }
bool is_on_host(const void* memory) { return is_pageable(memory) || type_of(memory) == cudaMemoryTypeHost; }
bool captures_now(cudaStream_t stream) { return object(stream)->capturing.load(std::memory_order_relaxed); }

// From pageable memory to a device: the call returns when it has read the source, behind all earlier work of the
// stream; the bytes arrive later. Work of a stream that does not wait for the default stream may be there before them.
cudaError_t copy_staged(const rows& to, const rows& from, cudaStream_t stream)
{
    if (const cudaError_t code = synchronize(object(stream)); code != cudaSuccess) return done(code);
    auto staged = std::make_shared<std::vector<unsigned char>>(to.width * to.height);
    for (std::size_t row = 0; row < to.height; ++row)
        std::memcpy(staged->data() + row * to.width, from.row(row), to.width);
    uploads_under_way.fetch_add(1);
    const cudaError_t code = enqueue(stream, [to, staged] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1)); // what does not wait for it is to be seen
        for (std::size_t row = 0; row < to.height; ++row)
            std::memcpy(to.row(row), staged->data() + row * to.width, to.width);
        uploads_under_way.fetch_sub(1);
    });
    if (code != cudaSuccess) uploads_under_way.fetch_sub(1);
    return code;
}

// Host to host waits in either form, device to device in none.
cudaError_t copy(const rows& to, const rows& from, cudaStream_t stream, bool is_async)
{
    if (to.extent() == 0) return cudaSuccess;
    if (to.is_wrong() || from.is_wrong()) return done(cudaErrorInvalidValue);
    const bool within_host = is_on_host(to.first) && is_on_host(from.first);
    if (!is_async && !is_on_host(to.first) && is_pageable(from.first)) return copy_staged(to, from, stream);
    const cudaError_t code = enqueue(stream, [to, from] {
        for (std::size_t row = 0; row < to.height; ++row) std::memcpy(to.row(row), from.row(row), to.width);
    });
    const bool within_device = !is_on_host(to.first) && !is_on_host(from.first);
    const bool waits = is_async ? within_host && !captures_now(stream) : !within_device;
    return code != cudaSuccess || !waits ? code : done(synchronize(object(stream)));
}
cudaError_t fill(const rows& to, int value, cudaStream_t stream, bool is_async)
{
    if (to.extent() == 0) return cudaSuccess;
    if (to.is_wrong()) return done(cudaErrorInvalidValue);
    const cudaError_t code = enqueue(stream, [to, value] {
        for (std::size_t row = 0; row < to.height; ++row) std::memset(to.row(row), value, to.width);
    });
    if (code != cudaSuccess || is_async || type_of(to.first) == cudaMemoryTypeDevice) return code;
    return done(synchronize(object(stream)));
}

} // namespace

extern "C" {

cudaError_t CUDARTAPI cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
    STAND_IN_CALL(cudaMemcpyAsync);
    return copy({to, bytes, bytes, 1}, {from, bytes, bytes, 1}, stream, true);
}
cudaError_t CUDARTAPI cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
    size_t height, cudaMemcpyKind, cudaStream_t stream)
{
    STAND_IN_CALL(cudaMemcpy2DAsync);
    return copy({to, width, to_pitch, height}, {from, width, from_pitch, height}, stream, true);
}
cudaError_t CUDARTAPI cudaMemcpyPeerAsync(
    void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream)
{
    STAND_IN_CALL(cudaMemcpyPeerAsync);
    if (std::max(to_device, from_device) >= device_count()) return done(cudaErrorInvalidDevice);
    return copy({to, bytes, bytes, 1}, {from, bytes, bytes, 1}, stream, true);
}
cudaError_t CUDARTAPI cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream)
{
    STAND_IN_CALL(cudaMemsetAsync);
    return fill({to, bytes, bytes, 1}, value, stream, true);
}
cudaError_t CUDARTAPI cudaMemset2DAsync(
    void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream)
{
    STAND_IN_CALL(cudaMemset2DAsync);
    return fill({to, width, pitch, height}, value, stream, true);
}
cudaError_t CUDARTAPI cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaMemcpy);
    return copy({to, bytes, bytes, 1}, {from, bytes, bytes, 1}, nullptr, false);
}
cudaError_t CUDARTAPI cudaMemcpy2D(
    void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaMemcpy2D);
    return copy({to, width, to_pitch, height}, {from, width, from_pitch, height}, nullptr, false);
}
cudaError_t CUDARTAPI cudaMemset(void* to, int value, size_t bytes)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaMemset);
    return fill({to, bytes, bytes, 1}, value, nullptr, false);
}
cudaError_t CUDARTAPI cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaMemset2D);
    return fill({to, width, pitch, height}, value, nullptr, false);
}

// Streams.

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags)
{
    STAND_IN_CALL(cudaStreamCreateWithFlags);
    *stream = new_stream(this_threads_device, (flags & cudaStreamNonBlocking) == 0);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int)
{
    STAND_IN_CALL(cudaStreamCreateWithPriority);
    *stream = new_stream(this_threads_device, (flags & cudaStreamNonBlocking) == 0);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream)
{
    STAND_IN_CALL(cudaStreamCreate);
    *stream = new_stream(this_threads_device, true);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream)
{
    STAND_IN_CALL_ON_ANY_DEVICE(cudaStreamDestroy);
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
        return done(cudaErrorInvalidResourceHandle);
    }
    end_stream(stream);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamGetId(cudaStream_t stream, unsigned long long* number)
{
    STAND_IN_CALL(cudaStreamGetId);
    if (captures_now(stream)) return done(cudaErrorStreamCaptureUnsupported);
    *number = object(stream)->number;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags)
{
    STAND_IN_CALL(cudaStreamGetFlags);
    const CUstream_st* const of = object(stream);
    *flags = of->blocking || of->is_default ? cudaStreamDefault : cudaStreamNonBlocking;
    return cudaSuccess;
}
#if CUDART_VERSION >= 12080
cudaError_t CUDARTAPI cudaStreamGetDevice(cudaStream_t stream, int* ordinal)
{
    STAND_IN_CALL(cudaStreamGetDevice);
    *ordinal = object(stream)->device;
    return cudaSuccess;
}
#endif
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t handle)
{
    STAND_IN_CALL(cudaStreamSynchronize);
    CUstream_st* const stream = object(handle);
    if (const cudaError_t code = forbid_on_capturing(stream); code != cudaSuccess) return done(code);
    if (const cudaError_t code = forbid_during_capture(); code != cudaSuccess) return done(code);
    return done(synchronize(stream));
}
cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t handle)
{
    STAND_IN_CALL(cudaStreamQuery);
    CUstream_st* const stream = object(handle);
    if (const cudaError_t code = forbid_on_capturing(stream); code != cudaSuccess) return done(code);
    if (const cudaError_t code = forbid_during_capture(); code != cudaSuccess) return done(code);
    return done(or_broken(stream->device, [stream] {
        std::vector<host::event> ends = ends_of_peers(stream);
        ends.emplace_back().record(*stream->queue);
        const auto is_over = [](const host::event& end) { return end.query(); };
        return std::all_of(ends.begin(), ends.end(), is_over) ? cudaSuccess : cudaErrorNotReady;
    }));
}
cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int)
{
    STAND_IN_CALL(cudaStreamWaitEvent);
    CUstream_st* const stream = object(handle);
    host::event recorded;
    std::shared_ptr<captured_point> captured;
    {
        const std::lock_guard lock(event->guard);
        recorded = event->recorded;
        captured = event->captured;
    }
    if (captured || stream->capturing.load(std::memory_order_relaxed)) return done(wait_captured(stream, captured));
    if (!recorded.recorded()) return cudaSuccess; // as CUDA does: there is nothing to wait for
    if (const cudaError_t code = order_with_default(stream); code != cudaSuccess) return done(code);
    stream->queue->wait(recorded);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument)
{
    STAND_IN_CALL(cudaLaunchHostFunc);
    return enqueue(stream, [function, argument] { function(argument); });
}

// Events.

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags)
{
    STAND_IN_CALL(cudaEventCreateWithFlags);
    *event = new CUevent_st(this_threads_device, (flags & cudaEventDisableTiming) == 0);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event)
{
    STAND_IN_CALL_ON_ANY_DEVICE(cudaEventDestroy);
    delete event;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    STAND_IN_CALL(cudaEventRecord);
    CUstream_st* const stream = object(handle);
    if (stream->device != event->device) return done(cudaErrorInvalidResourceHandle);
    if (stream->capturing.load(std::memory_order_relaxed)) return done(record_captured(event, stream));
    if (const cudaError_t code = order_with_default(stream); code != cudaSuccess) return done(code);
    const std::lock_guard lock(event->guard);
    if (event->timed) {
        event->passed = std::make_shared<CUevent_st::time_point>();
        stream->queue->enqueue([at = event->passed] { *at = std::chrono::steady_clock::now(); });
    }
    event->recorded.record(*stream->queue);
    event->captured.reset();
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaEventQuery);
    if (const cudaError_t code = forbid_captured(event); code != cudaSuccess) return done(code);
    return done(or_broken(event->device, [recorded = recorded_in(event)] {
        return !recorded.recorded() || recorded.query() ? cudaSuccess : cudaErrorNotReady;
    }));
}
cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event)
{
    STAND_IN_CALL_OUTSIDE_CAPTURES(cudaEventSynchronize);
    if (const cudaError_t code = forbid_captured(event); code != cudaSuccess) return done(code);
    return done(or_broken(event->device, [recorded = recorded_in(event)] {
        if (recorded.recorded()) recorded.synchronize();
        return cudaSuccess;
    }));
}
cudaError_t CUDARTAPI cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    STAND_IN_CALL(cudaEventElapsedTime);
    CUevent_st::time_point times[2];
    for (int which = 0; which < 2; ++which) {
        CUevent_st* const event = which == 0 ? from : to;
        if (!event->timed) return done(cudaErrorInvalidResourceHandle);
        if (const cudaError_t code = forbid_captured(event); code != cudaSuccess) return done(code);
        const std::lock_guard lock(event->guard);
        if (!event->passed) return done(cudaErrorInvalidResourceHandle);
        const cudaError_t state
            = or_broken(event->device, [event] { return event->recorded.query() ? cudaSuccess : cudaErrorNotReady; });
        if (state != cudaSuccess) return done(state);
        times[which] = *event->passed;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
    return cudaSuccess;
}

// Captures and graphs.

cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode)
{
    STAND_IN_CALL_ON_ANY_DEVICE(cudaThreadExchangeStreamCaptureMode);
    std::swap(*mode, this_threads_mode);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* state)
{
    STAND_IN_CALL(cudaStreamIsCapturing);
    return done(capture_state(object(stream), state, nullptr));
}

namespace {
cudaError_t get_capture_info(cudaStream_t stream, cudaStreamCaptureStatus* state, unsigned long long* number)
{
    STAND_IN_CALL(cudaStreamGetCaptureInfo);
    return done(capture_state(object(stream), state, number));
}
} // namespace
#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* state,
    unsigned long long* number, cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*)
#else
// The headers of CUDA 12 call this cudaStreamGetCaptureInfo_v2 by a macro.
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* state,
    unsigned long long* number, cudaGraph_t*, const cudaGraphNode_t**, size_t*)
#endif
{
    return get_capture_info(stream, state, number);
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode)
{
    STAND_IN_CALL(cudaStreamBeginCapture);
    CUstream_st* const stream = object(handle);
    if (stream->is_default) return done(cudaErrorStreamCaptureUnsupported);
    captures& all = captures::instance();
    const std::lock_guard lock(all.guard);
    if (stream->capture) return done(cudaErrorIllegalState);
    auto begun = std::make_shared<capture>();
    begun->mode = mode;
    begun->number = all.next_number++;
    begun->owner = std::this_thread::get_id();
    join(stream, begun, {});
    all.active.push_back(std::move(begun));
    all.count.store(static_cast<unsigned>(all.active.size()), std::memory_order_relaxed);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph)
{
    STAND_IN_CALL(cudaStreamEndCapture);
    *graph = nullptr;
    CUstream_st* const stream = object(handle);
    captures& all = captures::instance();
    const std::lock_guard lock(all.guard);
    const std::shared_ptr<capture> ending = stream->capture;
    if (!ending) return done(cudaErrorIllegalState);
    if (ending->mode != cudaStreamCaptureModeRelaxed && ending->owner != std::this_thread::get_id()) {
        return done(cudaErrorStreamCaptureWrongThread);
    }
    if (stream->branch != 0) {
        ending->valid = false;
        return done(cudaErrorStreamCaptureUnmatched);
    }
    ending->ended = true;
    for (CUstream_st* const member : ending->members) {
        if (member == nullptr) continue;
        member->capturing.store(false, std::memory_order_relaxed);
        member->capture.reset();
    }
    std::erase(all.active, ending);
    all.count.store(static_cast<unsigned>(all.active.size()), std::memory_order_relaxed);
    if (!ending->valid) return done(cudaErrorStreamCaptureInvalidated);
    if (!ending->joined()) return done(cudaErrorStreamCaptureUnjoined);
    *graph = new CUgraph_st{std::make_shared<const graph_body>(std::move(ending->body))};
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphInstantiateWithFlags(cudaGraphExec_t* runnable, cudaGraph_t graph, unsigned long long)
{
    STAND_IN_CALL(cudaGraphInstantiateWithFlags);
    if (graph == nullptr) return done(cudaErrorInvalidValue);
    *runnable = new CUgraphExec_st(graph->body);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* runnable, cudaGraph_t graph, unsigned long long)
{
    return cudaGraphInstantiateWithFlags(runnable, graph, 0);
}
cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t runnable, cudaStream_t handle)
{
    STAND_IN_CALL(cudaGraphLaunch);
    CUstream_st* const stream = object(handle);
    if (stream->capturing.load(std::memory_order_relaxed)) return done(cudaErrorNotSupported); // a graph in a graph
    if (const cudaError_t code = order_with_default(stream); code != cudaSuccess) return done(code);
    runnable->launch(*stream->queue);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t runnable)
{
    STAND_IN_CALL_ON_ANY_DEVICE(cudaGraphExecDestroy);
    delete runnable;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph)
{
    STAND_IN_CALL_ON_ANY_DEVICE(cudaGraphDestroy);
    delete graph;
    return cudaSuccess;
}

} // extern "C"

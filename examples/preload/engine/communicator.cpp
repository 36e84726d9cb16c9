// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include "communicator.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <exception>
#include <optional>
#include <utility>

#include <collprobe/comm/cuda/nvtx_ranges.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/overlap.hpp>
#include <collprobe/device/cuda/detail/allocation.hpp>
#include <collprobe/device/cuda/error.hpp>

#include "live_channel.hpp"
#include "nccl_calls.hpp"

namespace collprobe_preload {

namespace cuda = collprobe::cuda;
using collprobe::collective;
using collprobe::element_type;
using collprobe::rank_call_layout;
using collprobe::rank_measurement;
using collprobe::reduction;

namespace {

/// ncclDataType_t, in its order.
constexpr element_type element_types[]
    = {element_type::int8, element_type::uint8, element_type::int32, element_type::uint32,
        element_type::int64, element_type::uint64, element_type::float16, element_type::float32,
        element_type::float64, element_type::bfloat16, element_type::float8_e4m3, element_type::float8_e5m2};

constexpr int first_own_operation = 5; ///< ncclNumOps
/// ncclRedOp_t, in its order.
constexpr reduction reductions[]
    = {reduction::sum, reduction::product, reduction::max, reduction::min, reduction::average};

std::uint64_t clock_ns(clockid_t which) noexcept
{
    timespec now{};
    clock_gettime(which, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

cudaEvent_t new_event()
{
    const cuda::detail::relaxed_capture_mode relaxed;
    cudaEvent_t made = nullptr;
    cuda::check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return made;
}

double as_double(const void* scalar, element_type type) noexcept
{
    double result = collprobe::detail::not_a_number();
    collprobe::with_floating_type(type, [&](auto value) {
        std::memcpy(&value, scalar, sizeof value);
        result = collprobe::detail::widen(value);
    });
    switch (type) {
    case element_type::int8: return *static_cast<const std::int8_t*>(scalar);
    case element_type::uint8: return *static_cast<const std::uint8_t*>(scalar);
    case element_type::int32: return *static_cast<const std::int32_t*>(scalar);
    case element_type::uint32: return *static_cast<const std::uint32_t*>(scalar);
    case element_type::int64: return static_cast<double>(*static_cast<const std::int64_t*>(scalar));
    case element_type::uint64: return static_cast<double>(*static_cast<const std::uint64_t*>(scalar));
    default: return result;
    }
}

/// A range of NVTX around the launches of a probe, if COLLPROBE_SINKS has nvtx and a tool is there.
class probe_range {
public:
    probe_range([[maybe_unused]] bool wanted, [[maybe_unused]] const call_facts& facts)
    {
#if __has_include(<nvtx3/nvToolsExt.h>)
        const std::uint64_t bytes = facts.count * static_cast<std::uint64_t>(collprobe::bytes_of(facts.type));
        if (wanted) range_.emplace(facts.call, bytes);
#endif
    }

private:
#if __has_include(<nvtx3/nvToolsExt.h>)
    std::optional<collprobe::detail::nvtx_range> range_;
#endif
};

} // namespace

const char* name(skip_reason why) noexcept
{
    constexpr const char* names[skip_reasons]
        = {"capture", "group", "type", "operation", "size", "budget", "full", "failed", "ended"};
    return names[static_cast<std::size_t>(why)];
}

std::string name_of(const call_facts& facts)
{
    std::string place;
    if (facts.place.source == step_source::calls) place = "";
    else if (facts.place.extra)
        place = "#extra" + std::to_string(facts.place.bucket - first_extra_bucket);
    else place = "#" + std::to_string(facts.place.bucket);
    return std::string(collprobe::name(facts.call)) + place + " " + std::to_string(facts.count) + " "
        + collprobe::name(facts.type);
}

constinit told_step told_step::only;

operator_choice& operator_choice::instance() noexcept
{
    static operator_choice only;
    return only;
}

void told_step::set(std::uint64_t number, step_source from) noexcept
{
    step.store(number, std::memory_order_relaxed);
    source.store(static_cast<std::uint32_t>(from), std::memory_order_relaxed);
    serial.fetch_add(1, std::memory_order_release);
}

probe_memory::probe_memory(bool with_sketches)
    : layout{with_sketches ? kept_bins : 0},
      reads(with_sketches),
      on_device(slots * layout.bytes()),
      on_host(slots * layout.bytes())
{
    device = on_device.device();
    // As the driver has them: CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE and _GLOBAL_MEMORY_BUS_WIDTH.
    using attribute_query = int (*)(int* value, int attribute, int device);
    const auto ask
        = reinterpret_cast<attribute_query>(cuda::detail::driver_function("cuDeviceGetAttribute", 2000));
    int kilohertz = 0;
    int bits = 0;
    if (ask != nullptr && ask(&kilohertz, 36, device) == 0 && ask(&bits, 37, device) == 0 && kilohertz > 0
        && bits > 0) {
        bytes_per_second = 2.0 * kilohertz * 1e3 * bits / 8; // two transfers a clock
    }
    for (std::size_t i = 0; i < slots; ++i) {
        ring[i].on_device = on_device.data() + i * layout.bytes();
        ring[i].on_host = on_host.data() + i * layout.bytes();
        ring[i].done = new_event();
    }
}

std::uint64_t probe_memory::device_bytes() const noexcept { return on_device.size() + reads.bytes(); }

void communicator::open(
    const collprobe_made& made, std::uint64_t key, std::uint64_t parent, probe_memory* memory)
{
    nccl_ = made.nccl;
    handle_ = made.comm;
    key_ = key;
    parent_ = parent;
    children_ = 0;
    opened_us_ = clock_ns(CLOCK_REALTIME) / 1000;
    name_ = made.name != nullptr ? made.name : "";
    rank_ = made.rank;
    ranks_ = made.ranks;
    blocking_ = made.blocking != 0;
    memory_ = memory;
    device_ = memory != nullptr ? memory->device : -1;
    probes_ = memory != nullptr && options_.wants(made.name, key);
    has_failed_ = false;
    known_.store(rank_ >= 0 && ranks_ >= 0, std::memory_order_relaxed);
    silent_.store(false, std::memory_order_relaxed);
    group_stream_ = nullptr;
    live_for_writer.store(nullptr, std::memory_order_relaxed);
    live.reset();
    ended_.store(false, std::memory_order_relaxed);
    how_ended_.store(-1, std::memory_order_relaxed);
    sequence_ = 0;
    seen_mark_ = told_step::only.serial.load(std::memory_order_acquire);
    period_ = call_period();
    sampling_
        = {.mode = options_.channel == settings::channel_kind::inband ? sampling::inband : sampling::files,
            .budget = options_.budget,
            .every = options_.every,
            .bytes_per_second = memory != nullptr ? memory->bytes_per_second : 1e12};
    sampler_ = sampler(sampling_);
    seen_choice_ = 0;
    taken_ = 0;
    wanted_ = 0;
    step_has_room_ = true;
    written.store(0, std::memory_order_relaxed);
    lane_stream_ = {};
    lane_done_ = nullptr;
    kept_.clear();
    kept_.reserve(probe_memory::slots);
    kept_count_.store(0, std::memory_order_relaxed);
    pre_multiplied_.clear();
    for (counter* each : {&calls, &transfers, &probed, &windows, &step, &every}) each->set(0);
    for (counter& each : skipped) each.set(0);
    probe_ns.store(0, std::memory_order_relaxed);
    finished_probes.store(0, std::memory_order_relaxed);
    finished_bytes.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
}

bool communicator::complete() noexcept
{
    if (rank_ >= 0 && ranks_ >= 0) return true;
    int count = -1;
    int rank = -1;
    if (!ask_size_and_rank(*nccl_, handle_, count, rank)) return false;
    ranks_ = count;
    rank_ = rank;
    known_.store(true, std::memory_order_release);
    return true;
}

void communicator::start_step(const call_place& place)
{
    if (live) live->step_ended();
    // A step that would not fit is left out as a whole: parts of it could not be compared between ranks.
    const std::size_t in_use = taken_ - written.load(std::memory_order_acquire);
    step_has_room_ = in_use + std::min(wanted_, probe_memory::slots / 2) <= probe_memory::slots;
    wanted_ = 0;
    const operator_choice& choice = operator_choice::instance();
    const std::uint64_t serial = choice.serial.load(std::memory_order_acquire);
    if (serial != seen_choice_ && sampling_.mode == sampling::files) {
        seen_choice_ = serial;
        sampling_.every = choice.every.load(std::memory_order_relaxed);
        sampler_ = sampler(sampling_);
    }
    sampler_.step_began(place,
        {.now_s = static_cast<double>(clock_ns(CLOCK_MONOTONIC)) * 1e-9,
            .probe_s = static_cast<double>(probe_ns.load(std::memory_order_relaxed)) * 1e-9,
            .probes = finished_probes.load(std::memory_order_relaxed),
            .probe_bytes = finished_bytes.load(std::memory_order_relaxed)});
    every.set(sampler_.every());
    const sampler_coverage covered = sampler_.covered();
    share_predicted.store(covered.share_predicted, std::memory_order_relaxed);
    share_measured.store(covered.share_measured, std::memory_order_relaxed);
}

/// Counts the call and decides whether to look at it. This is a function of the sequence of the calls, but
/// for the sampling by a budget, and comes before everything that ranks may do differently.
bool communicator::begin(collprobe_call& call, call_facts& facts, live_channel::place& in_message)
{
    facts.sequence = sequence_++;
    calls.add();
    const bool known = describe(call, facts);
    const std::uint64_t element_bytes
        = known ? static_cast<std::uint64_t>(collprobe::bytes_of(facts.type)) : 1;
    const std::uint64_t bytes = std::max(facts.count, facts.result_count) * element_bytes;
    const std::uint64_t signature = signature_of(call, facts);
    facts.place = place_of(call, facts.sequence, signature, bytes);
    if (facts.place.first) start_step(facts.place);
    const bool is_wanted_kind = options_.probed_kinds[call.kind];
    const bool is_small = bytes < options_.least_bytes;
    const std::uint64_t reads = (facts.count + facts.result_count) * element_bytes;
    const bool is_chosen = sampler_.add(facts.place, signature, reads, is_wanted_kind && known && !is_small)
        && describe_values(call, facts);
    // All ranks come to the same up to here; what follows may be this rank's alone.
    if (live && is_chosen) in_message = live->add(facts);
    if (is_chosen && probes_ && !has_ended() && !silent_.load(std::memory_order_relaxed)) return true;
    skip(!is_wanted_kind ? skip_reason::operation
            : !known     ? skip_reason::type
            : is_small   ? skip_reason::size
            : !is_chosen ? skip_reason::budget
            : !probes_   ? skip_reason::failed
                         : skip_reason::ended);
    return false;
}

/// As `call_signature`. Most calls differ from the one before in their count only.
std::uint64_t communicator::signature_of(const collprobe_call& call, const call_facts& facts) noexcept
{
    constexpr std::uint64_t of_kind = 0xffffff0000000000u;
    // The number of an operation of the program's own may differ between ranks.
    const auto operation
        = static_cast<unsigned>(facts.reduces() ? std::min(call.operation, first_own_operation) + 1 : 0);
    const auto kind = static_cast<unsigned>(call.kind);
    const auto type = static_cast<unsigned>(call.type);
    const auto root = static_cast<unsigned>(call.root);
    const std::uint64_t what = std::uint64_t{root} << 32 | (kind << 16 | (type & 0xff) << 8 | operation);
    if (what != last_kind_) {
        last_kind_ = what;
        kind_hash_ = call_signature(kind, type, 0, operation, root);
    }
    return (kind_hash_ & of_kind) | collprobe::detail::mix64(kind_hash_ + call.count) >> 24;
}

call_place communicator::place_of(
    const collprobe_call& call, std::uint64_t sequence, std::uint64_t signature, std::uint64_t bytes) noexcept
{
    if (options_.step != settings::step_kind::automatic) {
        constexpr std::uint64_t calls_of_step = 1024;
        call_place place{};
        place.step = sequence / calls_of_step;
        place.bucket = static_cast<std::uint32_t>(sequence % calls_of_step);
        place.source = step_source::calls;
        place.first = place.bucket == 0;
        return place;
    }
    if (call.has_tag != 0) return period_.add(signature, bytes, call.tag);
    const told_step& told = told_step::only;
    if (const std::uint64_t serial = told.serial.load(std::memory_order_acquire); serial != seen_mark_) {
        seen_mark_ = serial;
        period_.mark(told.step.load(std::memory_order_relaxed),
            static_cast<step_source>(told.source.load(std::memory_order_relaxed)));
    }
    return period_.add(signature, bytes);
}

bool communicator::describe(const collprobe_call& call, call_facts& facts) const noexcept
{
    const auto ranks = static_cast<std::uint64_t>(ranks_ < 1 ? 1 : ranks_);
    facts.count = facts.result_count = call.count;
    switch (call.kind) {
    case collprobe_all_reduce: facts.call = collective::all_reduce; break;
    case collprobe_reduce_scatter:
        facts.call = collective::reduce_scatter;
        facts.count = call.count * ranks;
        break;
    case collprobe_all_gather:
        facts.call = collective::all_gather;
        facts.result_count = call.count * ranks;
        break;
    case collprobe_broadcast: facts.call = collective::broadcast; break;
    case collprobe_all_to_all:
        facts.call = collective::all_to_all;
        facts.count = facts.result_count = call.count * ranks;
        break;
    default: break;
    }
    if (call.type < 0 || call.type >= static_cast<int>(std::size(element_types))) return false;
    facts.type = element_types[call.type];
    return true;
}

/// What is known of the values of a call that is looked at. Alike on all ranks, but for `in_place`.
bool communicator::describe_values(const collprobe_call& call, call_facts& facts) const noexcept
{
    const auto unit = static_cast<std::uint64_t>(collprobe::bytes_of(facts.type));
    facts.in_place
        = collprobe::detail::overlap(call.send, facts.count * unit, call.receive, facts.result_count * unit);
    facts.has_input = has_statistics(facts.type) && facts.call != collective::broadcast && facts.count != 0;
    facts.has_result = facts.result_count != 0;
    facts.has_sketch = false;
    facts.scale = 1;
    if (!facts.reduces()) return true;
    if (call.operation < 0 || call.operation >= first_own_operation) {
        facts.operation = reduction::sum;
        facts.scale = collprobe::detail::not_a_number();
        for (const pre_multiplied& each : pre_multiplied_) {
            if (each.operation == call.operation) facts.scale = each.scale;
        }
        return true;
    }
    facts.operation = reductions[call.operation];
    const bool sums = facts.operation == reduction::sum || facts.operation == reduction::average;
    facts.has_sketch = options_.audit && sums && facts.has_input;
    return true;
}

slot* communicator::reserve() noexcept
{
    slot& taken = memory_->ring[taken_ % probe_memory::slots];
    if (taken.state.load(std::memory_order_acquire) != slot_state::free) return nullptr;
    ++taken_;
    return &taken;
}

/// Makes `stream` the one that the reads' memory is used on, behind its last use.
void communicator::enter_lane(cuda::stream_ref stream)
{
    const cuda::stream_id id = stream.id();
    if (id == lane_stream_) return;
    if (lane_done_ != nullptr) {
        cuda::check(
            cudaStreamWaitEvent(stream.get(), lane_done_, 0), "cudaStreamWaitEvent", device_, stream.get());
    }
    lane_stream_ = id;
}

void communicator::fail(const char* what) noexcept
{
    probes_ = false;
    skip(skip_reason::failed);
    if (std::exchange(has_failed_, true)) return;
    try {
        say("communicator " + collprobe::detail::hexadecimal(key_) + ", rank " + std::to_string(rank_)
            + ": is not probed any more: " + what);
    } catch (...) {
    }
}

void communicator::before(collprobe_call& call)
{
    if (call.kind >= collprobe_send) {
        transfers.add();
        return;
    }
    if (kept_count_.load(std::memory_order_acquire) != 0) drop_kept();
    if (ranks_ < 0) complete();
    if (ranks_ >= 0 && ranks_ < 2) {
        calls.add();
        ++sequence_;
        return;
    }
    call_facts facts;
    live_channel::place in_message;
    const bool wanted = begin(call, facts, in_message);
    step.set(facts.place.step);
    if (live && live->is_due()) send_if_due(call);
    if (!wanted) return;
    slot* taken = nullptr;
    try {
        const cuda::device_guard current(device_);
        const cuda::stream_ref stream(static_cast<cudaStream_t>(call.stream));
        if (is_capturing(stream)) return skip(skip_reason::capture);
        const probe_range range(options_.nvtx, facts);
        // NCCL may refuse such buffers; a kernel that reads them would end the program.
        if (!can_be_read(call, facts)) return skip(skip_reason::type);
        ++wanted_;
        taken = step_has_room_ ? reserve() : nullptr;
        if (taken == nullptr) return skip(skip_reason::full);
        facts.unix_us = clock_ns(CLOCK_REALTIME) / 1000;
        taken->facts = facts;
        taken->in_message = in_message;
        taken->input = !facts.in_place && facts.call == collective::all_reduce ? call.send : nullptr;
        taken->state.store(slot_state::reserved, std::memory_order_relaxed);
        if (facts.has_input) {
            enter_lane(stream);
            rank_measurement& to = rank_call_layout::measurement(taken->on_device);
            const read_request what{.type = facts.type,
                .data = call.send,
                .count = facts.count,
                .sketch = facts.has_sketch ? rank_call_layout::input_sketch(taken->on_device) : nullptr,
                .times = {&to.input_begun, &to.input_done}};
            read_input(stream, what, &to.entry.input, memory_->reads);
            // Another call may use the memory, on another stream, before the result of this one is read.
            if (call.depth > 0 || !blocking_) {
                cuda::check(
                    cudaEventRecord(taken->done, stream.get()), "cudaEventRecord", device_, stream.get());
                lane_done_ = taken->done;
            }
        }
        // What is needed of the input behind the call, if it is still there.
        call.engine[0] = reinterpret_cast<std::uintptr_t>(this);
        call.engine[1] = reinterpret_cast<std::uintptr_t>(taken);
        call.engine[2] = generation();
    } catch (const std::exception& failure) {
        if (taken != nullptr) taken->state.store(slot_state::dropped, std::memory_order_release);
        fail(failure.what());
    }
}

void communicator::send(cuda::stream_ref stream)
{
    enter_lane(stream);
    live->send(*nccl_, handle_, stream);
    lane_done_ = live->last();
}

/// Sends the message of the last step before this call, or behind its group.
void communicator::send_if_due(const collprobe_call& call) noexcept
{
    group_stream_ = call.stream;
    if (call.depth > 0 || has_ended()) return;
    try {
        const cuda::device_guard current(device_);
        const cuda::stream_ref stream(static_cast<cudaStream_t>(call.stream));
        if (!is_capturing(stream)) send(stream);
    } catch (const std::exception& failure) {
        fail(failure.what());
    }
}

void communicator::group_ended() noexcept
{
    if (!live || !live->is_due() || group_stream_ == nullptr) return;
    collprobe_call none{};
    none.stream = group_stream_;
    send_if_due(none);
}

void communicator::enqueue_result(slot& of, void* on, const void* receive) noexcept
{
    if (has_ended()) return drop(of, on, skip_reason::ended);
    try {
        const cuda::device_guard current(device_);
        const cuda::stream_ref stream(static_cast<cudaStream_t>(on));
        const call_facts& facts = of.facts;
        const probe_range range(options_.nvtx, facts);
        enter_lane(stream);
        rank_measurement& to = rank_call_layout::measurement(of.on_device);
        if (facts.has_result) {
            const bool is_part = facts.call == collective::reduce_scatter;
            const read_request what{.type = facts.type,
                .data = receive,
                .count = facts.result_count,
                .first = is_part ? facts.result_count * static_cast<std::uint64_t>(rank_) : 0,
                .input = of.input,
                .sketch = facts.has_sketch ? memory_->layout.result_sketch(of.on_device) : nullptr,
                .times = {&to.result_begun, &to.result_done}};
            read_result(stream, what, &to.entry.result, memory_->reads);
        }
        cuda::check(cudaMemcpyAsync(of.on_host, of.on_device,
                        facts.has_sketch ? memory_->layout.bytes() : sizeof(rank_measurement),
                        cudaMemcpyDeviceToHost, stream.get()),
            "cudaMemcpyAsync", device_, stream.get());
        if (live) live->fill(of.in_message, of.on_device, facts.has_sketch, stream);
        cuda::check(cudaEventRecord(of.done, stream.get()), "cudaEventRecord", device_, stream.get());
        lane_done_ = of.done;
        of.state.store(slot_state::in_flight, std::memory_order_release);
        probed.add();
    } catch (const std::exception& failure) {
        of.state.store(slot_state::dropped, std::memory_order_release);
        fail(failure.what());
    }
}

void communicator::drop(slot& of, void* on, skip_reason why) noexcept
{
    skip(why);
    if (!has_ended() && on != nullptr) {
        try {
            const cuda::device_guard current(device_);
            (void)cudaEventRecord(of.done, cuda::stream_ref(static_cast<cudaStream_t>(on)).get());
        } catch (...) {
        }
    }
    of.state.store(slot_state::dropped, std::memory_order_release);
}

void communicator::after(collprobe_call& call, int result)
{
    if (call.kind >= collprobe_send || call.engine[1] == 0) return;
    if (call.engine[2] != generation()) return;
    slot& of = *reinterpret_cast<slot*>(call.engine[1]);
    if (result == nccl_success && call.depth == 0) return enqueue_result(of, call.stream, call.receive);
    if (result == nccl_in_progress && call.depth == 0)
        return keep_until_polled(of, call.stream, call.receive);
    drop(of, call.stream, skip_reason::failed);
}

void communicator::keep_until_polled(slot& of, void* stream, const void* receive) noexcept
{
    const std::lock_guard lock(kept_guard_);
    if (kept_.size() == kept_.capacity()) return drop(of, stream, skip_reason::full);
    kept_.push_back({&of, stream, receive});
    kept_count_.store(kept_.size(), std::memory_order_release);
}

/// Who asks next must not go on before the results are read: so the lock is held until they are enqueued.
void communicator::polled(int now) noexcept
{
    if (kept_count_.load(std::memory_order_acquire) == 0 || now == nccl_in_progress) return;
    const std::lock_guard lock(kept_guard_);
    for (const kept_call& each : kept_) {
        if (now == nccl_success) enqueue_result(*each.of, each.stream, each.receive);
        else drop(*each.of, each.stream, skip_reason::failed);
    }
    kept_.clear();
    kept_count_.store(0, std::memory_order_release);
}

/// The program made another call, and has not asked NCCL whether the calls before are enqueued.
void communicator::drop_kept() noexcept
{
    const std::lock_guard lock(kept_guard_);
    for (const kept_call& each : kept_) drop(*each.of, each.stream, skip_reason::failed);
    kept_.clear();
    kept_count_.store(0, std::memory_order_release);
}

/// Whether the buffers are aligned, and CUDA knows all their bytes.
bool communicator::can_be_read(const collprobe_call& call, const call_facts& facts) noexcept
{
    const auto unit = static_cast<std::uint64_t>(collprobe::bytes_of(facts.type));
    const auto is_whole = [unit](const void* data, std::uint64_t count) {
        return count == 0
            || (data != nullptr && reinterpret_cast<std::uintptr_t>(data) % unit == 0
                && cuda::detail::bytes_in_allocation(data, count * unit) == count * unit);
    };
    return (!facts.has_input || is_whole(call.send, facts.count))
        && (!facts.has_result || is_whole(call.receive, facts.result_count));
}

/// Also true where a capture of another stream forbids to ask.
bool communicator::is_capturing(cuda::stream_ref stream) const
{
    cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
    const cudaError_t code = cudaStreamIsCapturing(stream.get(), &now);
    if (code == cudaErrorStreamCaptureImplicit) {
        cuda::detail::forget(code);
        return true;
    }
    cuda::check(code, "cudaStreamIsCapturing", device_, stream.get());
    return now != cudaStreamCaptureStatusNone;
}

void communicator::operation_made(int operation, const void* scalar, int type) noexcept
{
    double scale = collprobe::detail::not_a_number();
    if (scalar != nullptr && type >= 0 && type < static_cast<int>(std::size(element_types))) {
        scale = as_double(scalar, element_types[type]);
    }
    try {
        pre_multiplied_.push_back({operation, scale});
    } catch (...) {
    }
}

void communicator::operation_ended(int operation) noexcept
{
    std::erase_if(pre_multiplied_, [=](const pre_multiplied& each) { return each.operation == operation; });
}

void communicator::end(int how) noexcept
{
    how_ended_.store(how, std::memory_order_relaxed);
    ended_.store(true, std::memory_order_release);
    state.store(phase::ended, std::memory_order_release);
}

} // namespace collprobe_preload

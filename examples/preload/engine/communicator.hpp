// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/cuda/memory.hpp>
#include <collprobe/step/rank_call.hpp>

#include "../hooks.h"
#include "call_facts.hpp"
#include "call_period.hpp"
#include "live_channel.hpp"
#include "reads.hpp"
#include "sampler.hpp"
#include "settings.hpp"

namespace collprobe_preload {

/// Why a call was not looked at.
enum class skip_reason : std::uint8_t {
    capture, ///< it was captured: its replays are not seen
    group, ///< its group failed, was simulated, or had too many calls
    type, ///< NCCL has a type that this object does not know, or the buffer is misaligned
    operation, ///< not in COLLPROBE_OPS
    size, ///< below COLLPROBE_MIN_BYTES
    budget, ///< not in the sample
    full, ///< all slots are in use
    failed, ///< the call or a CUDA call failed; after the latter the communicator is not probed any more
    ended, ///< the communicator was ended meanwhile
};
inline constexpr std::size_t skip_reasons = 9;
const char* name(skip_reason why) noexcept;

/// Numbers of a communicator that one thread at a time adds to and the writing thread reads.
class counter {
public:
    void add(std::uint64_t more = 1) noexcept
    {
        value_.store(value_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
    }
    void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
    std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

enum class slot_state : std::uint32_t {
    free,
    reserved, ///< the input is being read; the result is to come
    in_flight, ///< everything is enqueued, and `done` is recorded behind it
    dropped, ///< there will be no result; `done` is recorded behind the input
};

/// Where a probed call's numbers are, from the call until they are written.
struct slot {
    call_facts facts;
    const void* input
        = nullptr; ///< the rank's input, if it outlives the call and is as long as the result; else null
    unsigned char* on_device = nullptr;
    unsigned char* on_host = nullptr;
    cudaEvent_t done = nullptr;
    live_channel::place in_message;
    std::atomic<slot_state> state{slot_state::free};
};

/// All memory of the device that a communicator needs. It is never freed, but used again by later
/// communicators, because freeing waits for the device, and at the end of the process CUDA may be gone.
class probe_memory {
public:
    static constexpr std::size_t slots = 256;

    /// On the current device. \throws collprobe::error if there is no room.
    explicit probe_memory(bool with_sketches);
    std::uint64_t device_bytes() const noexcept;

    collprobe::rank_call_layout layout;
    read_memory reads;
    collprobe::cuda::buffer<unsigned char> on_device;
    collprobe::cuda::pinned_buffer<unsigned char> on_host;
    slot ring[slots];
    int device = -1;
    double bytes_per_second = 1e12; ///< of the device's memory
};

/// What the writing thread keeps of a communicator.
struct written_facts {
    std::uint64_t generation = 0;
    bool is_begun = false;
    std::uint64_t next_coverage_ns = 0;
    std::string uuid; ///< of the device
};

/// A communicator of the program: what was seen of it.
/// Threads: NCCL has one call on a communicator at a time, and so has this, but for `end`, which any thread
/// may call at any time, and the writing thread, which takes finished slots.
class communicator {
public:
    explicit communicator(const settings& options) : options_(options) {}

    /// Begins with a new handle. The current device is that of the communicator.
    void open(const collprobe_made& made, std::uint64_t key, std::uint64_t parent, probe_memory* memory);
    /// The program may use it from now on. False if NCCL does not say rank and size yet.
    bool complete() noexcept;

    // Around the program's calls.
    void before(collprobe_call& call);
    void after(collprobe_call& call, int result);
    /// A call of a group has been enqueued: reads the result.
    void enqueue_result(slot& of, void* stream, const void* receive) noexcept;
    void drop(slot& of, void* stream, skip_reason why) noexcept;
    /// A group of this thread with calls of this communicator has ended well.
    void group_ended() noexcept;
    /// Looks at no call any more.
    void silence() noexcept { silent_.store(true, std::memory_order_release); }
    /// ncclCommGetAsyncError has told `state`.
    void polled(int state) noexcept;
    /// Keeps a call until NCCL has enqueued it.
    void keep_until_polled(slot& of, void* stream, const void* receive) noexcept;
    void operation_made(int operation, const void* scalar, int type) noexcept;
    void operation_ended(int operation) noexcept;
    /// No event, stream or memory is used any more on this communicator's behalf, but for `destroy` the
    /// reading of what is under way.
    void end(int how) noexcept;
    bool has_ended() const noexcept { return ended_.load(std::memory_order_acquire); }

    std::uint64_t next_child() noexcept { return children_++; }

    // For the writing thread.
    std::uint64_t key() const noexcept { return key_; }
    std::uint64_t parent() const noexcept { return parent_; }
    const std::string& name() const noexcept { return name_; }
    int rank() const noexcept { return rank_; }
    int ranks() const noexcept { return ranks_; }
    int device() const noexcept { return device_; }
    std::uint64_t unix_us() const noexcept { return opened_us_; }
    int how_ended() const noexcept { return how_ended_.load(std::memory_order_relaxed); }
    const collprobe_nccl* nccl() const noexcept { return nccl_; }
    probe_memory* memory() const noexcept { return memory_; }
    std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

    /// Whether rank and size are known.
    bool is_known() const noexcept { return known_.load(std::memory_order_acquire); }
    /// Whether nothing on the device uses the memory: all that was enqueued is written.
    bool memory_is_idle() const noexcept
    {
        return written.load(std::memory_order_relaxed) == taken_ && how_ended() != collprobe_abort
            && !has_failed_;
    }

    enum class phase : std::uint32_t { unused, open, ended, written };
    std::atomic<phase> state{phase::unused};
    communicator* next = nullptr; ///< in the list of all

    counter calls; ///< that move data, of all ranks together
    counter transfers; ///< sends, receives and signals
    counter probed;
    counter skipped[skip_reasons];
    counter windows;
    counter step;
    counter every;
    std::atomic<double> share_predicted{0};
    std::atomic<double> share_measured{0};
    // Of the probes that are done; the writing thread adds to them.
    std::atomic<std::uint64_t> probe_ns{0}; ///< of the GPU, by its clock
    std::atomic<std::uint64_t> finished_probes{0};
    std::atomic<std::uint64_t> finished_bytes{0};

    std::atomic<std::size_t> written{0}; ///< slots; the writing thread's
    written_facts writing; ///< the writing thread's
    std::unique_ptr<live_channel> live; ///< with COLLPROBE_CHANNEL=inband
    std::atomic<live_channel*> live_for_writer{nullptr};

private:
    struct kept_call {
        slot* of;
        void* stream;
        const void* receive;
    };

    bool begin(collprobe_call& call, call_facts& facts, live_channel::place& in_message);
    void send_if_due(const collprobe_call& call) noexcept;
    void send(collprobe::cuda::stream_ref stream);
    bool describe(const collprobe_call& call, call_facts& facts) const noexcept;
    std::uint64_t signature_of(const collprobe_call& call, const call_facts& facts) noexcept;
    bool describe_values(const collprobe_call& call, call_facts& facts) const noexcept;
    void skip(skip_reason why) noexcept { skipped[static_cast<std::size_t>(why)].add(); }
    slot* reserve() noexcept;
    void enter_lane(collprobe::cuda::stream_ref stream);
    bool is_capturing(collprobe::cuda::stream_ref stream) const;
    static bool can_be_read(const collprobe_call& call, const call_facts& facts) noexcept;
    void drop_kept() noexcept;
    void fail(const char* what) noexcept;
    void start_step(const call_place& place);
    call_place place_of(const collprobe_call& call, std::uint64_t sequence,
        std::uint64_t signature, std::uint64_t bytes) noexcept;

    const settings& options_;
    const collprobe_nccl* nccl_ = nullptr;
    void* handle_ = nullptr;
    std::uint64_t key_ = 0;
    std::uint64_t parent_ = 0;
    std::uint64_t children_ = 0;
    std::uint64_t opened_us_ = 0;
    std::string name_;
    int rank_ = -1;
    int ranks_ = -1;
    int device_ = -1;
    bool blocking_ = true;
    bool probes_ = false;
    bool has_failed_ = false;
    std::atomic<bool> known_{false};
    std::atomic<bool> silent_{false};
    void* group_stream_ = nullptr; ///< of the last call in the open group
    probe_memory* memory_ = nullptr;
    std::atomic<std::uint64_t> generation_{0};
    std::atomic<bool> ended_{false};
    std::atomic<int> how_ended_{-1};

    std::uint64_t sequence_ = 0;
    std::uint64_t last_kind_ = ~std::uint64_t{0}; ///< of the call before, all but its count
    std::uint64_t kind_hash_ = 0;
    std::uint64_t seen_mark_ = 0;
    std::uint64_t seen_choice_ = 0;
    call_period period_;
    sampler_options sampling_;
    sampler sampler_{sampler_options()};
    std::size_t taken_ = 0; ///< slots taken from the ring so far
    std::size_t wanted_ = 0; ///< in this step
    bool step_has_room_ = true;
    // The reads' memory is in use on `lane_stream_` up to `lane_done_`.
    collprobe::cuda::stream_id lane_stream_;
    cudaEvent_t lane_done_ = nullptr;

    // Of a non-blocking communicator. A watchdog may ask NCCL at any time, so the list has a lock.
    std::mutex kept_guard_;
    std::vector<kept_call> kept_; ///< room for all slots
    std::atomic<std::size_t> kept_count_{0};
    struct pre_multiplied {
        int operation;
        double scale;
    };
    std::vector<pre_multiplied> pre_multiplied_; ///< few
};

/// The mark of the program's step: by collprobe_mark_step or a range of NVTX.
struct told_step {
    std::atomic<std::uint64_t> serial{0}; ///< changes with each mark
    std::atomic<std::uint64_t> step{0};
    std::atomic<std::uint32_t> source{0}; ///< a step_source

    static told_step only; ///< of the process
    void set(std::uint64_t number, step_source from) noexcept;
};

/// What an operator wrote into COLLPROBE_CONTROL_FILE while the program runs. Not with
/// COLLPROBE_CHANNEL=inband, where ranks must not differ.
struct operator_choice {
    static constexpr std::uint64_t never = probe_never;
    std::atomic<std::uint64_t> serial{0}; ///< changes with the file
    std::atomic<std::uint64_t> every{0}; ///< 0: by the budget

    static operator_choice& instance() noexcept;
};

} // namespace collprobe_preload

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <collprobe/device/cuda/memory.hpp>
#include <collprobe/device/cuda/stream.hpp>
#include <collprobe/step/rank_call.hpp>

#include "../hooks.h"
#include "call_facts.hpp"
#include "settings.hpp"

namespace collprobe_preload {

class live_view;

/// What a message begins with.
struct live_header {
    std::uint64_t magic = 0;
    std::uint64_t step = 0;
    std::uint64_t first_call = 0; ///< sequence number of the step's first call
    std::uint64_t calls = 0; ///< in the message
    std::uint64_t signature = 0; ///< a hash of what they are
    std::uint64_t present[2] = {}; ///< a bit for each call that the rank has measured
};

/// COLLPROBE_CHANNEL=inband: once a sampled step the ranks exchange what they have measured, by one
/// all-gather of bytes on the program's own communicator, and rank 0 judges it at once. Whether and when that
/// happens is a function of the sequence of the calls alone, so that all ranks do it alike: what only one
/// rank knows changes the message, not its size and not its place. Threads: as `communicator`; `look` is for
/// the writing thread.
class live_channel {
public:
    static constexpr std::uint64_t most_calls = 128; ///< of a step; the others are not in the live view
    static constexpr std::uint64_t receive_limit = 3 << 19; ///< bytes

    /// On the current device. \throws collprobe::error if there is no room.
    live_channel(const settings& options, const collprobe::rank_call_layout& slots, int ranks, int rank,
        const collprobe::run_record& run);
    ~live_channel();

    /// Lets the ranks of a communicator that was just made tell each other a word, and waits for them. Empty
    /// if all have told the same, which is not 0; else why the channel cannot be used, alike on all ranks.
    static std::string agree(const collprobe_nccl& nccl, void* comm, int ranks, std::uint64_t word);
    /// A hash of the settings that the ranks must have in common.
    static std::uint64_t fingerprint(const settings& options);

    /// A call's place in a message.
    struct place {
        std::uint64_t message = 0; ///< its number, from 1; 0: the message has no room for the call
        std::uint64_t index = 0;
    };
    /// Gives a call that all ranks look at a place in the open step's message, on all ranks alike.
    place add(const call_facts& facts);
    /// A step has ended before this call. The message is due if the step had any calls that were looked at.
    void step_ended() noexcept;
    bool is_due() const noexcept { return due_; }

    /// Copies a measured call into its message, on the stream that read the result.
    void fill(
        const place& at, const unsigned char* on_device, bool has_sketch, collprobe::cuda::stream_ref stream);
    /// Enqueues the message that is due. \throws collprobe::error if CUDA or NCCL refuses it.
    void send(const collprobe_nccl& nccl, void* comm, collprobe::cuda::stream_ref stream);

    /// Judges a message that has arrived. Whether there was one.
    bool look();
    /// Whether a message is on its way, for the thread that judges.
    bool is_waiting() const noexcept { return arriving_[next_judged_].is_used.load(std::memory_order_acquire); }
    /// Writes what is there to the sinks and ends them.
    void close();
    std::uint64_t device_bytes() const noexcept;
    /// Behind the last message on the device.
    cudaEvent_t last() const noexcept { return last_; }

private:
    /// A step's message on the way: from its first call to its judgement.
    struct message {
        std::uint64_t number = 0;
        std::vector<call_facts> calls;
        live_header header;
        std::uint64_t unread = 0; ///< calls of the step that are not in the message
    };
    struct arriving {
        message what;
        collprobe::cuda::pinned_buffer<unsigned char> bytes;
        cudaEvent_t done = nullptr;
        std::atomic<bool> is_used{false};
    };

    message& open() noexcept { return messages_[open_]; }
    std::uint64_t bytes() const noexcept { return sizeof(live_header) + room_ * layout_.bytes(); }

    int ranks_;
    int rank_;
    collprobe::rank_call_layout layout_; ///< of the message's calls
    std::uint64_t room_ = 0; ///< calls
    collprobe::cuda::buffer<unsigned char> sent_; ///< two messages
    collprobe::cuda::buffer<unsigned char> received_;
    message messages_[2];
    unsigned open_ = 0;
    std::uint64_t begun_ = 0; ///< messages
    bool due_ = false;
    cudaEvent_t last_ = nullptr;
    static constexpr unsigned most_arriving = 8;
    arriving arriving_[most_arriving]; ///< on rank 0
    unsigned next_arriving_ = 0;
    unsigned next_judged_ = 0;
    std::atomic<std::uint64_t> left_out_{0}; ///< steps that came while all of them were used
    std::unique_ptr<live_view> view_; ///< on rank 0
};

} // namespace collprobe_preload

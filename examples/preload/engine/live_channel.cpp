// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include "live_channel.hpp"

#include <cstring>
#include <ctime>
#include <memory>
#include <string>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/device/cuda/error.hpp>

#include "live_view.hpp"
#include "nccl_calls.hpp"
#include "reads.hpp"

namespace collprobe_preload {

namespace cuda = collprobe::cuda;

namespace {

constexpr std::uint64_t magic = 0x6c6976652d763031u;

cudaEvent_t new_event()
{
    cudaEvent_t made = nullptr;
    cuda::check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return made;
}

std::uint64_t mixed(std::uint64_t hash, const call_facts& facts) noexcept
{
    const std::uint64_t what = static_cast<std::uint64_t>(facts.call) << 16
        | static_cast<std::uint64_t>(facts.type) << 8 | static_cast<std::uint64_t>(facts.operation);
    return collprobe::detail::mix64(collprobe::detail::mix64(hash ^ what) + facts.count);
}

} // namespace

live_channel::live_channel(const settings& options, const collprobe::rank_call_layout& slots, int ranks,
    int rank, const collprobe::run_record& run)
    : ranks_(ranks), rank_(rank), layout_(slots)
{
    const std::uint64_t share = receive_limit / static_cast<std::uint64_t>(ranks);
    const auto room_for = [share](const collprobe::rank_call_layout& layout) {
        const std::uint64_t room
            = share > sizeof(live_header) ? (share - sizeof(live_header)) / layout.bytes() : 0;
        return room < most_calls ? room : most_calls;
    };
    // With many ranks sketches take too much room: then sums are checked by what the files have.
    if (room_for(layout_) < 64) layout_.bins = 0;
    room_ = room_for(layout_);
    if (room_ == 0) {
        throw collprobe::error(collprobe::status::unsupported,
            "a message of " + std::to_string(ranks) + " ranks is too large",
            {.call = "COLLPROBE_CHANNEL=inband"});
    }
    sent_ = cuda::buffer<unsigned char>(2 * bytes());
    received_ = cuda::buffer<unsigned char>(bytes() * static_cast<std::uint64_t>(ranks));
    last_ = new_event();
    for (message& each : messages_) each.calls.reserve(room_);
    if (rank != 0) return;
    for (arriving& each : arriving_) {
        each.bytes = cuda::pinned_buffer<unsigned char>(received_.size());
        each.done = new_event();
        each.what.calls.reserve(room_);
    }
    view_ = std::make_unique<live_view>(options, run, ranks);
}

std::string live_channel::agree(const collprobe_nccl& nccl, void* comm, int ranks, std::uint64_t word)
{
    const auto count = static_cast<std::uint64_t>(ranks);
    const cuda::stream stream;
    auto memory
        = std::make_unique<std::pair<cuda::buffer<std::uint64_t>, cuda::pinned_buffer<std::uint64_t>>>(
            cuda::buffer<std::uint64_t>(count + 1), cuda::pinned_buffer<std::uint64_t>(count + 1));
    const auto& [words, told] = *memory;
    told[count] = word;
    const cudaStream_t on = stream.get();
    cuda::check(
        cudaMemcpyAsync(words.data() + count, told.data() + count, sizeof word, cudaMemcpyHostToDevice, on),
        "cudaMemcpyAsync");
    if (const int code = all_gather_bytes(nccl, words.data() + count, words.data(), sizeof word, comm, on);
        code != 0) {
        return "ncclAllGather returned " + std::to_string(code);
    }
    cuda::check(cudaMemcpyAsync(told.data(), words.data(), count * sizeof word, cudaMemcpyDeviceToHost, on),
        "cudaMemcpyAsync");
    // What is enqueued cannot be taken back: a rank that went on alone would break the order of the
    // communicator.
    for (std::uint64_t naps = 1; !stream.query(); ++naps) {
        if (naps % 100'000 == 0) {
            say("waits for other ranks, which all need the preload and COLLPROBE_CHANNEL=inband");
        }
        const timespec nap{0, 100'000};
        nanosleep(&nap, nullptr);
    }
    std::string without;
    std::string others;
    for (std::uint64_t r = 0; r < count; ++r) {
        std::string& to = told[r] == 0 ? without : others;
        if (told[r] == 0 || told[r] != told[0]) to += (to.empty() ? "" : ", ") + std::to_string(r);
    }
    if (!without.empty()) return "these ranks have no memory for it: " + without;
    if (!others.empty()) return "these ranks have other settings than rank 0: " + others;
    return {};
}

std::uint64_t live_channel::fingerprint(const settings& options)
{
    using collprobe::detail::mix64;
    std::uint64_t hash = mix64(options.every) + options.least_bytes;
    for (const bool each : options.probed_kinds) hash = mix64(hash) + (each ? 1 : 2);
    hash = mix64(hash) + (options.audit ? 1 : 2) + 4 * static_cast<std::uint64_t>(options.step);
    for (const std::string& each : options.communicators) {
        for (const char letter : each) hash = mix64(hash) + static_cast<unsigned char>(letter);
        hash = mix64(hash) + 1000;
    }
    return mix64(hash) | 1;
}

/// Where a new communicator takes the place of an ended one.
live_channel::~live_channel()
{
    if (last_ != nullptr) (void)cudaEventDestroy(last_);
    for (arriving& each : arriving_) {
        if (each.done != nullptr) (void)cudaEventDestroy(each.done);
    }
}

std::uint64_t live_channel::device_bytes() const noexcept { return sent_.size() + received_.size(); }

live_channel::place live_channel::add(const call_facts& facts)
{
    message& now = open();
    if (now.calls.size() == room_) {
        ++now.unread;
        return {};
    }
    if (now.calls.empty()) {
        now.number = ++begun_;
        now.header = {};
        now.header.magic = magic;
        now.header.step = facts.place.step;
        now.header.first_call = facts.sequence;
    }
    now.header.signature = mixed(now.header.signature, facts);
    now.calls.push_back(facts);
    return {now.number, now.calls.size() - 1};
}

void live_channel::step_ended() noexcept
{
    // A message that could not be sent in the whole step that followed is given up, on all ranks alike.
    if (due_) {
        messages_[1 - open_].calls.clear();
        messages_[1 - open_].number = 0;
        due_ = false;
    }
    if (open().calls.empty()) return;
    due_ = true;
    open_ = 1 - open_;
    open().calls.clear();
    open().unread = 0;
}

void live_channel::fill(
    const place& at, const unsigned char* on_device, bool has_sketch, cuda::stream_ref stream)
{
    const unsigned which = messages_[0].number == at.message ? 0 : 1;
    // A call that ended behind its step's message is in no message.
    if (at.message == 0 || messages_[which].number != at.message) return;
    unsigned char* const to
        = sent_.data() + which * bytes() + sizeof(live_header) + at.index * layout_.bytes();
    const std::uint64_t count = has_sketch ? layout_.bytes() : sizeof(collprobe::rank_measurement);
    cuda::check(cudaMemcpyAsync(to, on_device, count, cudaMemcpyDeviceToDevice, stream.get()),
        "cudaMemcpyAsync", -1, stream.get());
    messages_[which].header.present[at.index / 64] |= std::uint64_t{1} << at.index % 64;
}

void live_channel::send(const collprobe_nccl& nccl, void* comm, cuda::stream_ref stream)
{
    due_ = false;
    const unsigned which = 1 - open_;
    message& ready = messages_[which];
    ready.header.calls = ready.calls.size();
    unsigned char* const block = sent_.data() + which * bytes();
    write_words(stream, ready.header, block);
    const std::uint64_t count = sizeof(live_header) + ready.calls.size() * layout_.bytes();
    if (const int code = all_gather_bytes(nccl, block, received_.data(), count, comm, stream.get());
        code != 0) {
        throw collprobe::error(collprobe::status::device_failure,
            "ncclAllGather returned " + std::to_string(code), {.call = "COLLPROBE_CHANNEL=inband"});
    }
    if (rank_ == 0) {
        arriving& next = arriving_[next_arriving_];
        if (next.is_used.load(std::memory_order_acquire)) {
            left_out_.fetch_add(1, std::memory_order_relaxed);
        } else {
            next_arriving_ = (next_arriving_ + 1) % most_arriving;
            std::swap(next.what.calls, ready.calls);
            next.what.header = ready.header;
            next.what.unread = ready.unread;
            cuda::check(cudaMemcpyAsync(next.bytes.data(), received_.data(),
                            count * static_cast<std::uint64_t>(ranks_), cudaMemcpyDeviceToHost, stream.get()),
                "cudaMemcpyAsync", -1, stream.get());
            cuda::check(cudaEventRecord(next.done, stream.get()), "cudaEventRecord", -1, stream.get());
            next.is_used.store(true, std::memory_order_release);
        }
    }
    cuda::check(cudaEventRecord(last_, stream.get()), "cudaEventRecord", -1, stream.get());
    ready.calls.clear();
    ready.number = 0;
    ready.unread = 0;
}

bool live_channel::look()
{
    if (rank_ != 0) return false;
    view_->leave_out(left_out_.load(std::memory_order_relaxed));
    arriving& next = arriving_[next_judged_];
    if (!next.is_used.load(std::memory_order_acquire)) return false;
    const cudaError_t code = cudaEventQuery(next.done);
    if (code != cudaSuccess) cuda::detail::forget(code);
    if (code == cudaErrorNotReady) return false;
    if (code == cudaSuccess) {
        const std::uint64_t stride = sizeof(live_header) + next.what.calls.size() * layout_.bytes();
        view_->judge(next.bytes.data(), stride, layout_, next.what.header, next.what.calls, next.what.unread);
    }
    next.is_used.store(false, std::memory_order_release);
    next_judged_ = (next_judged_ + 1) % most_arriving;
    return true;
}

void live_channel::close()
{
    if (!view_) return;
    view_->leave_out(left_out_.load(std::memory_order_relaxed));
    view_->close();
}

} // namespace collprobe_preload

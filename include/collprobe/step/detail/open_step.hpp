// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/detail/serial.hpp>
#include <collprobe/step/detail/step_block.hpp>
#include <collprobe/step/detail/step_resources.hpp>

/// The step that calls are added to, until it ends.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A call whose input is read, and whose result is to come.
template <class Device>
struct begun_call {
    std::uint64_t index; ///< in its step
    int lane;
    typename Device::stream_ref stream;
    const void* surviving = nullptr; ///< the input, if the result can be compared with it
    const void* result = nullptr;
    std::uint64_t result_count = 0;
    /// Reads the result, as elements of the call's type. Null: nothing looks at the call.
    void (*read_result)(void* probe, const begun_call&, const probed_call&) = nullptr;
};

/// The step that calls are added to: call i has entry i of its block, and a call that was not made has none. An index
/// that such a call leaves goes to the next one, which waits for the first one's work and begins with an empty entry.
template <class Device>
class open_step {
public:
    using block = step_block<Device>;
    using resources_type = step_resources<Device>;
    using begun = begun_call<Device>;
    struct observed {
        std::uint64_t number; ///< of no other one in the process
        begun at;
        probed_call call;
    };

    bool is_open() const noexcept { return block_ != nullptr; }
    block& operator*() const noexcept { return *block_; }
    block* operator->() const noexcept { return block_; }
    resources_type& resources() const noexcept { return *resources_; }

    void open(block& to, resources_type& resources, std::uint64_t due) noexcept
    {
        block_ = &to;
        resources_ = &resources;
        to.clear();
        to.due = due;
        begun_ = 0;
        is_rewritten_ = false;
        resources.parts->clear();
    }
    /// Ends the step: its calls are complete.
    void close() noexcept
    {
        block_->unread_calls = std::exchange(unread_calls, 0);
        resources_->lanes.end_step();
        block_ = nullptr;
    }
    /// Forgets the step, and all calls since the last one.
    void abandon() noexcept
    {
        in_group_.clear();
        observed_.clear();
        numbers.clear();
        close();
    }

    /// The index of the next call. The step grows to `most` calls if it has no room.
    std::uint64_t next(std::uint64_t most, call_site where)
    {
        settle();
        if (block_->call_count == block_->room()) block_->grow(most, where);
        return begun_++;
    }
    /// Lets the call's stream wait for what calls that were not made may still write. `is_first`: before any part of
    /// the step reads the call; its entry is empty then.
    void await_rewritten(const begun& call, bool is_first, call_site where) const
    {
        if (!is_rewritten_) return;
        resources_->lanes.join(call.stream, where);
        if (is_first && block_->layout.part_bytes != 0) block_->zero_entry(call.index, call.stream, where);
    }

    /// Of a call in a group: its result is read when the group has ended.
    void keep_for_group(const begun& call) { in_group_.push_back(call); }
    /// `read(call)` for each call of the group, if they are enqueued; else they were not made. What is thrown comes out
    /// of `require_no_group`.
    void end_group(bool enqueued, const auto& read) noexcept
    {
        try {
            if (!enqueued && !in_group_.empty()) block_->call_count = in_group_.front().index;
            for (const begun& call : in_group_)
                if (enqueued) read(call);
        } catch (...) { // the group's calls are made; the next call of this object throws
            if (!late_failure_) late_failure_ = std::current_exception();
        }
        in_group_.clear();
    }
    void require_no_group(const auto& who)
    {
        who.require(in_group_.empty(), "another thread has a group open, with calls of this communicator");
        if (late_failure_) std::rethrow_exception(std::exchange(late_failure_, nullptr));
    }

    /// A call that the caller makes itself. Returns its number.
    std::uint64_t observe(const begun& at, const probed_call& call)
    {
        observed_.push_back({next_serial<probed_call>(), at, call});
        return observed_.back().number;
    }
    /// Calls `read(observed)` for the result of an observed call, which it has then.
    void end_observed(std::uint64_t number, const auto& who, const auto& read)
    {
        auto of = observed_.begin();
        while (of != observed_.end() && of->number != number) ++of;
        who.require(of != observed_.end(), "the observed call has a result, or its step was abandoned");
        read(*of);
        observed_.erase(of);
    }
    void require_observed(const auto& who) const
    {
        if (observed_.empty()) return;
        who.fail(status::invalid_argument, std::to_string(observed_.size()) + " observed calls have no result yet");
    }

    /// Values with those of the host.
    std::uint64_t told() const noexcept { return numbers.size() + (is_open() ? block_->value_count : 0); }
    /// All calls are made: completes the block.
    void complete()
    {
        settle();
        for (const auto& [of, value] : numbers) block_->tell(of, {value, false});
        numbers.clear();
    }
    /// What the step's calls may have written of the message: also those that were not made.
    view<unsigned char> written() const noexcept
    {
        return block_->message_of(is_rewritten_ ? block_->room() : block_->call_count);
    }

    std::vector<std::pair<expected_value, told_value>> numbers; ///< that the host told since the last step ended
    std::uint64_t unread_calls = 0; ///< made since then, and nothing looked at them

private:
    /// What parts keep of calls that began and were not made is forgotten.
    void settle() noexcept
    {
        if (begun_ == block_->call_count) return;
        begun_ = block_->call_count;
        is_rewritten_ = true;
        resources_->parts->forget(begun_);
    }

    block* block_ = nullptr; ///< null before the step's first call
    resources_type* resources_ = nullptr;
    std::uint64_t begun_ = 0; ///< calls with an index: one more than the block has, while a call is made
    bool is_rewritten_ = false; ///< a call was not made
    std::vector<begun> in_group_; ///< calls whose group has not ended
    std::exception_ptr late_failure_; ///< of the results of a group, until it is thrown
    std::vector<observed> observed_; ///< inputs whose results are to come
};

} // namespace collprobe::detail

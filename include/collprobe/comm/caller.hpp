// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

inline constexpr const char* inside_a_group
    = "the communicator is inside a group (nccl::group or ncclGroupStart), where calls are not enqueued until it ends: "
      "end the group first";

/// One call of one rank, for the errors of algorithms and adaptors. They name the call, the rank, the communicator
/// and the caller's line. Made where the call begins; refers to the communicator.
template <communicator Comm>
class caller {
public:
    caller(const Comm& comm, const char* call, call_site where) noexcept : comm_(&comm), call_(call), where_(where) {}
    caller(const Comm& comm, collective call, call_site where) noexcept : caller(comm, collprobe::name(call), where) {}

    const char* call() const noexcept { return call_; }
    call_site where() const noexcept { return where_; }
    error_origin origin() const
    {
        return {.call = call_,
            .rank = comm_->rank(),
            .size = comm_->size(),
            .communicator = comm_->name(),
            .where = where_};
    }

    [[noreturn]] void fail(status code, const std::string& message, std::vector<int> culprits = {}) const
    {
        throw error(code, message, origin(), std::move(culprits));
    }
    /// The same, but first tells the peers, which may be waiting in the collective `instead_of`.
    [[noreturn]] void refuse(collective instead_of, stream_ref_of<Comm> on, const std::string& message,
        status code = status::invalid_argument) const
    {
        const error why(code, message, origin());
        comm_->refuse(why, instead_of, on);
        throw why;
    }

    void require(bool condition, const char* message) const
    {
        if (!condition) fail(status::invalid_argument, message);
    }
    void require_range(const char* option, int value, int least, int most = std::numeric_limits<int>::max()) const
    {
        if (value >= least && value <= most) return;
        fail(status::invalid_argument, std::string(option) + " is " + std::to_string(value) + ", but must be at "
                + (value < least ? "least " + std::to_string(least) : "most " + std::to_string(most)));
    }
    template <class T>
    void require_readable(view<T> buffer, const char* argument) const
    {
        const std::string flaw = flaw_of_buffer(buffer);
        if (!flaw.empty()) fail(status::invalid_argument, argument + flaw);
    }
    /// For work that must run behind a collective: throws if the collective is not on its stream when it returns.
    /// `advice` tells the user of another solution.
    void require_immediate(const char* advice = "") const
    {
        if (!comm_->enqueues_at_once()) fail(status::unsupported, std::string(inside_a_group) + advice);
    }

private:
    const Comm* comm_;
    const char* call_;
    call_site where_;
};

/// During its life the communicator treats calls as parts of one call of `count` elements. Without it, ranks with
/// different counts or types would not be noticed if their messages had equal sizes.
template <communicator Comm>
class parts_of_one {
public:
    parts_of_one(Comm& comm, std::uint64_t count, element_type type) noexcept : comm_(comm)
    {
        comm_.part_of(count, type);
    }
    parts_of_one(const parts_of_one&) = delete;
    ~parts_of_one() { comm_.part_of(0, {}); }

private:
    Comm& comm_;
};

} // namespace collprobe::detail

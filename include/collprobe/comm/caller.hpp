// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

inline constexpr const char* inside_a_group
    = "the communicator is inside a group (nccl::group or ncclGroupStart), where calls are not enqueued until it ends: "
      "end the group first";

/// One call of one rank, for the errors of communicators, algorithms and adaptors. They name the call, the rank, the
/// communicator and the caller's line. Made where the call begins; refers to the communicator.
template <class Comm>
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
    /// Throws the error of a bad argument of this rank, which is its culprit.
    [[noreturn]] void refuse(const std::string& message, status code = status::invalid_argument) const
    {
        fail(code, message, {comm_->rank()});
    }
    /// Refuses arguments that no communicator takes.
    void require_right(const collective_call& call) const
    {
        const std::string flaw = flaw_of_arguments(call, comm_->rank(), comm_->size());
        if (!flaw.empty()) refuse(flaw);
    }
    void require(bool condition, const char* message) const
    {
        if (!condition) refuse(message);
    }
    template <class T>
    void require_readable(view<T> buffer, const char* argument) const
    {
        const std::string flaw = flaw_of_buffer(buffer);
        if (!flaw.empty()) refuse(argument + flaw);
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

} // namespace collprobe::detail

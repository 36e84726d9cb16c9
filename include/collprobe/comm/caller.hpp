// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What keeps `count` elements of `element_bytes` at `data` from being used, to stand behind the name of an argument;
/// empty: nothing.
inline std::string flaw_of_buffer(const void* data, std::uint64_t count, std::uint64_t element_bytes)
{
    if (count == 0) return {};
    if (data == nullptr) return " is null with count " + std::to_string(count);
    if (reinterpret_cast<std::uintptr_t>(data) % element_bytes != 0) {
        return " is not aligned to " + std::to_string(element_bytes) + " bytes";
    }
    return {};
}
template <class T>
std::string flaw_of_buffer(view<T> buffer)
{
    return flaw_of_buffer(buffer.data(), buffer.count(), alignof(T));
}

inline constexpr const char* inside_a_group
    = "the communicator is inside a group (nccl::group or ncclGroupStart), where calls are not enqueued until it ends: "
      "end the group first";

/// One call of one rank, for the errors of algorithms and adaptors: they name the call, the rank, the communicator and
/// the caller's line. Made where the call begins; refers to the communicator.
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
            .communicator = name_of(*comm_),
            .where = where_};
    }

    [[noreturn]] void fail(status code, const std::string& message, std::vector<int> culprits = {}) const
    {
        throw error(code, message, origin(), std::move(culprits));
    }
    /// The same, but tells the peers first, who may be waiting in the collective `instead_of`.
    [[noreturn]] void refuse(collective instead_of, stream_ref_of<Comm> on, const std::string& message,
        status code = status::invalid_argument) const
    {
        const error why(code, message, origin());
        tell_refusal(*comm_, why, instead_of, on);
        throw why;
    }

    void require(bool condition, const char* message) const
    {
        if (!condition) fail(status::invalid_argument, message);
    }
    template <class T>
    void require_readable(view<T> buffer, const char* argument) const
    {
        const std::string flaw = flaw_of_buffer(buffer);
        if (!flaw.empty()) fail(status::invalid_argument, argument + flaw);
    }
    /// For what is enqueued behind a collective, which must run behind it. `advice`: what else can be done about it.
    void require_immediate(const char* advice = "") const
    {
        if (!enqueues_at_once(*comm_)) fail(status::unsupported, std::string(inside_a_group) + advice);
    }

private:
    const Comm* comm_;
    const char* call_;
    call_site where_;
};

} // namespace collprobe::detail

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/call.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/order/hooks.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A communicator that moves the data itself. Its `make` begins with `require_right` and `report`.
template <class Self, class Device>
class checked_collectives : public collectives<Self, Device> {
public:
    using typename collectives<Self, Device>::stream_ref;

protected:
    /// Throws the error of a bad argument of this rank, which is its culprit. Nothing is enqueued.
    [[noreturn]] void refuse(
        const char* call, call_site where, const std::string& message, status code = status::invalid_argument) const
    {
        const Self& self = static_cast<const Self&>(*this);
        throw error(code, message,
            {.call = call, .rank = self.rank(), .size = self.size(), .communicator = self.name(), .where = where},
            {self.rank()});
    }
    /// Refuses arguments that no communicator takes.
    void require_right(const collective_call& call) const
    {
        const Self& self = static_cast<const Self&>(*this);
        const std::string flaw = flaw_of_arguments(call, self.rank(), self.size());
        if (!flaw.empty()) refuse(collprobe::name(call.what), call.where, flaw);
    }
    /// Reports the call to the checker of stream order, and returns the description that the ranks must agree on. What
    /// the caller does for the call is then silent towards the checker. `deferrable`: whether an open group may delay
    /// the call.
    call_description report(const collective_call& call, stream_ref on, bool deferrable = false) const
    {
        const Self& self = static_cast<const Self&>(*this);
        order_hooks::call(on, self.rank(), call, deferrable);
        return {call.what, call.type, call.operation, call.root, agreed_count(call, self.size())};
    }
};

} // namespace collprobe::detail

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/call.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/order/hooks.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A communicator that moves the data itself. Its `make` begins with `checked`.
template <class Self, class Device>
class checked_collectives : public collectives<Self, Device> {
public:
    using typename collectives<Self, Device>::stream_ref;

    void part_of(std::uint64_t count, element_type type) noexcept { whole_ = whole_call(count, type); }

protected:
    /// Refuses wrong arguments, reports the call to the checker of stream order, and returns the description that the
    /// ranks must agree on. What the caller does for the call is then silent towards the checker.
    /// `check`: an object with `fail(message)`, which throws and tells the peers, and `places(call)`, which fails if
    /// memory cannot be used. `deferrable`: whether an open group may delay the call.
    template <class Check>
    call_description checked(
        const Check& check, const collective_call& call, stream_ref on, bool deferrable = false) const
    {
        const Self& self = static_cast<const Self&>(*this);
        const int rank = self.rank();
        const int size = self.size();
        if (const std::string flaw = flaw_of_arguments(call, rank, size); !flaw.empty()) check.fail(flaw);
        check.places(call);
        order_hooks::call(on, rank, call, deferrable);
        return {call.what, call.type, call.operation, call.root, agreed_count(call, size), whole_};
    }

    whole_call whole_;
};

} // namespace collprobe::detail

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/step/detail/message.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The calls of a step by `probed_call::identity`; equal ones in the order of the step.
class sorted_calls {
public:
    /// True if the step has the calls of the last one, in their order.
    bool see(view<const probed_call> calls, bool has_places)
    {
        bool as_before = identities_.size() == calls.size();
        identities_.resize(calls.size());
        for (std::size_t c = 0; c < calls.size(); ++c) {
            const std::uint64_t now = calls[c].identity(has_places);
            as_before = as_before && identities_[c] == now;
            identities_[c] = now;
        }
        return as_before;
    }
    /// Gives `use(call, identity, order)` each call, ascending by identity; `order`: among those of the same identity.
    void for_each_sorted(const auto& use)
    {
        sorted_.resize(identities_.size());
        for (std::size_t c = 0; c < sorted_.size(); ++c) sorted_[c] = static_cast<std::uint32_t>(c);
        std::sort(sorted_.begin(), sorted_.end(), [this](std::uint32_t a, std::uint32_t b) {
            return identities_[a] != identities_[b] ? identities_[a] < identities_[b] : a < b;
        });
        std::uint64_t order = 0;
        for (std::size_t i = 0; i < sorted_.size(); ++i) {
            const std::uint64_t identity = identities_[sorted_[i]];
            order = i > 0 && identities_[sorted_[i - 1]] == identity ? order + 1 : 0;
            use(sorted_[i], identity, order);
        }
    }
    void clear() noexcept { identities_.clear(); }

private:
    std::vector<std::uint64_t> identities_; ///< of the last step
    std::vector<std::uint32_t> sorted_; ///< calls
};

} // namespace collprobe::detail

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/overlap.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What the arguments of a collective must be, the same for every communicator. `Check` derives from this and has
/// `fail(message)`, which throws and says so to whom it concerns, `call()` and `size()`.
template <class Check>
class argument_rules {
public:
    void operation(reduction operation) const
    {
        if (operation <= reduction::product) return;
        self().fail("operation " + std::to_string(static_cast<int>(operation)) + " is no reduction");
    }
    void root(int root) const
    {
        if (root >= 0 && root < self().size()) return;
        self().fail("root " + std::to_string(root) + " is not a rank: there are " + std::to_string(self().size()));
    }
    template <class T>
    void buffer(view<T> buffer, const char* argument) const
    {
        if (buffer.data() == nullptr && !buffer.empty()) {
            self().fail(std::string(argument) + " is null with count " + std::to_string(buffer.count()));
        }
        if (!buffer.aligned()) {
            self().fail(std::string(argument) + " is not aligned to " + std::to_string(alignof(T)) + " bytes");
        }
        if (buffer.count() > static_cast<std::uint64_t>(INT64_MAX) / sizeof(T)) {
            self().fail(std::string(argument) + " has the impossible count " + std::to_string(buffer.count()));
        }
    }
    /// That `send` has `send_parts` parts where `receive` has `receive_parts`.
    template <class T>
    void shape(view<const T> send, std::uint64_t send_parts, view<T> receive, std::uint64_t receive_parts,
        const char* rule) const
    {
        if (send.count() % send_parts == 0 && receive.count() % receive_parts == 0
            && send.count() / send_parts == receive.count() / receive_parts) {
            return;
        }
        self().fail(std::string("not ") + rule + ": send.count() is " + std::to_string(send.count())
            + ", receive.count() is " + std::to_string(receive.count()) + ", size() is "
            + std::to_string(self().size()));
    }
    /// That no byte is shared, unless exactly `in_place`.
    template <class T>
    void placement(view<const T> send, view<T> receive, bool in_place) const
    {
        if (in_place || !overlap(send.data(), send.size_bytes(), receive.data(), receive.size_bytes())) return;
        self().fail(self().call() == collective::all_to_all ? "send and receive overlap"
                                                            : "send and receive overlap, but not as they do in place");
    }

private:
    const Check& self() const noexcept { return static_cast<const Check&>(*this); }
};

} // namespace collprobe::detail

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/local/communicator.hpp>

namespace collprobe::testing {

/// Counts what this rank is asked to send, by the library, too: the innermost communicator.
class counting : public adaptor<counting, local::communicator> {
public:
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;

    explicit counting(const local::communicator& of) : adaptor(of) {}

    counting& innermost() noexcept { return *this; }
    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        count((call.what == collective::broadcast ? call.receive_count : call.send_count) * sizeof(T));
        adaptor::make<T>(call, on);
    }

private:
    void count(std::uint64_t sent)
    {
        ++calls;
        bytes += sent;
    }
};

} // namespace collprobe::testing

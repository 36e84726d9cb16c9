// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/collprobe.hpp>

/// Damage to messages of codes, in the groups of nodes, too.
namespace collprobe::testing {

/// Bits of a byte that a rank receives in one of its calls with bytes.
struct flip {
    int rank = 0;
    collective call = collective::all_to_all;
    int number = 0; ///< of the rank's calls of that kind
    std::uint64_t byte = 0;
    unsigned mask = 1;
};

/// Of one rank, over its communicators.
struct flips_of_rank {
    std::vector<flip> flips;
    int rank = 0;
    int exchanges = 0;
    int gathers = 0;
};

template <communicator Comm>
class flipping : public adaptor<flipping<Comm>, Comm> {
    using base_type = adaptor<flipping, Comm>;
    using base_type::comm_;

public:
    using typename base_type::stream_ref;

    flipping(Comm comm, flips_of_rank& flips) : base_type(std::move(comm)), flips_(&flips) {}

    template <element T>
    void make(const collective_call& call, stream_ref stream)
    {
        comm_.template make<T>(call, stream);
        if constexpr (std::is_same_v<T, std::uint8_t>) {
            if (call.what == collective::all_to_all) damage(call.what, flips_->exchanges++, call.received<T>(), stream);
            if (call.what == collective::all_gather) damage(call.what, flips_->gathers++, call.received<T>(), stream);
        }
    }
    auto split(int color, int key, call_site where = call_site::current())
    {
        auto part = comm_.split(color, key, where);
        using part_type = std::remove_cvref_t<decltype(*part)>;
        std::optional<flipping<part_type>> made;
        if (part) made.emplace(std::move(*part), *flips_);
        return made;
    }

private:
    void damage(collective call, int number, view<std::uint8_t> received, stream_ref stream)
    {
        for (const flip& each : flips_->flips) {
            if (each.rank != flips_->rank || each.call != call || each.number != number) continue;
            stream.enqueue([received, each] {
                received.data()[each.byte] = static_cast<std::uint8_t>(received[each.byte] ^ each.mask);
            });
        }
    }

    flips_of_rank* flips_;
};

} // namespace collprobe::testing

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
class flipping : public adaptor<Comm> {
    using adaptor<Comm>::comm_;

public:
    using typename adaptor<Comm>::device;
    using typename adaptor<Comm>::stream_ref;

    flipping(Comm comm, flips_of_rank& flips) : adaptor<Comm>(std::move(comm)), flips_(&flips) {}

    template <element T>
        requires has_all_to_all<Comm, T>
    void all_to_all(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref stream,
        call_site where = call_site::current())
    {
        comm_.all_to_all(send, receive, stream, where);
        if constexpr (std::is_same_v<T, std::uint8_t>)
            damage(collective::all_to_all, flips_->exchanges++, receive, stream);
    }
    template <element T>
        requires has_all_gather<Comm, T>
    void all_gather(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref stream,
        call_site where = call_site::current())
    {
        comm_.all_gather(send, receive, stream, where);
        if constexpr (std::is_same_v<T, std::uint8_t>)
            damage(collective::all_gather, flips_->gathers++, receive, stream);
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

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/host/device.hpp>

/// Healthy calls whose lengths are known, of all kinds of data: none may have an excess.
namespace collprobe::testing {

/// What the data of a step are like.
enum class data { own, alike, equal, opposite, one_large, tiny, small, large, zero, sparse, kinds };

template <floating_element T>
void fill(std::vector<T>& send, data how, int rank, std::uint64_t step)
{
    std::mt19937_64 common(step), own(1000 * step + static_cast<std::uint64_t>(rank) + 1);
    std::normal_distribution<double> of_all, of_rank; // each keeps every second number
    double largest = 0;
    with_floating_type(element_traits<T>::type,
        [&]<class U>(U) { largest = std::ldexp(1.0, element_traits<U>::max_exponent - 6); });
    for (T& x : send) {
        const double shared = of_all(common);
        const double mine = of_rank(own);
        double value = mine;
        switch (how) {
        case data::own: break;
        case data::alike: value = shared + 0.01 * mine; break;
        case data::equal: value = shared; break;
        case data::opposite: value = rank % 2 == 0 ? shared : -shared; break;
        case data::one_large: value = rank == 0 ? 1e4 * mine : mine; break;
        case data::tiny: value = mine * std::ldexp(1.0, element_traits<T>::min_subnormal_exponent + 2); break;
        case data::small: value = mine * (sizeof(T) == 8 ? 1e-160 : 1); break; // whose squares are subnormal
        case data::large: value = shared * largest / 8; break;
        case data::zero: value = 0; break;
        case data::sparse: value = own() % 50 == 0 ? mine : 0; break;
        case data::kinds: break;
        }
        if constexpr (std::is_same_v<T, double>) x = value;
        else x = T(static_cast<float>(value));
    }
}

struct seen_lengths {
    double largest = 0;
    int beyond = 0;
    int known = 0;

    void add(const step_record& record)
    {
        for (const call_record& call : record.calls) {
            if (is_nan(call.excess)) continue;
            ++known;
            largest = call.excess > largest ? call.excess : largest;
            beyond += call.excess > 1 ? 1 : 0;
        }
    }
};

/// All calls whose lengths are known.
template <floating_element T, class Probe>
void make_calls(Probe& probe, std::vector<T>& send, int ranks, std::uint64_t step, host::stream_ref stream)
{
    const auto n = static_cast<std::size_t>(ranks);
    std::vector<T> same(send.size()), part(send.size() / n), whole(send.size() * n);
    const reduction how = step % 2 == 0 ? reduction::sum : reduction::average;
    probe.all_reduce(send, view<T>(same), how, stream);
    probe.reduce_scatter(send, view<T>(part), how, stream);
    probe.all_gather(send, view<T>(whole), stream);
    probe.all_to_all(send, view<T>(same), stream);
    probe.broadcast(send, view<T>(same), static_cast<int>(step % n), stream);
    std::vector<T> in_place = send;
    probe.all_reduce(in_place, view<T>(in_place), how, stream);
    stream.synchronize();
}

} // namespace collprobe::testing

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/fault/faulty.hpp>

#include "support/errors.hpp"
#include "support/run_ranks.hpp"

/// Calls with faults beside what they must give, computed from the plan by plain loops and a clean communicator.
namespace collprobe::testing {

/// The effect of each fault of a list on rank `rank` in its call number `call`, in the order of the list. A pure
/// function, so every rank can compute it for every other. (For `stale` it assumes that the call `lag` calls earlier
/// had as many elements.)
/// Precondition: `faulty` accepts the list.
inline std::vector<injection> planned(
    const std::vector<fault>& faults, std::uint64_t call, int rank, const detail::fault_target& target)
{
    std::vector<injection> all;
    for (std::size_t which = 0; which < faults.size(); ++which) {
        injection one;
        if (detail::plan_fault(faults[which], static_cast<std::uint32_t>(which), call, rank, target, one)) {
            all.push_back(one);
        }
    }
    return all;
}

/// The calls of a test: the same shape again and again.
struct fault_calls {
    collective where = collective::all_reduce;
    int ranks = 3;
    std::uint64_t count = 100; ///< of a part: what a rank sends of an all-gather, receives of a reduce-scatter
    bool in_place = false;
    std::uint64_t calls = 1;

    std::uint64_t size() const { return static_cast<std::uint64_t>(ranks); }
    bool gathers() const { return where == collective::all_gather; }
    std::uint64_t send_count() const { return parts_of(!gathers() && is_split()); }
    std::uint64_t receive_count() const { return parts_of(where != collective::reduce_scatter && is_split()); }
    detail::fault_target target(int rank, element_type type) const
    {
        const bool sends = where != collective::broadcast || rank == 0;
        return {where, type, sends ? send_count() : 0, receive_count(), ranks};
    }

private:
    bool is_split() const { return where != collective::all_reduce && where != collective::broadcast; }
    std::uint64_t parts_of(bool all) const { return all ? size() * count : count; }
};

/// Some number of an element: floating-point ones not too large, integers of all bits.
template <element T>
T some_element(std::uint64_t number)
{
    const std::uint64_t bits = detail::mix64(number * 0x9e3779b97f4a7c15u + 99);
    if constexpr (floating_element<T>) return T(static_cast<float>(static_cast<double>(bits >> 12) * 0x1p-51 - 1.0));
    else return static_cast<T>(bits);
}

/// What a rank has after a call.
template <element T>
struct rank_buffers {
    std::vector<T> send;
    std::vector<T> receive;
};
template <element T>
using outcome_of_calls = std::vector<std::vector<rank_buffers<T>>>; // by call and rank

/// The buffers before a call. What `receive` holds then matters for a tail that stays.
template <element T>
rank_buffers<T> fresh_buffers(const fault_calls& all, std::uint64_t call, int rank)
{
    const std::uint64_t base = (call * 64 + static_cast<std::uint64_t>(rank)) << 32;
    rank_buffers<T> own;
    for (std::uint64_t i = 0; i < all.send_count(); ++i) own.send.push_back(some_element<T>(base + i));
    for (std::uint64_t i = 0; i < all.receive_count(); ++i) own.receive.push_back(some_element<T>(base + (1u << 31) + i));
    return own;
}

template <class Comm, element T>
void make_call(Comm& comm, const fault_calls& all, view<const T> send, view<T> receive, host::stream_ref on)
{
    switch (all.where) {
    case collective::all_reduce: return comm.all_reduce(send, receive, reduction::sum, on);
    case collective::reduce_scatter: return comm.reduce_scatter(send, receive, reduction::sum, on);
    case collective::all_gather: return comm.all_gather(send, receive, on);
    case collective::all_to_all: return comm.all_to_all(send, receive, on);
    default: return comm.broadcast(send, receive, 0, on);
    }
}

/// Makes the calls on this rank; `inspect(call, own)` gets the buffers after each.
template <element T, class Comm, class Inspect>
void make_calls(Comm& comm, const fault_calls& all, Inspect inspect)
{
    const auto rank = static_cast<std::uint64_t>(comm.rank());
    for (std::uint64_t call = 0; call < all.calls; ++call) {
        rank_buffers<T> own = fresh_buffers<T>(all, call, comm.rank());
        view<T> send(own.send);
        view<T> receive(own.receive);
        if (all.in_place) {
            // The smaller one is a part of the larger.
            if (all.gathers()) {
                std::memcpy(static_cast<void*>(own.receive.data() + rank * all.count), own.send.data(), all.count * sizeof(T));
                send = receive.part(rank * all.count, all.count);
            } else if (all.where == collective::reduce_scatter) {
                receive = send.part(rank * all.count, all.count);
            } else if (all.where != collective::broadcast || rank == 0) {
                receive = send;
            }
        }
        {
            host::stream stream;
            make_call<Comm, T>(comm, all, send, receive, stream);
            stream.synchronize(soon_ms);
        }
        own = {std::vector<T>(send.begin(), send.end()), std::vector<T>(receive.begin(), receive.end())};
        inspect(call, own);
    }
}

/// What faults do to elements, by plain loops.
template <element T>
void apply(const injection& one, double magnitude, std::vector<T>& data, const std::vector<T>& by)
{
    using traits = element_traits<T>;
    using bits = typename traits::bits_type;
    for (std::uint64_t k = 0; k < one.elements; ++k) {
        const std::uint64_t at = one.first + k * one.stride;
        if (at >= data.size()) throw std::logic_error("a plan that leaves the buffer");
        T& hit = data[at];
        switch (one.kind) {
        case fault_kind::bit_flips: hit = std::bit_cast<T>(static_cast<bits>(std::bit_cast<bits>(hit) ^ one.mask)); break;
        case fault_kind::gaussian:
            if constexpr (floating_element<T>) {
                hit = T(double(hit) + std::sqrt(magnitude) * detail::standard_normal(detail::fault_draw(one.key, k)));
            }
            break;
        case fault_kind::scale:
            if constexpr (floating_element<T>) {
                hit = T(double(hit) * magnitude);
            } else {
                const double value = std::trunc(double(hit) * magnitude);
                const double low = double(std::numeric_limits<T>::min()), high = double(std::numeric_limits<T>::max());
                hit = value <= low ? std::numeric_limits<T>::min()
                    : value >= high ? std::numeric_limits<T>::max()
                                    : static_cast<T>(value);
            }
            break;
        case fault_kind::zero_slice: std::memset(static_cast<void*>(&hit), 0, sizeof(T)); break;
        case fault_kind::untouched_tail:
        case fault_kind::stale: hit = by.at(at); break;
        case fault_kind::duplicate_shard:
            hit = one.phase == fault_phase::after ? by.at(static_cast<std::uint64_t>(one.source) * one.elements + k) : by.at(at);
            break;
        case fault_kind::swap:
            if (k % 2 == 0) std::swap(hit, data.at(at + one.stride));
            break;
        case fault_kind::nan:
        case fault_kind::infinity:
            if constexpr (floating_element<T>) {
                const int fraction = traits::digits - 1;
                const std::uint64_t sign = std::uint64_t{1} << (8 * sizeof(T) - 1);
                const bool negative = one.kind == fault_kind::infinity && (detail::fault_draw(one.key, k) & 1) != 0;
                const std::uint64_t quiet = one.kind == fault_kind::nan ? std::uint64_t{1} << (fraction - 1) : 0;
                const std::uint64_t exponent = sign - (std::uint64_t{1} << fraction);
                hit = std::bit_cast<T>(static_cast<bits>(exponent | quiet | (negative ? sign : 0)));
            }
            break;
        }
    }
}

/// What the calls must give with these faults.
template <element T>
outcome_of_calls<T> expected(const fault_calls& all, const std::vector<fault>& faults)
{
    const auto each_rank = [&](auto use) {
        for (int rank = 0; rank < all.ranks; ++rank) use(rank, static_cast<std::size_t>(rank));
    };
    outcome_of_calls<T> outcome;
    std::vector<std::vector<std::vector<T>>> clean_sent, clean_received; // by call and rank
    for (std::uint64_t call = 0; call < all.calls; ++call) {
        std::vector<std::vector<injection>> plan;
        std::vector<std::vector<T>> held, travels; // the send buffers, and what is sent
        std::vector<rank_buffers<T>> fresh;
        each_rank([&](int rank, std::size_t) {
            plan.push_back(planned(faults, call, rank, all.target(rank, element_traits<T>::type)));
            fresh.push_back(fresh_buffers<T>(all, call, rank));
            held.push_back(fresh.back().send);
        });
        clean_sent.push_back(held);
        const auto damage = [&](fault_phase phase, std::vector<std::vector<T>>& data, auto& kept) {
            for (std::uint32_t which = 0; which < faults.size(); ++which) {
                each_rank([&](int, std::size_t r) {
                    for (injection one : plan[r]) {
                        if (one.fault != which || one.phase != phase) continue;
                        const std::vector<T> own = data[r];
                        const std::vector<T>& by = one.kind == fault_kind::stale ? kept.at(call - faults[which].lag)[r]
                            : one.kind == fault_kind::duplicate_shard && phase != fault_phase::after
                            ? data[static_cast<std::size_t>(one.source)]
                            : own;
                        apply(one, faults[which].magnitude, data[r], std::vector<T>(by));
                    }
                });
            }
        };
        damage(fault_phase::before, held, clean_sent);
        travels = held;
        damage(fault_phase::during, travels, clean_sent);
        // The collective itself: that of a communicator without faults.
        std::vector<std::vector<T>> result(all.size());
        local::run(all.ranks, [&](local::communicator& world) {
            const auto r = static_cast<std::size_t>(world.rank());
            std::vector<T> receive(all.receive_count());
            {
                host::stream stream;
                make_call<local::communicator, T>(world, all, view<const T>(travels[r]), view<T>(receive), stream);
                stream.synchronize(soon_ms);
            }
            result[r] = receive;
        });
        clean_received.push_back(result);
        std::vector<std::vector<T>> was = result; // what each rank's `receive` held before the call
        each_rank([&](int rank, std::size_t r) {
            was[r] = fresh[r].receive;
            if (!all.in_place) return;
            const auto own = static_cast<std::size_t>(r * all.count);
            if (all.gathers()) std::copy(held[r].begin(), held[r].end(), was[r].begin() + static_cast<std::ptrdiff_t>(own));
            else if (all.where == collective::reduce_scatter) was[r] = std::vector<T>(held[r].begin() + static_cast<std::ptrdiff_t>(own), held[r].begin() + static_cast<std::ptrdiff_t>(own + all.count));
            else if (all.where != collective::broadcast || rank == 0) was[r] = held[r];
        });
        each_rank([&](int, std::size_t r) {
            for (const injection& one : plan[r]) {
                if (one.phase != fault_phase::after) continue;
                const std::vector<T> by = one.kind == fault_kind::stale ? clean_received.at(call - faults[one.fault].lag)[r]
                    : one.kind == fault_kind::untouched_tail           ? was[r]
                                                                       : result[r];
                apply(one, faults[one.fault].magnitude, result[r], by);
            }
        });
        outcome.emplace_back();
        each_rank([&](int, std::size_t r) { outcome.back().push_back({held[r], result[r]}); });
    }
    return outcome;
}

template <element T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b)
{
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// NaN payloads of sums are the reduction's affair.
template <element T>
bool same_values(const std::vector<T>& a, const std::vector<T>& b)
{
    bool same = a.size() == b.size();
    for (std::size_t i = 0; same && i < a.size(); ++i) same = to_bits(a[i]) == to_bits(b[i]) || (is_nan(a[i]) && is_nan(b[i]));
    return same;
}

/// Makes the calls with the faults; empty if everything is as expected, else what is not. `hits` counts injections.
template <element T>
std::string difference(const fault_calls& all, const std::vector<fault>& faults, std::uint64_t& hits)
{
    const outcome_of_calls<T> wanted = expected<T>(all, faults);
    std::vector<std::string> wrong(all.size());
    std::vector<std::uint64_t> counts(all.size());
    local::run(all.ranks, [&](local::communicator& world) {
        const auto r = static_cast<std::size_t>(world.rank());
        faulty comm{world, faults, {.max_bytes = 1 << 14}};
        std::vector<injection> plan;
        make_calls<T>(comm, all, [&](std::uint64_t call, const rank_buffers<T>& own) {
            const std::string at = " of call " + std::to_string(call) + " of rank " + std::to_string(r);
            const rank_buffers<T>& want = wanted[call][r];
            if (!same_values(own.receive, want.receive)) wrong[r] += "receive" + at + "; ";
            // In place the send buffer is (part of) the result.
            if (!all.in_place && !same_bits(own.send, want.send)) wrong[r] += "send" + at + "; ";
            for (const injection& one : planned(faults, call, world.rank(), all.target(world.rank(), element_traits<T>::type))) {
                // The log has them by phase within a call.
                const auto place = std::upper_bound(plan.begin(), plan.end(), one, [](const injection& a, const injection& b) {
                    return a.call != b.call ? a.call < b.call : a.phase < b.phase;
                });
                plan.insert(place, one);
            }
        });
        const std::vector<injection> log(comm.injected().begin(), comm.injected().end());
        if (log != plan) wrong[r] += "log of rank " + std::to_string(r) + "; ";
        counts[r] = log.size();
    });
    std::string all_wrong;
    for (const std::string& each : wrong) all_wrong += each;
    hits = 0;
    for (const std::uint64_t each : counts) hits += each;
    return all_wrong;
}

} // namespace collprobe::testing

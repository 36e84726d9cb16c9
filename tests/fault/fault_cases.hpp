// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
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

/// What a call is given; in place the smaller of the buffers is a part of the larger.
template <element T>
std::pair<view<T>, view<T>> placed(const fault_calls& all, int rank, rank_buffers<T>& own)
{
    const view<T> send(own.send), receive(own.receive);
    const std::uint64_t first = static_cast<std::uint64_t>(rank) * all.count;
    if (!all.in_place || (all.where == collective::broadcast && rank != 0)) return {send, receive};
    if (all.where == collective::reduce_scatter) return {send, send.part(first, all.count)};
    if (!all.gathers()) return {send, send};
    std::copy(send.begin(), send.end(), receive.data() + first);
    return {receive.part(first, all.count), receive};
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

/// Makes the calls with the faults; empty if everything is as it must be, else what is not. `hits` counts injections.
template <element T>
std::string difference(const fault_calls& all, const std::vector<fault>& faults, std::uint64_t& hits)
{
    std::vector<std::string> wrong(all.size());
    std::atomic<std::uint64_t> count{0};
    local::run(all.ranks, [&](local::communicator& world) {
        const auto own = static_cast<std::size_t>(world.rank());
        const auto copy_of = [](view<const T> data) { return std::vector<T>(data.begin(), data.end()); };
        faulty comm{world, faults, {.max_bytes = 1 << 14}};
        std::vector<std::vector<std::vector<T>>> sent; // by call and rank, without faults
        std::vector<std::vector<T>> received; // by call, without faults of what was received
        std::vector<injection> log;
        for (std::uint64_t call = 0; call < all.calls; ++call) {
            std::vector<std::vector<injection>> plan;
            std::vector<std::vector<T>> travels;
            for (int rank = 0; rank < all.ranks; ++rank) {
                plan.push_back(planned(faults, call, rank, all.target(rank, element_traits<T>::type)));
                travels.push_back(fresh_buffers<T>(all, call, rank).send);
            }
            sent.push_back(travels);
            std::vector<T> held; // by the own send buffer
            for (const fault_phase phase : {fault_phase::before, fault_phase::during}) {
                for (std::uint32_t which = 0; which < faults.size(); ++which) {
                    for (std::size_t r = 0; r < all.size(); ++r) {
                        for (const injection& one : plan[r]) {
                            if (one.fault != which || one.phase != phase) continue;
                            const std::vector<T> by = one.kind == fault_kind::stale ? sent.at(call - faults[which].lag)[r]
                                : one.kind == fault_kind::duplicate_shard ? travels[static_cast<std::size_t>(one.source)]
                                                                          : travels[r];
                            apply(one, faults[which].magnitude, travels[r], by);
                        }
                    }
                }
                if (phase == fault_phase::before) held = travels[own];
            }
            host::stream stream;
            // The collective itself: that of a communicator without faults.
            std::vector<T> result(all.receive_count());
            make_call<local::communicator, T>(world, all, view<const T>(travels[own]), view<T>(result), stream);
            stream.synchronize(soon_ms);
            received.push_back(result);
            rank_buffers<T> buffers = fresh_buffers<T>(all, call, world.rank());
            rank_buffers<T> behind_damage{held, buffers.receive};
            const std::vector<T> was = copy_of(placed(all, world.rank(), behind_damage).second); // what `receive` held
            for (const injection& one : plan[own]) {
                if (one.phase != fault_phase::after) continue;
                const std::vector<T> by = one.kind == fault_kind::stale ? received.at(call - faults[one.fault].lag)
                    : one.kind == fault_kind::untouched_tail            ? was
                                                                        : result;
                apply(one, faults[one.fault].magnitude, result, by);
            }

            const auto [send, receive] = placed(all, world.rank(), buffers);
            make_call<decltype(comm), T>(comm, all, view<const T>(send), receive, stream);
            stream.synchronize(soon_ms);
            const std::string at = " of call " + std::to_string(call) + " of rank " + std::to_string(own);
            if (!same_values(copy_of(receive), result)) wrong[own] += "receive" + at + "; ";
            // In place the send buffer is (part of) the result.
            if (!all.in_place && !same_bits(copy_of(send), held)) wrong[own] += "send" + at + "; ";
            std::stable_sort(plan[own].begin(), plan[own].end(), // as the log has them
                [](const injection& a, const injection& b) { return a.phase < b.phase; });
            log.insert(log.end(), plan[own].begin(), plan[own].end());
        }
        if (!std::equal(log.begin(), log.end(), comm.injected().begin(), comm.injected().end()))
            wrong[own] += "log of rank " + std::to_string(own) + "; ";
        count += log.size();
    });
    std::string all_wrong;
    for (const std::string& each : wrong) all_wrong += each;
    hits = count;
    return all_wrong;
}

} // namespace collprobe::testing

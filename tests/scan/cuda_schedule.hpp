// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/scan/detail/slot_statistics.hpp>
#include <collprobe/scan/detail/thread_scan.hpp>

/// What the kernels of scan/cuda/detail/scan_reduction.cuh do, on the host: the same code for each thread,
/// the same tree over the threads of a block, the same order of slots. (As plain functions: only the
/// barriers, the shared memory and the hand-over between blocks are not covered.)
namespace collprobe::cuda_schedule {

namespace scan = collprobe::detail;

/// A block reduction as CUB does it: within each warp of 32 at distances 1, 2, 4, 8, 16, then the warps
/// one after the other.
template <class Value>
Value merge_block(std::vector<Value> values)
{
    for (std::size_t warp = 0; warp < values.size(); warp += 32) {
        for (std::size_t distance = 1; distance < 32; distance *= 2)
            for (std::size_t lane = 0; lane + distance < 32; ++lane) {
                // Lane by lane upwards: a lane reads what its neighbour had before this step.
                const Value next = values[warp + lane + distance];
                values[warp + lane].merge(next);
            }
    }
    for (std::size_t warp = 32; warp < values.size(); warp += 32) values[0].merge(values[warp]);
    return values[0];
}

struct dot_sum {
    double value = 0;
    void merge(const dot_sum& next) { value += next.value; }
};

struct slot_result {
    statistics value;
    collprobe::detail::digest_state digest;
    double dot = 0;
};

template <element T, scan::scan_features features>
slot_result reduce_slot(const scan::scan_input<T>& input, std::uint64_t first, std::uint32_t count)
{
    constexpr unsigned threads = scan::block_threads;
    constexpr std::uint64_t per_round = scan::per_words16<T> * threads;
    static scan::digest_multipliers multipliers;
    static const bool filled = [] {
        for (unsigned lane = 0; lane < threads; ++lane) multipliers.fill(lane);
        return true;
    }();
    (void)filled;

    scan::rare_counts rare = scan::rare_counts::none();
    std::vector<scan::thread_scan<T, features>> block;
    for (unsigned lane = 0; lane < threads; ++lane) block.emplace_back(&multipliers, lane);
    const std::uint64_t rounds = count / per_round;
    const auto rest = static_cast<unsigned>(count % per_round);
    for (std::uint64_t begin = 0; begin < rounds + (rest != 0 ? 1 : 0); begin += 256) {
        const bool is_last = rounds - begin < 256;
        const unsigned whole = is_last ? static_cast<unsigned>(rounds - begin) : 256;
        std::vector<scan::digest_factors> factors;
        for (unsigned i = 0; i < whole + 1; ++i)
            factors.push_back(scan::digest_factors::of_round(first / per_round + begin + i));
        const std::uint64_t from = first + begin * per_round;
        const auto offset = static_cast<std::uint32_t>(begin * per_round);
        for (unsigned lane = 0; lane < threads; ++lane) {
            scan::scan_rounds(
                block[lane], input, from, offset, whole, is_last ? rest : 0, lane, factors.data(), rare);
        }
    }
    std::vector<scan::shifted_sums> sums;
    std::vector<scan::range_totals<T>> ranges;
    std::vector<scan::digest_totals> digests;
    std::vector<dot_sum> dots;
    for (const auto& thread : block) {
        sums.push_back(thread.sums);
        ranges.push_back(thread.counts);
        digests.push_back(thread.digest);
        dots.push_back({thread.dot});
    }
    const auto again = [&](const scan::slot_request& request) {
        std::vector<scan::shifted_sums> shifted(threads);
        for (unsigned lane = 0; lane < threads; ++lane) {
            scan::sum_shifted<T>(shifted[lane], input.source, first, count, lane, request.factor, request.pivot);
        }
        return merge_block(shifted);
    };
    slot_result result;
    result.value.type = element_traits<T>::type;
    result.value.has_digest = features.digest ? 1 : 0;
    scan::shifted_sums total = merge_block(sums);
    scan::slot_request request = scan::describe_slot<T>(merge_block(ranges), rare, first, count, result.value);
    if (request.again) total = again(request);
    if constexpr (features.moments) {
        request = scan::sum_slot(total, result.value);
        if (request.again) scan::refine_slot(scan::centred_sums::of(again(request)), result.value);
        scan::close_slot(result.value);
    } else {
        result.value.sum_of_squares = total.squares;
    }
    const scan::digest_totals digest = merge_block(digests);
    if constexpr (features.digest) result.digest = {digest.first, digest.second, std::uint64_t{count} * sizeof(T)};
    result.dot = merge_block(dots).value;
    return result;
}

/// One term a thread: thread t takes slots t, t + 256 and so on.
template <class Value, class Of>
Value merge_slots(const std::vector<slot_result>& slots, Of of)
{
    std::vector<Value> values(scan::block_threads);
    for (std::size_t slot = 0; slot < slots.size(); ++slot) values[slot % scan::block_threads].merge(of(slots[slot]));
    return merge_block(values);
}

template <element T, scan::scan_features features>
slot_result reduce(const scan::scan_input<T>& input, std::uint64_t count)
{
    const scan::slot_plan plan = scan::plan_slots(count, sizeof(T));
    std::vector<slot_result> slots;
    for (std::uint64_t slot = 0; slot < plan.slots; ++slot) {
        const std::uint64_t first = slot * plan.length;
        const std::uint64_t left = count - first;
        slots.push_back(
            reduce_slot<T, features>(input, first, static_cast<std::uint32_t>(left < plan.length ? left : plan.length)));
    }
    slot_result result;
    result.value.type = element_traits<T>::type;
    result.value.has_digest = features.digest ? 1 : 0;
    const auto counts = merge_slots<scan::slot_counts>(
        slots, [](const slot_result& slot) { return scan::slot_counts::of(slot.value); });
    const auto digest = merge_slots<scan::digest_totals>(slots,
        [](const slot_result& slot) { return scan::digest_totals{slot.digest.first, slot.digest.second}; });
    const auto extent = merge_slots<scan::slot_extent>(
        slots, [](const slot_result& slot) { return scan::slot_extent::of(slot.value); });
    scan::open_result<T>(counts, extent, result.value);
    const std::int32_t scale = result.value.scale;
    const auto sums = merge_slots<scan::slot_sums>(
        slots, [&](const slot_result& slot) { return scan::slot_sums::of<T>(slot.value, scale); });
    const double mean = scan::sum_result(sums, result.value);
    if constexpr (features.moments) {
        const auto distances = merge_slots<scan::slot_distances>(slots, [&](const slot_result& slot) {
            return scan::slot_distances::of<T>(slot.value, scale, mean);
        });
        scan::close_result(distances, mean, result.value);
    }
    result.digest = {digest.first, digest.second, counts.count * sizeof(T)};
    result.dot = merge_slots<dot_sum>(slots, [](const slot_result& slot) { return dot_sum{slot.dot}; }).value;
    return result;
}

template <element T>
scan::scan_input<T> input_of(const T* data, std::uint64_t count)
{
    return {{reinterpret_cast<const unsigned char*>(data), count * sizeof(T)}, {}, nullptr};
}

/// As the kernel of `statistics_reducer`.
template <element T, bool with_digest>
statistics compute_statistics(const T* data, std::uint64_t count)
{
    const slot_result all
        = reduce<T, scan::scan_features{true, with_digest, false, false}>(input_of(data, count), count);
    statistics result = all.value;
    if constexpr (with_digest) result.digest = all.digest.finish();
    return result;
}

} // namespace collprobe::cuda_schedule

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <collprobe/scan/sketched_read.hpp>

/// What the kernels of scan/cuda/one_read.cuh do, on the host: the same code for each thread, the same tree over the
/// threads of a block, the same order of slots. (As plain functions: barriers, shared memory and the hand-over between
/// blocks are not covered.)
namespace collprobe::cuda_schedule {

namespace scan = collprobe::detail;
inline constexpr unsigned threads = scan::block_threads;

/// The merge of a block: within each warp of 32 at distances 1, 2, 4, 8, 16, then the warps in the same way.
template <class Value>
Value merge_block(std::vector<Value> values)
{
    const auto merge = [&](std::size_t first, std::size_t stride, std::size_t count) {
        for (std::size_t distance = 1; distance < count; distance *= 2) {
            for (std::size_t lane = 0; lane + distance < count; ++lane) {
                // Lane by lane upwards: a lane reads what its neighbour had before this step.
                const Value next = values[first + (lane + distance) * stride];
                values[first + lane * stride].merge(next);
            }
        }
    };
    for (std::size_t warp = 0; warp < values.size(); warp += 32) merge(warp, 1, 32);
    merge(0, 32, values.size() / 32);
    return values[0];
}

/// Slot `slot` of `slots`. `extras`: for each thread, what takes in the chunks, too.
template <class Read, class Extra>
typename Read::partial reduce_slot(const Read& read, std::vector<Extra>& extras, unsigned slot, unsigned slots)
{
    using element = typename Read::value_type;
    using thread = typename Read::accumulator_type::thread;
    const scan::byte_source source{
        reinterpret_cast<const unsigned char*>(read.data.data()), read.data.count() * sizeof(element)};
    const auto memory = std::make_unique<typename thread::shared>();
    std::vector<thread> all;
    for (unsigned lane = 0; lane < threads; ++lane) memory->fill(lane);
    for (unsigned lane = 0; lane < threads; ++lane) all.emplace_back(read.of, *memory, lane);
    for (unsigned lane = threads; lane > 0; --lane) memory->begin_slot(lane - 1);
    unsigned step = 0;
    for (std::uint64_t index = slot; index < scan::chunks_of(source.bytes); index += slots) {
        if (step == 0)
            for (unsigned lane = 0; lane < threads; ++lane) memory->prepare(index, slots, lane);
        for (unsigned lane = threads; lane > 0; --lane) { // in any order
            const scan::chunk at{index * scan::chunk_bytes + (lane - 1) * 16, source.bytes, step, source.data};
            scan::words16 words[scan::chunk_runs];
            at.load(source, words);
            all[lane - 1].take(words, at);
            if (!extras.empty()) extras[lane - 1].take(words, at);
        }
        step = (step + 1) % scan::prepared_chunks;
    }
    for (unsigned lane = 0; lane < extras.size(); ++lane) extras[lane].end_slot(slot, lane);
    std::vector<typename thread::part> taken;
    for (unsigned lane = 0; lane < threads; ++lane) taken.push_back(all[lane].taken_in());
    return thread::whole(merge_block(taken), *memory);
}

/// Thread t takes slots t, t + 256 and so on.
template <class Partial>
Partial merge_slots(const std::vector<Partial>& slots)
{
    std::vector<Partial> values(threads);
    for (std::size_t slot = 0; slot < slots.size(); ++slot) values[slot % threads].merge(slots[slot]);
    return merge_block(values);
}
template <class Read>
unsigned slots_of(const Read& read, unsigned most)
{
    return static_cast<unsigned>(scan::lesser(scan::chunks_of(read.data.size_bytes()), most));
}

/// `most`: of slots; with fewer than the kernel's a test needs less data for long slots.
template <class Read>
typename Read::partial partial_of(const Read& read, unsigned most = scan::read_slots)
{
    struct nothing {
        void take(const scan::words16 (&)[scan::chunk_runs], const scan::chunk&) {}
        void end_slot(unsigned, unsigned) const {}
    };
    std::vector<nothing> none;
    std::vector<typename Read::partial> all;
    const unsigned slots = slots_of(read, most);
    for (unsigned slot = 0; slot < slots; ++slot) all.push_back(reduce_slot(read, none, slot, slots));
    return merge_slots(all);
}
template <class Read>
auto result_of(const Read& read, unsigned most = scan::read_slots)
{
    return read.finish(partial_of(read, most));
}

/// The launch that adds up the parts of a sketch.
inline std::vector<double> join_parts(const std::vector<double>& parts, std::uint64_t count, std::uint64_t numbers)
{
    std::vector<double> sketch(numbers, 77);
    const scan::join_sketch_parts join{parts.data(), count, numbers, sketch.data()};
    for (std::uint64_t number = 0; number < numbers; ++number) {
        double sum = 0;
        for (unsigned lane = 0; lane < join.lanes; ++lane) sum += join.part(number, lane, join.lanes);
        join.store(number, sum);
    }
    return sketch;
}

/// The sketch beside a read; precondition: `sketched<T>::fits`. `result`: what the read tells.
template <class Reducer, class T, class Result>
std::vector<double> sketch_beside(const Reducer& inner, const scan::sketch_source<T>& from, Result& result)
{
    const std::uint64_t count = scan::sketched<T>::parts_of(from);
    std::vector<double> parts(count * 2 * from.bins, 55);
    std::vector<typename Reducer::partial> all;
    const unsigned slots = slots_of(inner, scan::sketched<T>::most_slots);
    for (unsigned slot = 0; slot < slots; ++slot) {
        std::vector<typename scan::sketched<T>::thread> bins;
        for (unsigned lane = 0; lane < threads; ++lane) bins.emplace_back(from, parts.data());
        all.push_back(reduce_slot(inner, bins, slot, slots));
    }
    result = inner.finish(merge_slots(all));
    return join_parts(parts, count, 2 * from.bins);
}

/// A sketch alone.
template <class T>
std::vector<double> sketch_alone(const scan::sketch_source<T>& from)
{
    std::vector<double> parts(from.parts() * 2 * from.bins + 1, 55);
    const scan::sketch_parts<T> body{from, parts.data()};
    for (std::uint64_t i = body.indices(); i > 0; --i) body(i - 1);
    return join_parts(parts, from.parts(), 2 * from.bins);
}

} // namespace collprobe::cuda_schedule

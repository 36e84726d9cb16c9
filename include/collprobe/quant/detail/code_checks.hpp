// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/quant/detail/code.hpp>
#include <collprobe/quant/detail/hadamard.hpp>
#include <collprobe/scan/sketch.hpp>
#include <collprobe/simd/rounding.hpp>

/// The checksums that a quantised call makes of its codes, if a part of a step asks for them (`code_checks`).
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Adds a sketch, times a factor, to a share of the sketch that the result must have. A body for `for_each`.
struct add_to_share {
    double* share;
    const double* sketch;
    double factor;
    std::uint64_t bins;
    bool with_energy;

    COLLPROBE_HD void operator()(std::uint64_t bin) const noexcept
    {
        share[bin] += factor * sketch[bin];
        if (with_energy) share[bins + bin] += sketch[bins + bin];
    }
};

/// Copies errors of rotated elements, and rotates them back, `turn.length` of them for an index.
struct rotate_back {
    const float* from;
    float* to;
    rotation turn;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        const gradual_underflow as_ieee_has_it;
        turn_back(index);
    }

private:
    COLLPROBE_HOST_NOINLINE COLLPROBE_HD void turn_back(std::uint64_t index) const noexcept
    {
        float* const run = to + index * turn.length;
        for (std::uint32_t i = 0; i < turn.length; ++i) run[i] = from[index * turn.length + i];
        turn.undo(run);
    }
};

/// What an element gains when it is rounded to T.
template <floating_element T>
struct rounding_to {
    float* elements;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        const gradual_underflow as_ieee_has_it;
        round(index);
    }

private:
    COLLPROBE_HOST_NOINLINE COLLPROBE_HD void round(std::uint64_t index) const noexcept
    {
        const float element = elements[index];
        elements[index] = rounded_difference(static_cast<float>(T(element)), element);
    }
};

/// Adds the digests of messages to those of the ranks that they go to or come from. `peers`: a rank for each message;
/// null if message i has rank i.
struct add_digests {
    const std::uint64_t* digests;
    std::uint64_t stride; ///< 0: all messages have the first digest
    const std::uint32_t* peers;
    std::uint64_t salt; ///< tells the messages of a pair of ranks apart
    std::uint64_t* sums;

    COLLPROBE_HD void operator()(std::uint64_t message) const noexcept
    {
        sums[peers == nullptr ? message : peers[message]] += mix64(digests[message * stride] ^ salt);
    }
};

/// The memory of these checks, made for the largest piece of a call when the first call wants them.
template <class Device>
struct code_check_memory {
    typename Device::template buffer<float> elements; ///< decoded codes of a piece, or roundings of a slice
    typename Device::template buffer<float> roundings[2]; ///< by memory slot: of the sums of the node, and of the owner
    typename Device::template buffer<double> sketch;
    typename Device::template buffer<double> scratch;
    typename Device::template buffer<combined_errors> unused;
    typename Device::template buffer<std::uint64_t> digests[2]; ///< by stream: the call's, that of the sums

    /// Of any piece.
    void reserve_sketch(std::uint64_t most_elements, std::uint64_t most_roundings, std::uint64_t most_bins)
    {
        if (elements.size() != 0) return;
        elements = typename Device::template buffer<float>(most_elements);
        for (auto& each : roundings) each = typename Device::template buffer<float>(most_roundings);
        sketch = typename Device::template buffer<double>(2 * most_bins);
        scratch = typename Device::template buffer<double>(sketch_scratch_numbers<Device>(most_bins));
        unused = typename Device::template buffer<combined_errors>(1);
    }
    void reserve_digests(std::uint64_t ranks)
    {
        if (digests[0].size() != 0) return;
        for (auto& each : digests) each = typename Device::template buffer<std::uint64_t>(ranks);
    }
};

/// Adds runs of elements to this rank's share of the sketch that the result of a call must have.
template <class Device>
class result_share {
public:
    using stream_ref = typename Device::stream_ref;

    result_share(code_check_memory<Device>& memory, const code_checks& to, stream_ref on)
        : memory_(memory), to_(to), on_(on)
    {
    }
    /// `first`: index of the run's first element in the buffer.
    void add(const float* run, std::uint64_t first, std::uint64_t count, double factor, bool with_energy = false) const
    {
        if (count == 0) return;
        const sketch_source<float> from{view<const float>(run, count), first, to_.bins, to_.seed};
        enqueue_sketch<Device>(on_, from, memory_.sketch.data(), memory_.scratch.data());
        Device::for_each(
            on_, to_.bins, add_to_share{to_.share, memory_.sketch.data(), factor, to_.bins, with_energy});
    }
    /// Adds roundings as an encoder has kept them: of rotated elements, if the codec rotates.
    void add_roundings(
        const codec& how, const float* kept, std::uint64_t first, std::uint64_t count, double factor) const
    {
        if (count == 0) return;
        if (how.rotate) {
            const rotation turn = rotation::of(how.block, how.seed);
            Device::for_each(on_, (count + turn.length - 1) / turn.length,
                rotate_back{kept, memory_.elements.data(), turn});
            kept = memory_.elements.data();
        }
        add(kept, first, count, factor);
    }

private:
    code_check_memory<Device>& memory_;
    const code_checks& to_;
    stream_ref on_;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail

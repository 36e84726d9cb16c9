// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/metrics/order_sensitivity.hpp>
#include <collprobe/step/detail/message.hpp>

/// The elements that `order_sample` takes, and what their sums would be in other orders.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The place of sample `i` of `samples` among `count` elements: evenly spaced, the same on all ranks. If there are
/// fewer elements than samples, the last samples do not exist and have the place `count`.
COLLPROBE_HD constexpr std::uint64_t sample_place(std::uint64_t i, std::uint64_t samples, std::uint64_t count) noexcept
{
    if (count <= samples) return i < count ? i : count;
    const std::uint64_t step = count / samples;
    const std::uint64_t rest = count % samples;
    return i * step + i * rest / samples + step / 2;
}

/// Copies a sample of a buffer of `whole` elements; `here` begins with the buffer's element `first`. Each sampled
/// element becomes a word with its bits; samples outside `here` become 0. A body for `for_each` over the samples.
template <floating_element T>
struct take_sample {
    view<const T> here;
    std::uint64_t first;
    std::uint64_t whole;
    std::uint64_t samples;
    std::uint64_t* words;

    COLLPROBE_HD void operator()(std::uint64_t i) const noexcept
    {
        const std::uint64_t place = sample_place(i, samples, whole);
        const bool is_here = place < whole && place >= first && place - first < here.count();
        words[i] = is_here ? to_bits(here[place - first]) : 0;
    }
};

/// The terms of a sampled element by rank, and its results, as they arrived in the messages.
template <floating_element T>
struct sampled_element {
    const gathered_step& step;
    std::uint64_t call_index;
    std::uint64_t sample;

    T operator[](int rank) const noexcept { return value(step.layout().input_sample(step.message(rank), call_index)); }
    T result(int rank) const noexcept { return value(step.layout().result_sample(step.message(rank), call_index)); }
    T value(const std::uint64_t* words) const noexcept
    {
        return bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(words[sample]));
    }
};

/// Completes the calls of `out` from the step's samples. All ranks compute the same.
/// This is a template, so that a program without `probed` compiles none of it.
template <class Step>
void measure_orders(order_meter& meter, const Step& step, view<const probed_call> calls, step_record& out) noexcept
{
    const std::uint64_t samples = step.layout().samples;
    if (samples == 0) return;
    for (std::size_t b = 0; b < calls.size(); ++b) {
        const probed_call& call = calls[b];
        call_record& of = out.calls[b];
        if (!call.is_gradient() || of.is_on_some_ranks()) continue;
        // A reduce-scatter gives each rank one part.
        const std::uint64_t part = call.count
            / (call.call == collective::reduce_scatter ? static_cast<std::uint64_t>(step.ranks()) : 1);
        // Of results that should be alike, one with the bits of most ranks.
        int holder = 0;
        while (of.has_result_digest && call.is_replicated() && holder + 1 < step.ranks()
            && step.entry(holder, b).result.digest != of.result_digest)
            ++holder;
        meter.start(call.operation);
        with_floating_type(call.type, [&]<class T>(T) {
            for (std::uint64_t i = 0; i < samples; ++i) {
                const std::uint64_t place = sample_place(i, samples, call.count);
                if (place >= call.count) break;
                const sampled_element<T> terms{step, b, i};
                const T result = terms.result(holder + static_cast<int>(place / part));
                meter.add(terms, result);
                of.result_sample.push_back(static_cast<double>(result));
            }
        });
        of.order = meter.finish();
    }
}

} // namespace collprobe::detail

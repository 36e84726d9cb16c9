// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>

#include "options.hpp"

namespace quantised_training {

/// A communicator whose averages of floats are what DeepSpeed's quantised gradients give in their two hops: the
/// arithmetic of csrc/quantization and runtime/comm/coalesced_collectives.py at edaa7221, as read from the source, not
/// the kernels. Groups of `block` elements, 4 bits, a scale in float, gradients and results in half. Each defect can be
/// left out. Elements travel decoded; the bytes are those of codes, and of a gather of the result in half.
///
/// It says of its roundings what its kernels could know: what they read, not what the caller has. The host waits.
template <collprobe::communicator Comm>
class deepspeed_rules : public collprobe::adaptor<deepspeed_rules<Comm>, Comm> {
    using base_type = collprobe::adaptor<deepspeed_rules, Comm>;
    using base_type::comm_;

public:
    using typename base_type::stream_ref;

    deepspeed_rules(Comm comm, std::uint32_t block, unsigned defects)
        : base_type(std::move(comm)), block_(block), defects_(defects)
    {
        calls_.ranks = comm_.size();
        calls_.least_bytes = 1;
    }

    template <collprobe::element T>
    void make(const collprobe::collective_call& call, stream_ref stream)
    {
        if constexpr (std::is_same_v<T, float>) {
            if (call.what == collprobe::collective::all_reduce && call.operation == collprobe::reduction::average) {
                average(call.sent<T>(), call.received<T>(), stream);
                return;
            }
        }
        comm_.template make<T>(call, stream);
    }

    collprobe::quantised_calls* quantisation_calls() noexcept { return &calls_; }

private:
    bool has(defect which) const { return (defects_ & which) != 0; }

    /// An element as the first kernel reads it.
    float read(float element) const
    {
        if (!has(reinterpreted_bits)) return static_cast<float>(collprobe::float16(element));
        const auto bits = collprobe::to_bits(collprobe::bfloat16(element));
        return static_cast<float>(std::bit_cast<collprobe::float16>(bits));
    }
    float added(float a, float b) const
    {
        return has(half_sums) ? static_cast<float>(collprobe::float16(a + b)) : a + b;
    }

    /// A group to codes and back, in place.
    void round_group(float* x, std::size_t count, std::uint64_t first, collprobe::quantisation_errors& into) const
    {
        float largest = 0;
        double squares = 0;
        for (std::size_t i = 0; i < count; ++i) {
            if (!collprobe::is_nan(x[i])) largest = std::max(largest, std::fabs(x[i]));
            if (collprobe::is_finite(x[i])) squares += double{x[i]} * double{x[i]};
        }
        const float levels = has(clipped_extremes) ? 8 : 7;
        const float inverse = largest > 0 ? levels / largest : 0;
        const float scale = largest / levels;
        double error_squares = 0;
        for (std::size_t i = 0; i < count; ++i) {
            const float element = x[i];
            const float code = std::nearbyint(element * inverse);
            // The conversion to an integer makes NaN 0.
            x[i] = collprobe::is_nan(code) ? 0 : std::clamp(code, -levels, 7.0f) * scale;
            if (!collprobe::is_finite(element)) {
                if (!has(hidden_nan)) x[i] = std::numeric_limits<float>::quiet_NaN();
                ++into.nonfinite;
                continue;
            }
            const double error = double{x[i]} - double{element};
            error_squares += error * error;
            into.error_sum += error;
            into.zeros += std::fpclassify(element) == FP_ZERO;
            into.zeroed += std::fpclassify(element) != FP_ZERO && std::fpclassify(x[i]) == FP_ZERO;
            into.saturated += std::fabs(error) > 0.51 * double{scale};
        }
        into.count += count;
        into.squares += squares;
        into.error_squares += error_squares;
        ++into.blocks;
        if (!(squares > 0)) {
            ++into.zero_blocks;
            return;
        }
        const double root = std::sqrt(squares / static_cast<double>(count));
        into.crest_sum += double{largest} / root;
        into.scale_sum += double{scale} / root;
        if (error_squares / squares > into.worst_ratio) {
            into.worst_ratio = error_squares / squares;
            into.worst_block = first;
        }
    }
    void round_groups(std::vector<float>& x, std::uint64_t first, collprobe::quantisation_errors& into) const
    {
        for (std::size_t at = 0; at < x.size(); at += block_) {
            round_group(x.data() + at, std::min<std::size_t>(block_, x.size() - at), first + at, into);
        }
    }

    void average(collprobe::view<const float> send, collprobe::view<float> receive, stream_ref stream)
    {
        stream.synchronize();
        const std::size_t count = send.count();
        const auto size = static_cast<std::size_t>(comm_.size());
        collprobe::quantised_errors errors{};
        std::vector<float> own(count);
        std::transform(send.begin(), send.end(), own.begin(), [this](float each) { return read(each); });
        round_groups(own, 0, errors.input);
        std::vector<float> all(count * size);
        comm_.all_gather(collprobe::view<const float>(own), collprobe::view<float>(all), stream);
        stream.synchronize();

        // Each rank computes a slice of whole groups.
        const std::size_t slice = (count + size * block_ - 1) / (size * block_) * block_;
        const std::size_t first = std::min(count, slice * static_cast<std::size_t>(comm_.rank()));
        const std::size_t length = std::min(count - first, slice);
        std::vector<float> mine(slice);
        for (std::size_t node = 0; node < nodes; ++node) {
            std::vector<float> sum(length);
            for (std::size_t local = 0; local < ranks_per_node; ++local) {
                const float* const term = all.data() + (node * ranks_per_node + local) * count + first;
                for (std::size_t i = 0; i < length; ++i) {
                    sum[i] = added(sum[i], term[i]);
                    if (collprobe::is_finite(term[i])) errors.node.term_squares += double{term[i]} * double{term[i]};
                }
            }
            for (const float each : sum) {
                if (collprobe::is_finite(each)) errors.node.sum_squares += double{each} * double{each};
            }
            round_groups(sum, first, errors.node.errors);
            for (std::size_t i = 0; i < length; ++i) mine[i] += sum[i];
        }
        const float divisor = has(node_divisor) ? nodes : ranks;
        for (float& each : mine) {
            each = static_cast<float>(collprobe::float16(each / divisor));
            errors.nonfinite_results += collprobe::is_finite(each) ? 0 : 1;
        }
        all.resize(slice * size);
        comm_.all_gather(collprobe::view<const float>(mine), collprobe::view<float>(all), stream);
        stream.synchronize();
        std::copy_n(all.begin(), count, receive.begin());
        tell(count, errors);
    }

    void tell(std::size_t count, const collprobe::quantised_errors& errors)
    {
        if (calls_.errors_to != nullptr) *calls_.errors_to = errors;
        const auto bytes_of = [this](std::uint64_t elements) { return elements / 2 + (elements / block_ + 1) * 4; };
        const std::uint64_t in_node = (ranks_per_node - 1) * bytes_of(count / ranks_per_node);
        const std::uint64_t across = (nodes - 1) * bytes_of(count / ranks);
        const std::uint64_t gather = std::uint64_t{ranks - 1} * (count / ranks) * 2;
        calls_.last = {.within = collprobe::code_format::int4, .across = collprobe::code_format::int4, .block = block_,
            .levels = 2, .ranks_per_node = ranks_per_node, .roundings_per_element = 2, .average = true,
            .bytes_sent = in_node + across + gather, .bytes_across = across,
            .bytes_plain = std::uint64_t{ranks - 1} * (count / ranks) * 8, .collectives = 3};
        ++calls_.counts[0];
    }

    std::uint32_t block_;
    unsigned defects_;
    collprobe::quantised_calls calls_;
};

} // namespace quantised_training

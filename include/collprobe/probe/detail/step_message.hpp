// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/detail/dot.hpp>
#include <collprobe/probe/statistics.hpp>
#include <collprobe/record.hpp>

/// What a rank says of a step: one header, then one entry per bucket. Travels as bytes.
namespace collprobe::detail {

struct step_header {
    std::uint64_t step;
    double loss;
    double weight;
    std::uint64_t sample_digest;
    std::uint64_t unprobed_calls;
};

/// What one read of a collective's result tells, together with the local input if it still exists.
struct result_record {
    std::uint64_t digest;
    double sum_of_squares; ///< times 2^(-2 scale)
    double dot; ///< of input and result, element by element; NaN by bits if no input was left
    std::int32_t scale;
    std::int32_t padding;
};

struct bucket_entry {
    statistics input;
    result_record result;
};

static_assert(std::is_trivially_copyable_v<step_header> && std::is_trivially_copyable_v<bucket_entry>);
static_assert(sizeof(step_header) % 8 == 0 && sizeof(bucket_entry) % 8 == 0);

/// Begins a message: index 0 writes the header, index b + 1 empties the result of bucket b.
struct write_header {
    unsigned char* message;
    step_header value;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        auto* const header = reinterpret_cast<step_header*>(message);
        if (index == 0) *header = value;
        else reinterpret_cast<bucket_entry*>(header + 1)[index - 1].result = {};
    }
};

/// What every rank knows of a bucket from its own call.
struct bucket_call {
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    reduction operation = reduction::sum;
    std::uint64_t count = 0;
    bool has_result = false; ///< the result was read

    /// A sum over ranks of gradients, as far as the library can tell.
    bool is_gradient() const noexcept
    {
        return (call == collective::all_reduce || call == collective::reduce_scatter)
            && (operation == reduction::sum || operation == reduction::average);
    }
    /// Whether all ranks must receive the same bits.
    bool is_replicated() const noexcept
    {
        return call == collective::all_reduce || call == collective::all_gather || call == collective::broadcast;
    }
};

constexpr std::uint64_t message_bytes(std::uint64_t buckets) noexcept
{
    return sizeof(step_header) + buckets * sizeof(bucket_entry);
}

/// A step's messages of all ranks, one behind the other.
class gathered_step {
public:
    gathered_step(const unsigned char* bytes, int ranks, std::uint64_t buckets) noexcept
        : bytes_(bytes), stride_(message_bytes(buckets)), ranks_(ranks)
    {
    }
    int ranks() const noexcept { return ranks_; }
    const step_header& header(int rank) const noexcept
    {
        return *reinterpret_cast<const step_header*>(bytes_ + static_cast<std::uint64_t>(rank) * stride_);
    }
    const bucket_entry& entry(int rank, std::uint64_t bucket) const noexcept
    {
        return reinterpret_cast<const bucket_entry*>(&header(rank) + 1)[bucket];
    }

private:
    const unsigned char* bytes_;
    std::uint64_t stride_;
    int ranks_;
};

/// Reads a result once: its digest, its norm and, where `input` is not null, its dot with the input.
template <element T>
struct result_reducer {
    using inner = statistics_reducer<T, true>;
    struct partial {
        typename inner::partial result;
        double dot;
    };
    static constexpr std::uint64_t block = inner::block;
    using has_own_kernel = void; // on a GPU: probe/probed.cuh

    view<const T> result;
    const T* input = nullptr;

    COLLPROBE_HD static partial identity() noexcept { return {inner::identity(), 0}; }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const
    {
        inner{result}.run(into.result, first, count);
        if (input == nullptr) {
            into.dot = not_a_number();
            return;
        }
        // Both runs are short enough to be in the nearest cache by now.
        into.dot += dot(input + first, result.data() + first, count);
    }
    /// Takes in one element: what a device thread does.
    COLLPROBE_HD void add(partial& into, std::uint64_t index) const noexcept
    {
        inner{result}.add(into.result, index);
        into.dot += input == nullptr ? not_a_number() : dot(input + index, result.data() + index, 1);
    }
    COLLPROBE_HD static void merge(partial& into, const partial& next) noexcept
    {
        inner::merge(into.result, next.result);
        into.dot += next.dot;
    }
    COLLPROBE_HD static result_record finish(const partial& all) noexcept
    {
        const statistics summary = inner::finish(all.result);
        return {summary.digest, summary.sum_of_squares, all.dot, summary.scale, 0};
    }
};

} // namespace collprobe::detail

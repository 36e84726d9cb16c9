// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/merge_ranks.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/scan/sketch.hpp>

/// A rank's block of a call, made of its buffers by the library's functions.
namespace collprobe::testing {

/// Words, so that the block is aligned.
using block_words = std::vector<std::uint64_t>;

inline const unsigned char* bytes_of(const block_words& block)
{
    return reinterpret_cast<const unsigned char*>(block.data());
}

/// The bins that `audit` would take; 0 where a call has no sketches.
template <element T>
std::uint64_t bins_of(const merged_call& call, const conservation_options& options = {})
{
    const bool reduces = call.call == collective::all_reduce || call.call == collective::reduce_scatter;
    const bool adds = call.operation == reduction::sum || call.operation == reduction::average;
    if (!floating_element<T> || !reduces || !adds) return 0;
    return detail::bins_for(call.count, element_traits<T>::type, options);
}

/// A call's block before the call, then with its result. `first` of the result's elements in the whole result.
template <element T>
class rank_reader {
public:
    rank_reader(const merged_call& call, view<const T> input, bool survives)
        : layout_{call.bins, call.has_shards ? call.result_count / call.count : 0}
    {
        words_.resize(static_cast<std::size_t>(layout_.bytes() / sizeof(std::uint64_t)));
        if (survives) input_ = input.data();
        if constexpr (floating_element<T>) {
            measurement().entry.input = compute_statistics(input);
            if (layout_.bins != 0) sketch_into(input, rank_call_layout::input_sketch(bytes()), 0);
        } else if (layout_.shards != 0) {
            measurement().entry.input.digest = digest(input);
        }
    }

    block_words with_result(view<const T> result, std::uint64_t first)
    {
        if constexpr (floating_element<T>) {
            const detail::result_reducer<T> reducer{result, input_};
            measurement().entry.result = reducer.finish(detail::reduce_blocks(reducer, result.count()));
            if (layout_.bins != 0) sketch_into(result, layout_.result_sketch(bytes()), first);
        } else {
            measurement().entry.result.digest = digest(result);
        }
        for (std::uint64_t shard = 0; shard < layout_.shards; ++shard) {
            const std::uint64_t count = result.count() / layout_.shards;
            layout_.shard_digests(bytes())[shard] = digest(result.part(shard * count, count));
        }
        return words_;
    }

private:
    unsigned char* bytes() { return reinterpret_cast<unsigned char*>(words_.data()); }
    rank_measurement& measurement() { return rank_call_layout::measurement(bytes()); }
    void sketch_into(view<const T> data, double* to, std::uint64_t first)
    {
        if constexpr (floating_element<T>) {
            sketch(data, view<double>(to, layout_.sketch_numbers()),
                {.bins = static_cast<std::uint32_t>(layout_.bins)}, first);
        }
    }

    rank_call_layout layout_;
    block_words words_;
    const T* input_ = nullptr;
};

} // namespace collprobe::testing

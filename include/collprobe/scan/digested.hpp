// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/accumulator.hpp>
#include <collprobe/scan/detail/chunk.hpp>
#include <collprobe/scan/detail/float_sums.hpp>
#include <collprobe/scan/digest.hpp>

/// The accumulator of the digest.
namespace collprobe::inline COLLPROBE_ABI::detail {

struct digested {
    using taken = digest_state;

    template <element T>
    static void take(taken& into, const T* tile, std::uint64_t count, std::uint64_t first) noexcept
    {
        into.merge(digest_bytes(
            isa::portable, reinterpret_cast<const unsigned char*>(tile), count * sizeof(T), first * sizeof(T)));
    }

    /// A thread of a GPU. A run is half a period, so its words have two places in all periods, with the same keys and
    /// weights. They lie in shared memory: six loads a chunk save 24 registers. A block takes every n-th chunk, and the
    /// factors of the periods of the next chunks lie there, too.
    struct thread {
        struct alignas(16) four_keys {
            std::uint32_t of[4];
        };
        struct alignas(16) two_words {
            std::uint64_t of[2];
        };
        struct shared : thread_memory {
            four_keys key[2][block_threads]; // by half, thread
            two_words weighted[2][2][block_threads]; // by half, first or last two words, thread: key times weight
            two_words factors[2 * prepared_chunks]; // of each period

            COLLPROBE_HD void fill(unsigned lane) noexcept
            {
                four_keys four;
                two_words pair[2];
                COLLPROBE_NO_UNROLL
                for (unsigned half = 0; half < 2; ++half) {
                    COLLPROBE_UNROLL
                    for (unsigned i = 0; i < 4; ++i) {
                        const unsigned word = half * (digest_period / 2) + 4 * lane + i;
                        four.of[i] = digest_key(word);
                        pair[i / 2].of[i % 2] = four.of[i] * digest_weight(word);
                    }
                    key[half][lane] = four;
                    weighted[half][0][lane] = pair[0];
                    weighted[half][1][lane] = pair[1];
                }
            }
            /// For the next chunks: `first` and each `stride` further.
            COLLPROBE_HD void prepare(std::uint64_t first, std::uint64_t stride, unsigned lane) noexcept
            {
                if (lane >= 2 * prepared_chunks) return;
                digest_state unit;
                unit.add_sums(2 * (first + lane / 2 * stride) + lane % 2, {1, 1});
                factors[lane] = {{unit.first, unit.second}};
            }
        };

        COLLPROBE_HD thread(const digested&, const shared& memory, unsigned lane) noexcept
            : memory_(&memory), lane_(lane)
        {
        }
        COLLPROBE_HD void take(const words16 (&words)[chunk_runs], const chunk& at) noexcept
        {
            digest_sums sums[chunk_runs / 2] = {};
            COLLPROBE_UNROLL
            for (unsigned half = 0; half < 2; ++half) {
                COLLPROBE_UNROLL
                for (unsigned i = 0; i < 4; ++i) {
                    const std::uint32_t key = memory_->key[half][lane_].of[i];
                    const std::uint64_t weighted = memory_->weighted[half][i / 2][lane_].of[i % 2];
                    COLLPROBE_UNROLL
                    for (unsigned period = 0; period < chunk_runs / 2; ++period) {
                        const std::uint32_t word = words[2 * period + half].w[i];
                        sums[period].first += std::uint64_t{word} * key;
                        sums[period].second += word * weighted;
                    }
                }
            }
            COLLPROBE_UNROLL
            for (unsigned period = 0; period < chunk_runs / 2; ++period) {
                const two_words factor = memory_->factors[2 * at.step + period];
                first_ += factor.of[0] * sums[period].first;
                second_ += factor.of[1] * sums[period].second;
            }
        }
        using part = taken;
        /// The bytes are for the whole buffer to tell.
        COLLPROBE_HD part taken_in() const noexcept { return {first_, second_, 0}; }
        COLLPROBE_HD static taken whole(const part& of_block, const shared&) noexcept { return of_block; }

    private:
        const shared* memory_;
        unsigned lane_;
        std::uint64_t first_ = 0;
        std::uint64_t second_ = 0;
    };
    static_assert(digest_period_bytes == 2 * round_bytes);
};

} // namespace collprobe::detail

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

template <class T>
struct lanes<digested, T> : digest_lanes {
    const std::uint32_t* keys = digest_keys.key;

    [[gnu::always_inline]] explicit lanes(const digested&, std::uint64_t) noexcept {}
    [[gnu::always_inline]] void add_line(const unsigned char* line) noexcept
    {
        digest_lanes::add_line(line, keys);
        keys += 16;
    }
    [[gnu::always_inline]] void add_last_line(const unsigned char* line, std::uint64_t) noexcept { add_line(line); }
    [[gnu::always_inline]] void end_group() noexcept {}
    [[gnu::always_inline]] void finish(
        digest_state& into, const T*, std::uint64_t count, std::uint64_t first, std::uint64_t) noexcept
    {
        into.add_sums(
            first * sizeof(T) / digest_period_bytes, sums(static_cast<std::uint64_t>(keys - digest_keys.key) / 16));
        into.bytes += count * sizeof(T);
    }
};

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif

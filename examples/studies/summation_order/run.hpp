// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <collprobe/detail/math.hpp>
#include <collprobe/simd/gradual_underflow.hpp>

#include "../digits/progress.hpp"
#include "input.hpp"
#include "measures.hpp"
#include "orders.hpp"

/// One pass over the terms: a block of elements of all rows is in memory, all methods add it, and the measures take in
/// their results.
namespace summation {

/// Of the calling thread: work of others on the machine is not counted.
inline double processor_nanoseconds() noexcept
{
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

/// What is asked for.
struct question {
    std::vector<int> ranks; ///< ascending; the last is that of the table of methods
    std::vector<method> methods;
    int permutations = 0;
    int threads = 1;
    std::uint64_t seed = 1;
};

/// A term that is NaN or infinite.
struct bad_term {
    std::uint64_t element = ~std::uint64_t{0};
    int row = 0;
};

struct findings {
    std::uint64_t not_finite = 0; ///< elements with a term that is NaN or infinite: left out of every number
    bad_term first_not_finite;
    std::uint64_t too_large = 0; ///< elements whose correctly rounded sum is infinite: left out, too
    std::vector<std::vector<method_measures>> by_ranks; ///< of each number of ranks, for each method
    std::vector<std::vector<difference>> changes; ///< from each number of ranks to the next, for each method
    std::vector<std::uint64_t> pairs; ///< elements in which methods a and b differ, at a * methods + b, a < b
    std::vector<permutation_measures> permuted; ///< for each method
    square_sums<exact_sum<double>> noise_squares; ///< of the sums, as the rows' spread lets expect

    findings(std::size_t ranks, std::size_t methods)
        : by_ranks(ranks, std::vector<method_measures>(methods)),
          changes(ranks - 1, std::vector<difference>(methods)), pairs(methods * methods), permuted(methods)
    {
    }
    void merge(const findings& other)
    {
        not_finite += other.not_finite;
        if (other.first_not_finite.element < first_not_finite.element) first_not_finite = other.first_not_finite;
        too_large += other.too_large;
        for (std::size_t r = 0; r < by_ranks.size(); ++r) {
            for (std::size_t m = 0; m < by_ranks[r].size(); ++m) by_ranks[r][m].merge(other.by_ranks[r][m]);
        }
        for (std::size_t r = 0; r < changes.size(); ++r) {
            for (std::size_t m = 0; m < changes[r].size(); ++m) changes[r][m].merge(other.changes[r][m]);
        }
        for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] += other.pairs[i];
        for (std::size_t m = 0; m < permuted.size(); ++m) permuted[m].merge(other.permuted[m]);
        noise_squares.merge(other.noise_squares);
    }
};

/// Permutations of n ranks, of which the first changes nothing.
inline std::vector<std::vector<int>> permutations_of(int n, int how_many, std::uint64_t seed)
{
    std::vector<std::vector<int>> all;
    for (int p = 0; p < how_many; ++p) {
        std::vector<int> ranks(static_cast<std::size_t>(n));
        std::iota(ranks.begin(), ranks.end(), 0);
        std::uint64_t state = seed + static_cast<std::uint64_t>(p);
        for (std::size_t i = ranks.size() - 1; p > 0 && i > 0; --i) {
            state = detail::mix64(state + 0x9e3779b97f4a7c15u);
            std::swap(ranks[i], ranks[state % (i + 1)]);
        }
        all.push_back(std::move(ranks));
    }
    return all;
}

/// Elements of a block: so many that the rows of a block, as doubles, take at most 16 MiB.
inline std::size_t block_elements(int rows)
{
    const std::size_t fit = (std::size_t{1} << 21) / static_cast<std::size_t>(rows) / 128 * 128;
    return std::clamp<std::size_t>(fit, 128, 16384);
}

template <floating_element T>
class worker {
public:
    worker(const question& asked, const input& from)
        : found(asked.ranks.size(), asked.methods.size()), asked_(asked), from_(from),
          permutations_(permutations_of(asked.ranks.back(), asked.permutations, asked.seed)),
          size_(block_elements(from.rows())), rooms_(static_cast<std::size_t>(from.rows()), std::vector<T>(size_)),
          rows_(rooms_.size()), right_(size_), left_out_(size_),
          results_(asked.methods.size(), std::vector<T>(size_)), before_(results_),
          shuffled_(static_cast<std::size_t>(asked.permutations), std::vector<T>(permuted_elements))
    {
    }

    findings found;

    void run(std::uint64_t first, std::size_t count)
    {
        const detail::gradual_underflow as_ieee_has_it;
        for (std::size_t row = 0; row < rows_.size(); ++row) {
            rows_[row] = from_.block(static_cast<int>(row), first, count, rooms_[row].data());
        }
        sum_in_order<accumulation::exact>(rows_.data(), linear_order(from_.rows()), right_.data(), count);
        const block own{first, count, find_left_out(first, count) ? left_out_.data() : nullptr};
        clear_left_out(own, right_.data());
        measure_noise(own);
        for (std::size_t r = 0; r < asked_.ranks.size(); ++r) {
            for (std::size_t m = 0; m < asked_.methods.size(); ++m) {
                std::swap(results_[m], before_[m]);
                method_measures& measures = found.by_ranks[r][m];
                const auto orders = orders_over_leaves(
                    asked_.methods[m].order, from_.rows(), asked_.ranks[r], message_of(own));
                const double begin = processor_nanoseconds();
                add_rows(asked_.methods[m].in, rows_.data(), orders, results_[m].data(), first, count);
                measures.nanoseconds += processor_nanoseconds() - begin;
                canonical_nans(results_[m].data(), count);
                clear_left_out(own, results_[m].data());
                measures.add(own, results_[m].data(), right_.data());
                if (r > 0) found.changes[r - 1][m].add(own, before_[m].data(), results_[m].data());
            }
        }
        const std::size_t methods = asked_.methods.size();
        for (std::size_t a = 0; a < methods; ++a) {
            for (std::size_t b = a + 1; b < methods; ++b) {
                found.pairs[a * methods + b] += count_different(own, results_[a].data(), results_[b].data());
            }
        }
        permute(own);
        from_.forget(first, count);
    }

private:
    static constexpr std::size_t permuted_elements = 1024;

    message message_of(const block& of) const
    {
        return {from_.elements, static_cast<int>(sizeof(T)), of.first, of.first + of.count};
    }

    /// Marks the elements that no number is about; whether there are any.
    bool find_left_out(std::uint64_t first, std::size_t count)
    {
        std::fill_n(left_out_.begin(), count, static_cast<unsigned char>(0));
        bool any = false;
        for (std::size_t row = 0; row < rows_.size(); ++row) {
            for (std::size_t i = 0; i < count; ++i) {
                if (is_finite(rows_[row][i])) continue;
                any = true;
                if (std::exchange(left_out_[i], static_cast<unsigned char>(1)) == 0) ++found.not_finite;
                const bool is_first = first + i < found.first_not_finite.element;
                if (is_first) found.first_not_finite = {first + i, static_cast<int>(row)};
            }
        }
        for (std::size_t i = 0; i < count; ++i) {
            if (left_out_[i] != 0 || is_finite(right_[i])) continue;
            any = true;
            left_out_[i] = 1;
            ++found.too_large;
        }
        return any;
    }

    /// Elements that are left out have one value everywhere: no digest, and so no group, is about them.
    static void clear_left_out(const block& of, T* values)
    {
        for (std::size_t i = 0; of.left_out != nullptr && i < of.count; ++i) {
            if (of.left_out[i] != 0) values[i] = T{};
        }
    }

    void measure_noise(const block& of)
    {
        square_sums<double> squares;
        for (std::size_t i = 0; i < of.count; ++i) {
            if (of.left_out == nullptr || of.left_out[i] == 0) add_noise(rows_, i, squares);
        }
        found.noise_squares.merge(squares);
    }

    void permute(const block& of)
    {
        for (std::size_t at = 0; asked_.permutations > 0 && at < of.count; at += permuted_elements) {
            const block part{of.first + at, std::min(permuted_elements, of.count - at),
                of.left_out == nullptr ? nullptr : of.left_out + at};
            std::vector<const T*> rows = rows_;
            for (const T*& row : rows) row += at;
            for (std::size_t m = 0; m < asked_.methods.size(); ++m) {
                for (std::size_t p = 0; p < shuffled_.size(); ++p) {
                    T* const result = shuffled_[p].data();
                    const auto orders = orders_over_leaves(asked_.methods[m].order, from_.rows(), asked_.ranks.back(),
                        message_of(part), permutations_[p]);
                    add_rows(asked_.methods[m].in, rows.data(), orders, result, part.first, part.count);
                    canonical_nans(result, part.count);
                }
                found.permuted[m].add(part, shuffled_);
            }
        }
    }

    const question& asked_;
    const input& from_;
    std::vector<std::vector<int>> permutations_;
    std::size_t size_;
    std::vector<std::vector<T>> rooms_;
    std::vector<const T*> rows_;
    std::vector<T> right_;
    std::vector<unsigned char> left_out_;
    std::vector<std::vector<T>> results_, before_, shuffled_;
};

/// All of it, by several threads.
template <floating_element T>
findings run(const question& asked, const input& from)
{
    const std::size_t size = block_elements(from.rows());
    const std::uint64_t blocks = (from.elements + size - 1) / size;
    findings all(asked.ranks.size(), asked.methods.size());
    trainer::progress progress(blocks, "block");
    std::atomic<std::uint64_t> next{0};
    std::exception_ptr problem;
    std::mutex one_at_a_time;
    const auto work = [&] {
        try {
            worker<T> own(asked, from);
            for (std::uint64_t b = next++; b < blocks; b = next++) {
                const std::uint64_t first = b * size;
                own.run(first, static_cast<std::size_t>(std::min<std::uint64_t>(size, from.elements - first)));
                const std::lock_guard lock(one_at_a_time);
                progress.advance("summation_order");
            }
            const std::lock_guard lock(one_at_a_time);
            all.merge(own.found);
        } catch (...) {
            const std::lock_guard lock(one_at_a_time);
            problem = std::current_exception();
            next = blocks;
        }
    };
    std::vector<std::thread> threads;
    for (int t = 1; t < asked.threads; ++t) threads.emplace_back(work);
    work();
    for (std::thread& each : threads) each.join();
    if (problem != nullptr) std::rethrow_exception(problem);
    return all;
}

} // namespace summation

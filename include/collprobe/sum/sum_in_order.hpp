// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/simd/dispatch.hpp>
#include <collprobe/simd/gradual_underflow.hpp>
#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/combine.hpp>
#include <collprobe/sum/detail/column_sum.hpp>
#include <collprobe/sum/order.hpp>
#include <collprobe/sum/sum_rows.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Elements that are added at a time: the partial sums of a block stay in the first cache.
inline constexpr int order_width = 128;

/// Partial sums of a block of elements: what one of the terms starts, and what is added to it. A sum starts as a term,
/// and terms and partial sums are added to it. Loops have a constant length, so that compilers vectorise them.
template <accumulation in, floating_element T>
struct sums_in_block {
    using wide = std::conditional_t<in == accumulation::native, T,
        std::conditional_t<in == accumulation::float32, float, double>>;
    wide sum[order_width];

    void start(const T* __restrict term) noexcept
    {
        for (int i = 0; i < order_width; ++i) sum[i] = widened_to<wide>(term[i]);
    }
    template <class Number> // T or wide
    void add(const Number* __restrict other) noexcept
    {
        if constexpr (narrow_floating_element<wide>) combine(reduction::sum, sum, other, order_width);
        else for (int i = 0; i < order_width; ++i) sum[i] = rounded_sum(sum[i], widened_to<wide>(other[i]));
    }
    void add(const sums_in_block& other) noexcept { add(other.sum); }
    void round(T* __restrict result) const noexcept
    {
        for (int i = 0; i < order_width; ++i) result[i] = narrowed<T>(sum[i]);
    }
};

/// An addition of an order, with the places of partial sums in memory. A place is used again when its sum is added.
struct planned_addition {
    static constexpr std::uint32_t none = ~std::uint32_t{0};
    std::uint32_t into; ///< a place
    std::uint32_t starts_as; ///< the term with which `into` starts, or `none`
    std::uint32_t from; ///< a place or, if `from_term`, a term
    bool from_term;
};

struct order_plan {
    std::vector<planned_addition> steps;
    std::uint32_t places = 1;
    std::uint32_t result = 0; ///< the place of the sum; of one term it holds nothing yet

    explicit order_plan(const summation_order& order)
    {
        constexpr std::uint32_t none = planned_addition::none;
        std::vector<std::uint32_t> place(order.size() + 1, none); // of each partial sum
        std::vector<std::uint32_t> free{0};
        for (const addition& step : order) {
            planned_addition planned{place[step.into], none, place[step.from], place[step.from] == none};
            if (planned.into == none) {
                if (free.empty()) free.push_back(places++);
                place[step.into] = planned.into = free.back();
                planned.starts_as = step.into;
                free.pop_back();
            }
            if (planned.from_term) planned.from = step.from;
            else free.push_back(planned.from);
            steps.push_back(planned);
            result = planned.into;
        }
    }
};

template <floating_element T>
void add_exactly(const T* const* rows, std::uint64_t terms, T* result, std::uint64_t count)
{
    const auto row = [rows](std::uint64_t k) { return rows[k]; };
    const sum_rows<accumulation::exact, T, 64, decltype(row)> body{row, terms, result, count};
    for (std::uint64_t block = 0; block < body.blocks(); ++block) body(block);
}

/// The sums of all elements, in code for this processor.
template <accumulation in, floating_element T>
struct planned_sums {
    const T* const* rows;
    const order_plan& plan;
    T* result;
    std::uint64_t count;

    void run() const
    {
        std::vector<sums_in_block<in, T>> partial(plan.places);
        vectorised([&] { add_blocks(partial.data()); });
    }

private:
    void add_blocks(sums_in_block<in, T>* partial) const noexcept
    {
        for (std::uint64_t first = 0; first < count; first += order_width) {
            const int here = count - first < order_width ? static_cast<int>(count - first) : order_width;
            add_block(partial, first, here);
        }
    }
    void add_block(sums_in_block<in, T>* partial, std::uint64_t first, int here) const noexcept
    {
        T room[order_width];
        const auto term = [&](std::uint32_t k) { return row_values(rows[k] + first, here, room); };
        if (plan.steps.empty()) partial[0].start(term(0));
        for (const planned_addition& step : plan.steps) {
            if (step.starts_as != planned_addition::none) partial[step.into].start(term(step.starts_as));
            if (step.from_term) partial[step.into].add(term(step.from));
            else partial[step.into].add(partial[step.from]);
        }
        T* const to = here == order_width ? result + first : room;
        partial[plan.result].round(to);
        if (to != room) return;
        for (int i = 0; i < here; ++i) result[first + static_cast<std::uint64_t>(i)] = room[i];
    }
};

/// Not inlined: see `gradual_underflow`.
template <accumulation in, floating_element T>
__attribute__((noinline)) void add_in_order(
    const T* const* rows, const summation_order& order, T* result, std::uint64_t count)
{
    if constexpr (in == accumulation::exact) {
        add_exactly(rows, order.size() + 1, result, count);
    } else {
        const order_plan plan(order);
        planned_sums<in, T>{rows, plan, result, count}.run();
    }
}

} // namespace detail

/// result[i] = the sum of element i over the rows, in an order. Each addition rounds as the accumulator does, and the
/// last rounding is to T.
/// Shapes: `rows`: order.size() + 1 pointers to `count` elements each; rows[k] has term k of the order. `result`:
/// `count` elements; it may be one of the rows.
/// Preconditions: host only.
/// Non-finite terms follow IEEE 754 for each addition; with `accumulation::exact` they follow `exact_sum`, whose bits
/// the result has.
/// Cost: allocates up to 2 KB for each partial sum that is kept at a time. 3 to 30 GB of terms a second
/// (bench/results/summation_order.md).
template <accumulation in, floating_element T>
void sum_in_order(const T* const* rows, const summation_order& order, T* result, std::uint64_t count)
{
    static_assert(holds<T>(in), "the accumulator is narrower than the element type");
    const detail::gradual_underflow as_ieee_has_it;
    detail::add_in_order<in>(rows, order, result, count);
}

} // namespace collprobe

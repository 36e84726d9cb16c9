// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "sum/exact_oracle.hpp"
#include "sum/sum_cases.hpp"
#include "support/checks.hpp"
#include "support/run_ranks.hpp"

/// Terms that are hard to add, spread over ranks and leaves, and what their sums must be.
namespace collprobe::testing {

/// The terms of `count` sums: a row of `ranks * leaves` for each element, dealt to the ranks in equal runs.
template <floating_element T>
class term_table {
public:
    term_table(std::uint64_t terms, std::uint64_t count, std::uint64_t seed, bool finite = false)
        : terms_(terms), count_(count), value_(terms * count)
    {
        random_bits random{seed};
        for (std::uint64_t i = 0; i < count; ++i) {
            const auto kinds = static_cast<std::uint64_t>(finite ? difficulty::not_finite : difficulty::count);
            sum_cases<T>::fill(
                random, static_cast<difficulty>(random.below(kinds)), row(i), static_cast<int>(terms));
        }
    }
    std::uint64_t terms() const { return terms_; }
    std::uint64_t count() const { return count_; }
    T* row(std::uint64_t i) { return value_.data() + i * terms_; }
    const T* row(std::uint64_t i) const { return value_.data() + i * terms_; }

    /// What a rank sends of the elements from `first` on: its terms, leaf after leaf.
    std::vector<T> sent(int rank, std::uint64_t leaves, std::uint64_t first, std::uint64_t count) const
    {
        std::vector<T> buffer;
        for (std::uint64_t leaf = 0; leaf < leaves; ++leaf) {
            for (std::uint64_t i = 0; i < count; ++i) {
                buffer.push_back(row(first + i)[static_cast<std::uint64_t>(rank) * leaves + leaf]);
            }
        }
        return buffer;
    }

    /// The correctly rounded sum or average of an element.
    T exact(std::uint64_t i, std::uint32_t divisor = 1) const
    {
        exact_oracle<T> sum;
        for (std::uint64_t k = 0; k < terms_; ++k) sum.add(row(i)[k]);
        return sum.round(divisor);
    }
    /// Added in the order of the terms in an accumulator.
    template <accumulation in>
    T in_order(std::uint64_t i, std::uint32_t divisor = 1) const
    {
        if constexpr (in == accumulation::exact) {
            return exact(i, divisor);
        } else {
            T result;
            host::device::for_each(host::stream::at_once(), 1,
                sum_rows<in, T, 1>{{row(i), 1, 1, 0}, terms_, &result, 1, divisor});
            return result;
        }
    }

private:
    std::uint64_t terms_;
    std::uint64_t count_;
    std::vector<T> value_;
};

/// Which NaN a result is may differ, nothing else.
template <floating_element T>
bool same_number(T a, T b)
{
    return to_bits(a) == to_bits(b) || (is_nan(a) && is_nan(b));
}

/// The least scratch memory.
constexpr std::uint64_t least_scratch(int ranks, std::uint64_t leaves)
{
    return 2 * ((leaves + 1) * static_cast<std::uint64_t>(ranks) * 16 + 64);
}

/// The result of rank 0 where `deal[r]` has the terms of rank r.
template <class Contract, floating_element T>
std::vector<T> reduced(const term_table<T>& table, const std::vector<int>& deal, std::uint64_t leaves,
    reduction operation, reproducible_options options = {})
{
    std::vector<T> result(table.count());
    local_provider{static_cast<int>(deal.size())}.run([&](local::communicator& world) {
        host::stream stream;
        reproducible comm(world, Contract{}, options);
        const auto sent = table.sent(deal[static_cast<std::size_t>(world.rank())], leaves, 0, table.count());
        std::vector<T> own(table.count());
        comm.all_reduce(view<const T>(sent), view<T>(own), operation, stream, {.leaves = leaves});
        stream.synchronize(soon_ms);
        if (world.rank() == 0) result = own;
    });
    return result;
}

template <floating_element T>
bool same_numbers(const std::vector<T>& a, const std::vector<T>& b)
{
    bool same = a.size() == b.size();
    for (std::size_t i = 0; same && i < a.size(); ++i) same = same_number(a[i], b[i]);
    return same;
}

inline std::vector<int> ranks_in_order(int ranks)
{
    std::vector<int> deal;
    for (int rank = 0; rank < ranks; ++rank) deal.push_back(rank);
    return deal;
}

/// Counts what a rank sends.
template <communicator Comm>
class counted : public adaptor<counted<Comm>, Comm> {
    using base_type = adaptor<counted, Comm>;
    using base_type::comm_;

public:
    using typename base_type::stream_ref;
    counted(Comm comm, std::uint64_t& bytes, std::uint64_t& calls) : base_type(comm), bytes_(&bytes), calls_(&calls) {}

    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        const std::uint64_t bytes = call.send_count * sizeof(T);
        if (call.what == collective::all_reduce) count(2 * bytes * others() / (others() + 1));
        if (call.what == collective::all_gather) count(bytes * others());
        if (call.what == collective::all_to_all) count(bytes / (others() + 1) * others());
        comm_.template make<T>(call, on);
    }

private:
    std::uint64_t others() const { return static_cast<std::uint64_t>(comm_.size()) - 1; }
    void count(std::uint64_t bytes)
    {
        *bytes_ += bytes;
        ++*calls_;
    }
    std::uint64_t* bytes_;
    std::uint64_t* calls_;
};

/// One call on a rank; every element against what is expected, and nothing else may have changed. `what`: the call, as
/// a test draws it.
template <class Contract, floating_element T, class Comm, class Draw>
reduction_outcome check_reduction(Comm& comm, host::stream& stream, const Draw& what, const term_table<T>& table,
    const std::vector<T>& expected)
{
    const auto n = static_cast<std::uint64_t>(comm.size());
    const auto rank = static_cast<std::uint64_t>(comm.rank());
    const std::uint64_t leaf_count = what.scatter ? what.count / n * n : what.count;
    const std::uint64_t result_count = what.scatter ? what.count / n : what.count;
    const std::uint64_t result_first = what.scatter ? rank * result_count : 0;
    const T canary = T(12345.0f);
    const std::vector<T> sent = table.sent(comm.rank(), what.leaves, what.first, leaf_count);
    std::vector<T> memory(what.shift, canary);
    memory.insert(memory.end(), sent.begin(), sent.end());
    memory.resize(memory.size() + 3 + result_count + 5, canary);
    const view<const T> send(memory.data() + what.shift, sent.size());
    const std::uint64_t at = what.shift + (what.in_place ? result_first : sent.size() + 3);
    const view<T> receive(memory.data() + at, result_count);
    const std::vector<T> before = memory;
    const reduction_extras extras{.leaves = what.leaves};
    const reduction_outcome outcome = what.scatter
        ? comm.reduce_scatter(send, receive, what.operation, stream, extras)
        : comm.all_reduce(send, receive, what.operation, stream, extras);
    stream.synchronize(soon_ms);
    for (std::uint64_t i = 0; i < memory.size(); ++i) {
        const bool is_result = i >= at && i < at + result_count;
        const T wanted = is_result ? expected[what.first + result_first + i - at] : before[i];
        const bool right = is_result ? same_number(memory[i], wanted) : to_bits(memory[i]) == to_bits(wanted);
        require(right, what.describe() + ": element " + std::to_string(i - at) + " is "
                + std::to_string(static_cast<double>(memory[i])) + ", not "
                + std::to_string(static_cast<double>(wanted)));
    }
    require(outcome.level >= Contract::level, what.describe() + ": a weaker level than asked");
    require(outcome.terms == n * what.leaves, what.describe() + ": wrong number of terms");
    return outcome;
}

} // namespace collprobe::testing

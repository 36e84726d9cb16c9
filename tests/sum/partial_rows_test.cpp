// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <collprobe/sum/partial_rows.hpp>

#include "ordered_oracle.hpp"
#include "sum_cases.hpp"
#include "support/element_types.hpp"

using namespace collprobe;
using testing::difficulty;

using std::uint64_t;

namespace {

/// Terms of `parts` parts of `length` elements: row k of sender s is row s * rows + k.
template <floating_element T>
struct senders {
    uint64_t count, rows, parts, length;
    std::vector<T> term;

    senders(testing::random_bits& random, uint64_t senders_in, uint64_t rows_in, uint64_t parts_in, uint64_t length_in)
        : count(senders_in), rows(rows_in), parts(parts_in), length(length_in),
          term(senders_in * rows_in * parts_in * length_in)
    {
        std::vector<T> column(count * rows);
        for (uint64_t i = 0; i < columns(); ++i) {
            const auto kind = static_cast<difficulty>(random.below(static_cast<uint64_t>(difficulty::count)));
            testing::sum_cases<T>::fill(random, kind, column.data(), static_cast<int>(column.size()));
            for (uint64_t k = 0; k < column.size(); ++k) term[k * columns() + i] = column[k];
        }
    }
    uint64_t columns() const { return parts * length; }
    T at(uint64_t k, uint64_t i) const { return term[k * columns() + i]; }
    detail::term_rows<T> rows_of(uint64_t sender) const { return {term.data() + sender * rows * columns(), 1, columns(), 0}; }
};

template <class Body>
void run(const Body& body)
{
    for (uint64_t block = 0; block < body.blocks(); ++block) body(block);
}

/// Makes the partial sums of each sender by `make(sender, to)`, brings each part of all senders together and adds it by
/// `add(from, result)`.
template <class Number, floating_element T, class Make, class Add>
std::vector<T> sums(const senders<T>& of, uint64_t planes, Make make, Add add)
{
    const uint64_t part = planes * of.length;
    std::vector<std::vector<Number>> sent(of.count, std::vector<Number>(of.parts * part));
    for (uint64_t sender = 0; sender < of.count; ++sender) make(sender, sent[sender].data());
    std::vector<T> result(of.columns());
    for (uint64_t k = 0; k < of.parts; ++k) {
        std::vector<Number> received;
        for (const auto& each : sent) {
            const auto from = each.begin() + static_cast<std::ptrdiff_t>(k * part);
            received.insert(received.end(), from, from + static_cast<std::ptrdiff_t>(part));
        }
        add(static_cast<const Number*>(received.data()), result.data() + k * of.length);
    }
    return result;
}

/// The sums of each sender's terms, added.
template <accumulation in, floating_element T>
T added_by_senders(const senders<T>& of, uint64_t i)
{
    std::vector<T> terms;
    for (uint64_t k = 0; k < of.count * of.rows; ++k) terms.push_back(of.at(k, i));
    const std::vector<int> sizes(of.count, static_cast<int>(of.rows));
    return testing::ordered_oracle<in>(terms, two_level_order(sizes, linear_order(static_cast<int>(of.count))));
}

template <floating_element T>
void check(const std::vector<T>& found, const senders<T>& of, auto wanted)
{
    for (uint64_t i = 0; i < of.columns(); ++i) {
        const T value = wanted(i);
        const bool same = to_bits(found[i]) == to_bits(value) || (is_nan(found[i]) && is_nan(value));
        CAPTURE(i);
        REQUIRE(same);
    }
}

constexpr uint64_t lengths[] = {1, 3, 16, 37};

} // namespace

TEST_CASE_TEMPLATE("pairs: the compensated sums of the senders, added in their order", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using wide = detail::compensated_type<T>;
    testing::random_bits random{1};
    for (const uint64_t length : lengths) {
        for (const uint64_t count : {1u, 2u, 5u}) {
            const senders<T> of(random, count, 4, 3, length);
            const auto found = sums<wide>(of, 2,
                [&](uint64_t sender, wide* to) {
                    run(detail::sum_rows_to_pairs<T, 8>{of.rows_of(sender), of.rows, to, length, of.parts});
                },
                [&](const wide* from, T* result) {
                    run(detail::sum_rows_of_pairs<T, 8>{from, of.count, result, length, 1});
                });
            check(found, of, [&](uint64_t i) { return added_by_senders<accumulation::compensated>(of, i); });
        }
    }
}

TEST_CASE_TEMPLATE("words and, for few halves, doubles: the correctly rounded sums and averages",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    testing::random_bits random{2};
    for (const uint64_t length : lengths) {
        for (const std::uint32_t divisor : {1u, 12u, 7u}) {
            const senders<T> of(random, 3, 4, 2, length);
            const auto exact = [&](uint64_t i) {
                testing::exact_oracle<T> sum;
                for (uint64_t k = 0; k < of.count * of.rows; ++k) sum.add(of.at(k, i));
                return sum.round(divisor);
            };
            check(sums<std::uint32_t>(of, exact_sum<T>::words,
                      [&](uint64_t sender, std::uint32_t* to) {
                          run(detail::sum_rows_to_words<T>{of.rows_of(sender), of.rows, to, length, of.parts});
                      },
                      [&](const std::uint32_t* from, T* result) {
                          run(detail::sum_rows_of_words<T>{from, of.count, result, length, divisor});
                      }),
                of, exact);
            if constexpr (std::is_same_v<T, float16>) {
                check(sums<double>(of, 1,
                          [&](uint64_t sender, double* to) {
                              run(sum_rows<accumulation::float64, T, 8, double>{
                                  of.rows_of(sender), of.rows, to, of.columns(), 1});
                          },
                          [&](const double* from, T* result) {
                              run(detail::sum_rows_of_exact_doubles<T, 8>{from, of.count, result, length, divisor});
                          }),
                    of, exact);
            }
        }
    }
}

TEST_CASE("numbers: sums in float and double may stay as wide as they are")
{
    testing::random_bits random{3};
    const senders<bfloat16> of(random, 3, 4, 2, 37);
    const auto check_in = [&]<class Number, accumulation in>(Number, std::integral_constant<accumulation, in>) {
        check(sums<Number>(of, 1,
                  [&](uint64_t sender, Number* to) {
                      run(sum_rows<in, bfloat16, 8, Number>{of.rows_of(sender), of.rows, to, of.columns(), 1});
                  },
                  [&](const Number* from, bfloat16* result) {
                      run(sum_rows<in, Number, 4, bfloat16>{{from, 1, of.length, 0}, of.count, result, of.length, 1});
                  }),
            of, [&](uint64_t i) { return added_by_senders<in>(of, i); });
    };
    check_in(float{}, std::integral_constant<accumulation, accumulation::float32>{});
    check_in(double{}, std::integral_constant<accumulation, accumulation::float64>{});
}

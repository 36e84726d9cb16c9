// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Searches for small changes of a few words that leave both sums of the digest as they were. Both sums are linear, so
// only the changes count, not the words. All changes of half of the words are listed with what they do to the sums,
// and so are those of the other half; two equal entries are a relation. The search is exact and complete within its
// bounds.
#include <collprobe/scan/digest.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

namespace collprobe::testing::digest_relations_test {
namespace {

#if defined(COLLPROBE_TEST_BRIEF) && COLLPROBE_TEST_BRIEF
constexpr std::uint32_t sets = 1;
constexpr std::size_t most_changes = 3000;
#else
constexpr std::uint32_t sets = 3;
constexpr std::size_t most_changes = 100000;
#endif

using word_list = std::vector<std::uint64_t>; // indices in a buffer

/// What a change does to both sums.
struct effect {
    std::uint64_t first = 0;
    std::uint64_t second = 0;

    bool operator==(const effect&) const = default;
};

effect effect_of(std::uint64_t index)
{
    detail::digest_state state;
    state.add_word(index, 1);
    return {state.first, state.second};
}

/// The effects of all changes of `words` [begin, end) by -bound to bound times 2^shift.
template <class Effect>
std::vector<effect> all_changes(
    const word_list& words, std::size_t begin, std::size_t end, int bound, unsigned shift, Effect effect_of_word)
{
    std::vector<effect> list{effect{}};
    for (std::size_t i = begin; i < end; ++i) {
        const effect one = effect_of_word(words[i]);
        const std::size_t before = list.size();
        list.reserve(before * static_cast<std::size_t>(2 * bound + 1));
        for (int change = -bound; change <= bound; ++change) {
            if (change == 0) continue; // is in the list
            const std::uint64_t times = static_cast<std::uint64_t>(change) << shift;
            for (std::size_t k = 0; k < before; ++k)
                list.push_back({list[k].first + times * one.first, list[k].second + times * one.second});
        }
    }
    std::sort(list.begin(), list.end(), [](const effect& a, const effect& b) { return a.first < b.first; });
    return list;
}

/// How many changes, other than none, leave both sums as they were.
template <class Effect>
std::uint64_t search(const word_list& words, int bound, unsigned shift, Effect effect_of_word)
{
    // With a change its negative is in the list, so equal entries cancel as well as opposite ones.
    const auto left = all_changes(words, 0, words.size() / 2, bound, shift, effect_of_word);
    const auto right = all_changes(words, words.size() / 2, words.size(), bound, shift, effect_of_word);
    std::uint64_t found = 0;
    std::size_t begin = 0;
    for (const effect& mine : left) {
        while (begin < right.size() && right[begin].first < mine.first) ++begin;
        for (std::size_t k = begin; k < right.size() && right[k].first == mine.first; ++k) found += right[k] == mine ? 1 : 0;
    }
    return found - 1;
}

/// The largest bound for which half of the words have at most `most_changes` changes.
int bound_for(std::size_t words)
{
    const auto changes = [&](int bound) {
        double all = 1;
        for (std::size_t i = 0; i < (words + 1) / 2; ++i) all *= 2 * bound + 1;
        return all;
    };
    int bound = 1;
    while (changes(bound + 1) <= static_cast<double>(most_changes)) ++bound;
    return bound;
}

/// Searches for changes by a few units in the last place, of the upper half of words (16-bit elements), of their upper
/// byte and of the sign. There must be none.
void check_none(const word_list& words)
{
    for (const unsigned shift : {0u, 16u, 24u, 31u}) {
        const int all = shift == 31 ? 1 : static_cast<int>((1u << (31 - shift)) - 1);
        const int bound = std::min(bound_for(words.size()), all);
        const std::uint64_t found = search(words, bound, shift, effect_of);
        if (found != 0)
            FAIL(found << " relations of " << words.size() << " words from " << words.front() << " to "
                               << words.back() << ": bound " << bound << ", shift " << shift);
    }
}

/// Weights by line alone, of which the lane's key is no more than a factor: a control.
effect effect_by_line(std::uint64_t index)
{
    const std::uint64_t key = detail::digest_key(static_cast<std::uint32_t>(index));
    return {key, key * (257 - 2 * (index / 16))};
}

/// The words of a lane in a line.
word_list words_of_lane(std::uint64_t line, std::uint64_t lane)
{
    const std::uint64_t first = 16 * line + 2 * lane;
    return {first, first + 1, first + 8, first + 9};
}

word_list every(std::uint64_t step, std::uint64_t first, std::size_t count)
{
    word_list words;
    for (std::size_t i = 0; i < count; ++i) words.push_back(first + i * step);
    return words;
}

} // namespace

TEST_CASE("digest - no small relation between the words of a lane in a line; weights by line alone would have one")
{
    CHECK(search(words_of_lane(29, 2), 120, 0, effect_by_line) != 0); // the control
    for (std::uint64_t line = 0; line < 128; line += 32 / sets)
        for (std::uint64_t lane = 0; lane < 4; ++lane) check_none(words_of_lane(line, lane));
}

TEST_CASE("digest - no small relation between words at equal distances, in one period or several")
{
    // Beside each other, the halves of 8-byte elements among them; in one line; in one lane and place of the lines (a
    // multiple of 16 words) and in other lanes; in the same place of the periods.
    for (const std::uint64_t step : {1u, 2u, 4u, 8u, 16u, 17u, 32u, 48u, 64u, 128u, 256u, 384u, 512u, 640u, 2048u}) {
        for (const std::size_t count : {2u, 3u, 4u, 6u, 8u, 12u, 16u, 20u}) {
            if (step != 2048 && step * count > 2048) continue;
            for (std::uint32_t set = 0; set < sets; ++set) check_none(every(step, 37 * set + step, count));
        }
    }
}

TEST_CASE("digest - no small relation between words at random")
{
    std::mt19937_64 random(3);
    for (const std::uint64_t length : {64u, 2048u, 1u << 20}) {
        for (std::size_t count = 2; count <= 20; ++count) {
            for (std::uint32_t set = 0; set < sets; ++set) {
                word_list words;
                while (words.size() < count) {
                    const std::uint64_t word = random() % length;
                    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
                }
                check_none(words);
            }
        }
    }
}

} // namespace collprobe::testing::digest_relations_test

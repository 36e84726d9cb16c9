// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/replica/disagreement.hpp>
#include <collprobe/replica/replica.hpp>

/// Damage done to buffers by hand, and an element by element account of it: what tests of agreement and repair
/// compare with.
namespace collprobe::testing {

/// SplitMix64.
struct random_numbers {
    std::uint64_t state;

    std::uint64_t next() noexcept { return collprobe::detail::mix64(state += 0x9e3779b97f4a7c15u); }
    std::uint64_t below(std::uint64_t end) noexcept { return next() % end; }
    std::uint64_t between(std::uint64_t first, std::uint64_t last) noexcept { return first + below(last - first + 1); }
};

enum class damage_kind { bits, strided, replaced, zeroed, count };

/// Bytes of a buffer of some element type.
struct raw_buffer {
    std::vector<std::uint64_t> words; ///< aligned for any element
    std::uint64_t count = 0;
    element_type type = element_type::float32;

    raw_buffer() = default;
    raw_buffer(std::uint64_t elements, element_type of) : words(elements * size_of(of) / 8 + 1), count(elements), type(of) {}

    static std::uint64_t size_of(element_type of) { return static_cast<std::uint64_t>(bytes_of(of)); }
    std::uint64_t size() const { return size_of(type); }
    unsigned char* data() { return reinterpret_cast<unsigned char*>(words.data()); }
    const unsigned char* data() const { return reinterpret_cast<const unsigned char*>(words.data()); }
    replica as_replica()
    {
        replica all;
        all.data = data();
        all.count = count;
        all.type = type;
        return all;
    }
    std::uint64_t bits(std::uint64_t element) const
    {
        std::uint64_t value = 0;
        std::memcpy(&value, data() + element * size(), static_cast<std::size_t>(size()));
        return value;
    }
    void set_bits(std::uint64_t element, std::uint64_t value)
    {
        std::memcpy(data() + element * size(), &value, static_cast<std::size_t>(size()));
    }
    void randomise(random_numbers& random)
    {
        for (std::uint64_t& word : words) word = random.next();
    }
};

/// Damages `buffer`, once. It may change nothing (the same bit flipped twice): see `differences_of`.
inline void damage_once(raw_buffer& buffer, damage_kind kind, random_numbers& random)
{
    const std::uint64_t n = buffer.count;
    const std::uint64_t first = random.below(n), end = first + random.below(n - first) + 1;
    const auto flip = [&](std::uint64_t element, std::uint64_t bit) {
        buffer.set_bits(element, buffer.bits(element) ^ std::uint64_t{1} << bit);
    };
    const auto any_bit = [&] { return random.below(8 * buffer.size()); };
    if (kind == damage_kind::bits)
        for (std::uint64_t k = random.between(1, 8); k > 0; --k) flip(random.below(n), any_bit());
    if (kind == damage_kind::strided) { // the same bit of all
        const std::uint64_t stride = random.between(1, 64), bit = any_bit();
        for (std::uint64_t i = first; i < n && i < first + 256 * stride; i += stride) flip(i, bit);
    }
    if (kind == damage_kind::replaced) // what another step had there
        for (std::uint64_t i = first; i < end; ++i) buffer.set_bits(i, random.next());
    if (kind == damage_kind::zeroed)
        for (std::uint64_t i = first; i < end; ++i) buffer.set_bits(i, 0);
}

/// How `damaged` differs from `clean`, found by looking at every element.
inline difference differences_of(const raw_buffer& clean, const raw_buffer& damaged, int rank)
{
    difference found{.rank = rank};
    for (std::uint64_t i = 0; i < clean.count; ++i) {
        if (std::memcmp(clean.data() + i * clean.size(), damaged.data() + i * clean.size(),
                static_cast<std::size_t>(clean.size()))
            == 0)
            continue;
        if (found.elements++ == 0) {
            found.first = i;
            found.expected_bits = clean.bits(i);
            found.actual_bits = damaged.bits(i);
        }
        found.last = i;
    }
    return found;
}

inline bool same(const difference& a, const difference& b)
{
    return a.rank == b.rank && a.same_shape == b.same_shape && a.first == b.first && a.last == b.last
        && a.elements == b.elements && a.expected_bits == b.expected_bits && a.actual_bits == b.actual_bits;
}

/// Whether ranges are ascending, apart from each other, hold every difference, and little else if those are few.
inline bool ranges_fit(const disagreement& found, const raw_buffer& clean, const std::vector<const raw_buffer*>& damaged)
{
    std::uint64_t before = 0, inside = 0, differing = 0, differing_inside = 0;
    const auto differs = [&](std::uint64_t i) {
        for (const raw_buffer* each : damaged) {
            if (std::memcmp(clean.data() + i * clean.size(), each->data() + i * clean.size(),
                    static_cast<std::size_t>(clean.size()))
                != 0)
                return true;
        }
        return false;
    };
    for (const disagreement::range& range : found.ranges) {
        if (range.count == 0 || (&range != &found.ranges.front() && range.first <= before)) return false;
        before = range.first + range.count;
        inside += range.count;
        for (std::uint64_t i = range.first; i < before; ++i) differing_inside += differs(i) ? 1 : 0;
    }
    if (before > clean.count) return false;
    for (std::uint64_t i = 0; i < clean.count; ++i) differing += differs(i) ? 1 : 0;
    if (differing != differing_inside) return false;
    return differing > 1000 || inside <= differing * (64 / clean.size());
}

} // namespace collprobe::testing

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

/// State that is saved as 8-byte words.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Appends the bytes of lists, each filled up to whole words.
template <class... T>
void append_words(std::vector<std::uint64_t>& words, const std::vector<T>&... lists)
{
    static_assert((std::is_trivially_copyable_v<T> && ...));
    const auto append = [&words](const void* from, std::size_t bytes) {
        const std::size_t first = words.size();
        words.resize(first + (bytes + 7) / 8);
        if (bytes > 0) std::memcpy(words.data() + first, from, bytes);
    };
    (append(lists.data(), lists.size() * sizeof(T)), ...);
}

/// Fills lists of the same sizes again, from the first of the words; `words` are then the rest. False, and nothing
/// changes, if there are too few.
template <class... T>
bool take_words(view<const std::uint64_t>& words, std::vector<T>&... lists)
{
    if (words.size() < (std::size_t{0} + ... + ((lists.size() * sizeof(T) + 7) / 8))) return false;
    const auto take = [&words](void* to, std::size_t bytes) {
        if (bytes > 0) std::memcpy(to, words.data(), bytes);
        words = words.part((bytes + 7) / 8, words.size() - (bytes + 7) / 8);
    };
    (take(lists.data(), lists.size() * sizeof(T)), ...);
    return true;
}

/// Of the words of a saved state: a word that is damaged, lost or moved makes another one.
inline std::uint64_t checksum_of(view<const std::uint64_t> words) noexcept
{
    std::uint64_t sum = 0;
    for (const std::uint64_t word : words) sum = mix64(sum + word);
    return sum;
}

} // namespace collprobe::detail

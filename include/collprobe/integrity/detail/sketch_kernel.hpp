// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// No include guard: for_each_isa.hpp includes this once per instruction set, after statistics_kernel.hpp.
#if defined(COLLPROBE_ISA_NAMESPACE)
namespace collprobe::detail::COLLPROBE_ISA_NAMESPACE {

/// For vector `k` of sixteen elements: how far right to shift a word of signs, so that each lane's comes to the bottom.
template <int k>
[[gnu::always_inline]] inline words64 sign_places() noexcept
{
    words64 result;
    for (int lane = 0; lane < width / 8; ++lane) result[lane] = static_cast<std::uint64_t>(k * (width / 8) + lane);
    return result;
}

/// Vector `k` of sixteen elements, in their order (`load_doubles` has another one for bfloat16).
template <int k, class T>
[[gnu::always_inline]] inline doubles doubles_in_order(const T* from) noexcept
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        const auto narrow = load<vector<std::uint16_t, width / 4>>(from + k * (width / 8));
        const auto wide = __builtin_convertvector(narrow, vector<std::uint32_t, width / 2>) << 16;
        return convert(reinterpret_cast<vector<float, width / 2>>(wide));
    } else {
        return load_doubles<k>(from);
    }
}

/// Adds vector `k` of sixteen elements, signed, and its squares.
template <int k, class T>
[[gnu::always_inline]] inline void add_vector(const T* from, words64 signs, doubles* sums, doubles* energies) noexcept
{
    const doubles x = doubles_in_order<k>(from);
    // Of the other types a square is exact, fused or not.
    if constexpr (std::is_same_v<T, double>) energies[k] = hidden(energies[k] + hidden(x * x));
    else energies[k] = hidden(energies[k] + x * x);
    const words64 sign = (signs >> sign_places<k>()) << 63;
    sums[k] = hidden(sums[k] + reinterpret_cast<doubles>(reinterpret_cast<words64>(x) ^ sign));
}
template <int k, class T>
[[gnu::always_inline]] inline void add_vector(const T* from, words64 signs, words64* sums) noexcept
{
    constexpr int lanes = width / 8;
    const auto narrow = load<vector<T, lanes * int{sizeof(T)}>>(from + k * lanes);
    const auto x = reinterpret_cast<words64>(__builtin_convertvector(narrow,
        vector<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>, width>));
    const words64 minus = words64{} - ((signs >> sign_places<k>()) & 1);
    sums[k] += (x ^ minus) - minus;
}

/// A vector of bins, a double or an integer each.
template <class Sum>
using bins_vector = std::conditional_t<std::is_same_v<Sum, double>, doubles, words64>;

/// Sixteen bins, in registers while rows are added to them.
template <class Sum>
struct sixteen_bins {
    static constexpr int lanes = width / 8;
    bins_vector<Sum> vectors[16 / lanes];

    [[gnu::always_inline]] explicit sixteen_bins(const Sum* from) noexcept
    {
        for (int k = 0; k < 16 / lanes; ++k) vectors[k] = load<bins_vector<Sum>>(from + k * lanes);
    }
    [[gnu::always_inline]] void store(Sum* to) const noexcept
    {
        typedef bins_vector<Sum> unaligned __attribute__((aligned(8), may_alias));
        for (int k = 0; k < 16 / lanes; ++k) *reinterpret_cast<unaligned*>(to + k * lanes) = vectors[k];
    }
};

template <class T, class... Sum>
[[gnu::always_inline]] inline void add_columns(const T* from, std::uint64_t stride, int rows,
    const std::uint64_t* words, unsigned shift, sixteen_bins<Sum>... bins, Sum*... to) noexcept
{
    for (int row = 0; row < rows; ++row, from += stride) {
        const words64 signs = words64{} + (words[row] >> shift);
        add_vector<0>(from, signs, bins.vectors...);
        add_vector<1>(from, signs, bins.vectors...);
        if constexpr (width == 32) {
            add_vector<2>(from, signs, bins.vectors...);
            add_vector<3>(from, signs, bins.vectors...);
        }
    }
    (bins.store(to), ...);
}

/// Adds 64 columns of some rows to their bins: the sums and, of floating point, the energies.
template <class T, class... Sum>
inline void add_word_of_columns(
    const T* from, std::uint64_t stride, int rows, const std::uint64_t* words, Sum*... bins) noexcept
{
    for (unsigned c = 0; c < 64; c += 16)
        add_columns<T, Sum...>(from + c, stride, rows, words, c, sixteen_bins<Sum>(bins + c)..., (bins + c)...);
}

} // namespace collprobe::detail::COLLPROBE_ISA_NAMESPACE
#endif

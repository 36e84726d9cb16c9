// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>

#include <nccl.h>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

#if NCCL_VERSION_CODE < 21900
#error "collprobe needs NCCL 2.19 or newer"
#endif

namespace collprobe::inline COLLPROBE_ABI {

/// CUDA's half precision is `float16`.
template <>
struct foreign_element<__half> {
    using type = float16;
};
/// CUDA's bfloat16 is `bfloat16`.
template <>
struct foreign_element<__nv_bfloat16> {
    using type = bfloat16;
};
#if defined(__CUDA_FP8_TYPES_EXIST__)
/// CUDA's 8-bit floating point is `float8_e4m3` and `float8_e5m2`.
template <>
struct foreign_element<__nv_fp8_e4m3> {
    using type = float8_e4m3;
};
template <>
struct foreign_element<__nv_fp8_e5m2> {
    using type = float8_e5m2;
};
#endif

/// NCCL's name of a reduction. One that `ncclRedOpCreatePreMulSum` has made is refused as no reduction.
template <>
struct foreign_reduction<ncclRedOp_t> {
    static constexpr reduction of(ncclRedOp_t operation) noexcept
    {
        switch (operation) {
        case ncclSum: return reduction::sum;
        case ncclAvg: return reduction::average;
        case ncclMin: return reduction::min;
        case ncclMax: return reduction::max;
        case ncclProd: return reduction::product;
        default: return static_cast<reduction>(operation < 255 ? operation : 255);
        }
    }
};

} // namespace collprobe

/// NCCL's names of the library's types, operations and errors.
namespace collprobe::inline COLLPROBE_ABI::nccl {

namespace detail {

#if NCCL_VERSION_CODE >= 22400
inline constexpr ncclDataType_t float8_types[] = {ncclFloat8e4m3, ncclFloat8e5m2};
#else
inline constexpr ncclDataType_t float8_types[] = {ncclUint8, ncclUint8}; // can be moved, but not reduced
#endif

/// In the order of `element_type`.
inline constexpr ncclDataType_t data_types[] = {ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64,
    ncclFloat16, ncclBfloat16, ncclFloat32, ncclFloat64, float8_types[0], float8_types[1]};
static_assert(std::size(data_types) == collprobe::detail::element_list::count());
constexpr ncclDataType_t data_type(element_type type) noexcept { return data_types[static_cast<int>(type)]; }

/// Whether this NCCL has reductions of the type.
constexpr bool can_reduce(element_type type) noexcept
{
    return type == element_type::uint8 || data_type(type) != ncclUint8;
}

constexpr ncclRedOp_t operation(reduction operation) noexcept
{
    switch (operation) {
    case reduction::sum: return ncclSum;
    case reduction::average: return ncclAvg;
    case reduction::min: return ncclMin;
    case reduction::max: return ncclMax;
    case reduction::product: return ncclProd;
    }
    return ncclNumOps;
}

/// The library's status for a return code of NCCL.
constexpr status status_of(ncclResult_t code) noexcept
{
    switch (code) {
    case ncclInvalidArgument:
    case ncclInvalidUsage: return status::invalid_argument;
    case ncclRemoteError: return status::peer_failure;
    default: return status::device_failure;
    }
}

constexpr const char* name(ncclResult_t code) noexcept
{
    switch (code) {
    case ncclSuccess: return "ncclSuccess";
    case ncclUnhandledCudaError: return "ncclUnhandledCudaError";
    case ncclSystemError: return "ncclSystemError";
    case ncclInternalError: return "ncclInternalError";
    case ncclInvalidArgument: return "ncclInvalidArgument";
    case ncclInvalidUsage: return "ncclInvalidUsage";
    case ncclRemoteError: return "ncclRemoteError";
    case ncclInProgress: return "ncclInProgress";
    default: return "an unknown ncclResult_t";
    }
}

/// NCCL's text of its last error, for the end of a message. Empty if NCCL has none, or if `raw_group_is_open` caused
/// it.
inline std::string last_error(ncclComm_t comm)
{
    const char* const said = ncclGetLastError(comm);
    const std::string text = said == nullptr ? "" : said;
    if (text.empty() || text.find("ncclSimInfo_t argument") != std::string::npos) return {};
    return " (NCCL's last error: " + text + ")";
}

template <class T>
consteval auto same_layout()
{
    using collprobe::detail::element_for;
    if constexpr (element<element_for<T>>) return std::type_identity<element_for<T>>{};
    else if constexpr (!std::integral<T> || std::same_as<T, bool>) return std::type_identity<void>{};
    else if constexpr (sizeof(T) == 1) {
        return std::type_identity<std::conditional_t<std::is_signed_v<T>, std::int8_t, std::uint8_t>>{};
    } else if constexpr (sizeof(T) == 4) {
        return std::type_identity<std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>>{};
    } else if constexpr (sizeof(T) == 8) {
        return std::type_identity<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>{};
    } else return std::type_identity<void>{};
}

/// The library's element type for a trainer's type. It is T itself if T is one of element.hpp, `float16` for CUDA's
/// `__half` and so on, and a fixed-width integer for another name of an integer of 8, 32 or 64 bits (`long long`,
/// `char`). Void if NCCL or the library has no such elements.
template <class T>
using element_of = typename decltype(same_layout<std::remove_const_t<T>>())::type;

} // namespace detail

/// The `count` elements at `data` as a view, in the library's type of that layout: `__half*` gives a `view<float16>`.
/// `count` is in elements, as NCCL's counts are. Reads nothing.
template <class T>
auto elements(T* data, std::uint64_t count) noexcept
{
    using same = detail::element_of<T>;
    static_assert(!std::is_void_v<same>,
        "nccl::elements takes the types of core/element.hpp, CUDA's of their layout (__half, __nv_bfloat16, "
        "__nv_fp8_e4m3, __nv_fp8_e5m2) and integers of 8, 32 or 64 bits");
    if constexpr (!std::is_void_v<same>) {
        using result = std::conditional_t<std::is_const_v<T>, const same, same>;
        if constexpr (std::same_as<result, T>) return view<T>(data, count);
        else return view<result>(reinterpret_cast<result*>(data), count);
    }
}

} // namespace collprobe::nccl

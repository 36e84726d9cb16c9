// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

#include <nccl.h>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>

#if NCCL_VERSION_CODE < 21900
#error "collprobe needs NCCL 2.19 or newer"
#endif

/// How the library's types, operations and errors are called in NCCL.
namespace collprobe::inline COLLPROBE_ABI::nccl {

namespace detail {

constexpr ncclDataType_t data_type(element_type type) noexcept
{
    switch (type) {
    case element_type::int8: return ncclInt8;
    case element_type::uint8: return ncclUint8;
    case element_type::int32: return ncclInt32;
    case element_type::uint32: return ncclUint32;
    case element_type::int64: return ncclInt64;
    case element_type::uint64: return ncclUint64;
    case element_type::float16: return ncclFloat16;
    case element_type::bfloat16: return ncclBfloat16;
    case element_type::float32: return ncclFloat32;
    case element_type::float64: return ncclFloat64;
    }
    return ncclNumTypes;
}
template <element T>
inline constexpr ncclDataType_t data_type_of = data_type(element_traits<T>::type);

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

/// What a failed NCCL call is in this library.
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

/// What NCCL says of its last error, for the end of a message; nothing if it says nothing, or what
/// `raw_group_is_open` has made it say.
inline std::string last_error(ncclComm_t comm)
{
    const char* const said = ncclGetLastError(comm);
    const std::string text = said == nullptr ? "" : said;
    if (text.empty() || text.find("ncclSimInfo_t argument") != std::string::npos) return {};
    return " (NCCL's last error: " + text + ")";
}

/// The element type with the layout of a trainer's own type; void if there is none.
template <class T>
consteval auto same_layout()
{
    if constexpr (element<T>) return std::type_identity<T>{};
    else if constexpr (std::same_as<T, __half>) return std::type_identity<float16>{};
    else if constexpr (std::same_as<T, __nv_bfloat16>) return std::type_identity<bfloat16>{};
    else if constexpr (!std::integral<T> || std::same_as<T, bool>) return std::type_identity<void>{};
    else if constexpr (sizeof(T) == 1) {
        return std::type_identity<std::conditional_t<std::is_signed_v<T>, std::int8_t, std::uint8_t>>{};
    } else if constexpr (sizeof(T) == 4) {
        return std::type_identity<std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>>{};
    } else if constexpr (sizeof(T) == 8) {
        return std::type_identity<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>{};
    } else return std::type_identity<void>{};
}
template <class T>
using element_of = typename decltype(same_layout<std::remove_const_t<T>>())::type;

} // namespace detail

/// A trainer's type of elements that NCCL knows: one of element.hpp, CUDA's `__half` or
/// `__nv_bfloat16`, or another name of an integer of 8, 32 or 64 bits (`long long`, `char`).
template <class T>
concept has_element = !std::is_void_v<detail::element_of<T>>;

/// The `count` elements at `data` as a view, in the library's type of that layout: `__half*` gives a
/// `view<float16>`. Nothing is read, nothing costs. `count` is elements, as NCCL's counts are.
template <has_element T>
auto elements(T* data, std::uint64_t count) noexcept
{
    using same = detail::element_of<T>;
    using result = std::conditional_t<std::is_const_v<T>, const same, same>;
    static_assert(sizeof(result) == sizeof(T));
    if constexpr (std::same_as<result, T>) return view<T>(data, count);
    else return view<result>(reinterpret_cast<result*>(data), count);
}

} // namespace collprobe::nccl

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iterator>
#include <string>

#include <nccl.h>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>

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
namespace collprobe::inline COLLPROBE_ABI::nccl::detail {

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

} // namespace collprobe::nccl::detail

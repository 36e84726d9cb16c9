// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include <nccl.h>

#include <collprobe/core/element.hpp>

/// Elements by NCCL's names of their types, and what its reductions make of them.
namespace collprobe::stand_in::nccl {

template <class Visit>
void with_type(ncclDataType_t type, Visit visit)
{
    switch (type) {
    case ncclInt8: return visit(std::int8_t{});
    case ncclUint8: return visit(std::uint8_t{});
    case ncclInt32: return visit(std::int32_t{});
    case ncclUint32: return visit(std::uint32_t{});
    case ncclInt64: return visit(std::int64_t{});
    case ncclUint64: return visit(std::uint64_t{});
    case ncclFloat16: return visit(float16{});
    case ncclBfloat16: return visit(bfloat16{});
    case ncclFloat32: return visit(float{});
    case ncclFloat64: return visit(double{});
#if NCCL_VERSION_CODE >= 22400
    case ncclFloat8e4m3: return visit(float8_e4m3{});
    case ncclFloat8e5m2: return visit(float8_e5m2{});
#endif
    default: std::abort();
    }
}

inline std::size_t bytes_of(ncclDataType_t type)
{
    std::size_t bytes = 0;
    with_type(type, [&bytes](auto value) { bytes = sizeof(value); });
    return bytes;
}

template <class T>
T element_at(const unsigned char* memory, std::size_t index)
{
    T value;
    std::memcpy(&value, memory + index * sizeof(T), sizeof(T));
    return value;
}

/// The factor of a pre-multiplied sum: as a number for floating-point elements, as bits for integers.
struct factor {
    double number = 1;
    std::uint64_t bits = 1;
};

inline factor factor_at(const void* scalar, ncclDataType_t type)
{
    factor result;
    with_type(type, [&](auto zero) {
        using T = decltype(zero);
        const T value = element_at<T>(static_cast<const unsigned char*>(scalar), 0);
        if constexpr (floating_element<T>) result.number = static_cast<double>(value);
        else result.bits = static_cast<std::uint64_t>(value);
    });
    return result;
}

/// The reduction of `value(rank)`, rounded once; each is multiplied by `factor_of(rank)` before.
template <class T, class Value, class FactorOf>
T reduce(ncclRedOp_t what, int ranks, Value value, FactorOf factor_of)
{
    if constexpr (floating_element<T>) {
        using wide = std::conditional_t<std::is_same_v<T, double>, long double, double>;
        const auto at = [&](int rank) {
            return static_cast<wide>(static_cast<double>(value(rank))) * static_cast<wide>(factor_of(rank).number);
        };
        wide result = at(0);
        for (int rank = 1; rank < ranks; ++rank) {
            const wide x = at(rank);
            switch (what) {
            case ncclProd: result *= x; break;
            case ncclMax: result = x > result ? x : result; break;
            case ncclMin: result = x < result ? x : result; break;
            default: result += x;
            }
        }
        if (what == ncclAvg) result /= static_cast<wide>(ranks);
        return T(static_cast<std::conditional_t<std::is_same_v<T, float>, float, double>>(result));
    } else {
        const auto bits_at = [&](int rank) { return static_cast<std::uint64_t>(value(rank)) * factor_of(rank).bits; };
        std::uint64_t bits = bits_at(0);
        T best = value(0);
        for (int rank = 1; rank < ranks; ++rank) {
            const T x = value(rank);
            if (what == ncclProd) bits *= bits_at(rank);
            else bits += bits_at(rank);
            if (what == ncclMax ? x > best : x < best) best = x;
        }
        if (what == ncclMax || what == ncclMin) return best;
        if (what != ncclAvg) return static_cast<T>(bits);
        using signed_or_not = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
        return static_cast<T>(static_cast<signed_or_not>(static_cast<T>(bits)) / static_cast<signed_or_not>(ranks));
    }
}

} // namespace collprobe::stand_in::nccl

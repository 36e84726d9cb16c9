// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/device/cuda/error.hpp>

/// The size of the allocation that a pointer belongs to. CUDA's runtime does not tell it, but its driver does.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

/// cuPointerGetAttributes. An address that CUDA does not know has the value 0 of each attribute, and is no error.
using attributes_query = int (*)(unsigned int count, int* attributes, void** values, unsigned long long address);

/// The numbers of a few CUpointer_attribute. A value has at most 8 bytes.
struct pointer_attribute {
    enum : int {
        memory_type = 2, ///< 1: the host's
        is_managed = 8,
        is_legacy_ipc_capable = 10, ///< true of cudaMalloc alone, where the platform has IPC
        range_start = 11,
        range_bytes = 12,
        memory_pool = 17,
    };
};

/// The bytes from `address` to the end of the run that CUDA knows it in: the rest of an allocation, of a registration
/// by cudaHostRegister, or of a reservation by cuMemAddressReserve, mapped or not. 0 if CUDA cannot tell.
inline std::uint64_t rest_of_range(attributes_query ask, std::uintptr_t address) noexcept
{
    int attributes[] = {pointer_attribute::range_start, pointer_attribute::range_bytes};
    unsigned long long start = 0;
    unsigned long long bytes = 0;
    void* values[] = {&start, &bytes};
    if (ask(2, attributes, values, address) != 0) return 0;
    return start <= address && address - start < bytes ? bytes - (address - start) : 0;
}

/// Whether a program may join the run that holds `address` with the run behind or before it: host memory is registered
/// piece by piece, and a reservation is extended by another one. True if CUDA cannot tell.
inline bool may_be_joined(attributes_query ask, std::uintptr_t address) noexcept
{
    int attributes[] = {pointer_attribute::memory_type, pointer_attribute::is_managed,
        pointer_attribute::is_legacy_ipc_capable, pointer_attribute::memory_pool};
    unsigned long long found[4] = {};
    void* values[] = {&found[0], &found[1], &found[2], &found[3]};
    if (ask(4, attributes, values, address) != 0) return true;
    const bool of_host = found[0] == 1;
    return found[1] == 0 && (of_host || (found[2] == 0 && found[3] == 0));
}

/// The number of the `bytes` from `data` on that lie in one allocation; `bytes` if CUDA cannot tell.
/// Stream behaviour: none; legal during a capture. It remembers nothing, so that no answer is out of date.
/// Cost: one question to the driver, as cudaPointerGetAttributes is one; a few more if the allocation seems too short.
inline std::uint64_t bytes_in_allocation(const void* data, std::uint64_t bytes) noexcept
{
    static const auto ask = reinterpret_cast<attributes_query>(driver_function("cuPointerGetAttributes", 7000));
    if (ask == nullptr) return bytes;
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    std::uint64_t held = rest_of_range(ask, address);
    if (held == 0) return bytes;
    while (held < bytes) {
        const std::uint64_t next = rest_of_range(ask, address + held);
        if (next == 0 || !may_be_joined(ask, address + held - 1) || !may_be_joined(ask, address + held)) return held;
        held += next;
    }
    return bytes;
}

} // namespace collprobe::cuda::detail

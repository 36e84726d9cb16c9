// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaUnregisterFatBinary(void** handle);
void __cudaRegisterFunction(void** handle, const char* function, char* device, const char* name, int threads, uint3*,
    uint3*, dim3*, dim3*, int*);
}

/// Programs with kernels, as nvcc makes them, in plain C++.
namespace collprobe::testing {

/// An entry of a fat binary.
struct fat_entry {
    std::uint32_t architecture = 90;
    std::string payload;
    std::uint16_t kind = 1; ///< PTX
};

inline std::string fat_binary(const std::vector<fat_entry>& entries)
{
    const auto put = [](std::string& to, std::size_t at, auto value) {
        std::memcpy(to.data() + at, &value, sizeof value);
    };
    std::string all;
    for (const fat_entry& each : entries) {
        std::string header(64, '\0');
        put(header, 0, each.kind);
        put(header, 4, std::uint32_t{64});
        put(header, 8, std::uint64_t{each.payload.size() + 1});
        put(header, 28, each.architecture);
        all += header + each.payload + '\0';
    }
    std::string header(16, '\0');
    put(header, 0, std::uint32_t{0xBA55ED50});
    put(header, 6, std::uint16_t{16});
    put(header, 8, std::uint64_t{all.size()});
    return header + all;
}

inline std::string ptx_of(const std::string& body)
{
    return "\n.version 8.0\n.target sm_90\n.address_size 64\n" + body;
}

/// Registers a fat binary, and takes it back.
class kernel_program {
public:
    explicit kernel_program(std::string binary)
        : binary_(std::move(binary)), wrapper_{0x466243B1, 1, binary_.data(), nullptr}
    {
        handle_ = __cudaRegisterFatBinary(&wrapper_);
    }
    kernel_program(const kernel_program&) = delete;
    ~kernel_program() { __cudaUnregisterFatBinary(handle_); }

    /// `address` names the kernel from now on.
    void add_kernel(const void* address, const char* name) const
    {
        __cudaRegisterFunction(handle_, static_cast<const char*>(address), nullptr, name, -1, nullptr, nullptr,
            nullptr, nullptr, nullptr);
    }

private:
    struct wrapper {
        std::uint32_t magic, version;
        const char* data;
        const void* unused;
    };
    std::string binary_;
    wrapper wrapper_;
    void** handle_ = nullptr;
};

} // namespace collprobe::testing

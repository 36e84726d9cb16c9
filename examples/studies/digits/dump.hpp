// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>

#include "file_error.hpp"

/// Arrays as NumPy files (format version 1.0), so that anybody can check the probes' numbers.
namespace trainer {

/// Writes one dimension of `count` elements of a NumPy type ("<f4") that lie at `data`.
/// \throws std::runtime_error naming the file and the reason if it cannot be written.
inline void write_npy(const std::filesystem::path& path, const char* type, const void* data,
    std::size_t count, std::size_t element_bytes)
{
    static_assert(std::endian::native == std::endian::little, "the types written say little-endian");
    std::string header = std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': ("
        + std::to_string(count) + ",), }";
    // Magic string, version and length take 10 bytes; the data begin at a multiple of 64.
    header.append(63 - (10 + header.size()) % 64, ' ');
    header += '\n';
    errno = 0;
    std::ofstream file(path, std::ios::binary);
    file.write("\x93NUMPY\x01\x00", 8);
    const char length[2] = {static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
    file.write(length, 2);
    file.write(header.data(), static_cast<std::streamsize>(header.size()));
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(count * element_bytes));
    file.close();
    if (!file) throw file_error("write", path.string());
}

/// Writes gradients in the precision they travel in. NumPy has no bfloat16: those are widened to
/// float, which is exact.
inline void write_gradient(const std::filesystem::path& path, const std::vector<float>& values)
{
    write_npy(path, "<f4", values.data(), values.size(), 4);
}
inline void write_gradient(const std::filesystem::path& path, const std::vector<collprobe::float16>& values)
{
    write_npy(path, "<f2", values.data(), values.size(), 2);
}
inline void write_gradient(const std::filesystem::path& path, const std::vector<collprobe::bfloat16>& values)
{
    std::vector<float> wide;
    wide.reserve(values.size());
    for (const collprobe::bfloat16 value : values) wide.push_back(static_cast<float>(value));
    write_gradient(path, wide);
}

inline std::filesystem::path gradient_file(const std::filesystem::path& folder, std::uint64_t step, int rank)
{
    return folder / ("grad_step" + std::to_string(step) + "_rank" + std::to_string(rank) + ".npy");
}
inline std::filesystem::path loss_file(const std::filesystem::path& folder, std::uint64_t step)
{
    return folder / ("loss_step" + std::to_string(step) + ".npy");
}
/// The loss of every rank at a step, as the probes heard of it.
inline void write_losses(const std::filesystem::path& folder, const collprobe::step_record& record)
{
    write_npy(loss_file(folder, record.step), "<f8", record.losses.data(), record.losses.size(), 8);
}

} // namespace trainer

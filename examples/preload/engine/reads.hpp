// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record/statistics.hpp>
#include <collprobe/device/clock.hpp>
#include <collprobe/device/cuda/memory.hpp>
#include <collprobe/device/cuda/stream.hpp>
#include <collprobe/scan/statistics.hpp>

namespace collprobe_preload {

/// Bins of the sketches that are kept, and their seed: the same on all ranks.
inline constexpr std::uint64_t kept_bins = 64;
inline constexpr std::uint64_t sketch_seed = 0x452821e638d01377u;

/// Memory of the device that the reads of a communicator's buffers use, on one stream at a time: at most 5.2
/// MiB.
class read_memory {
public:
    /// Of the current device.
    explicit read_memory(bool with_sketches);

    std::uint64_t bytes() const noexcept;

    collprobe::cuda::workspace workspace;
    collprobe::cuda::buffer<double> scratch; ///< of the parts of a sketch
};

/// A buffer to read.
struct read_request {
    collprobe::element_type type = collprobe::element_type::float32;
    const void* data = nullptr;
    std::uint64_t count = 0;
    std::uint64_t first = 0; ///< index of the first element in the whole buffer, for the sketch
    const void* input
        = nullptr; ///< of a result: the rank's input, if it is still there and as long; else null
    double* sketch = nullptr; ///< 2 * `kept_bins` numbers on the device; null: none is wanted
    collprobe::reduction_times times = {};
};

/// Whether the elements of the type have statistics and sketches. Others have a digest of their result.
bool has_statistics(collprobe::element_type type) noexcept;
/// Bytes that the GPU reads for a request.
std::uint64_t bytes_read(const read_request& what) noexcept;

/// Enqueue the reads on `stream`. The current device is that of the stream.
/// \throws collprobe::error if CUDA refuses a launch.
void read_input(collprobe::cuda::stream_ref stream, const read_request& what, collprobe::statistics* to,
    read_memory& memory);
void read_result(collprobe::cuda::stream_ref stream, const read_request& what,
    collprobe::detail::result_record* to, read_memory& memory);

/// Up to 128 bytes that travel with the launch that writes them.
struct word_block {
    std::uint64_t words[16] = {};
};
void write_words(collprobe::cuda::stream_ref stream, const word_block& from, std::uint64_t count, void* to);
/// Writes a value to memory of the device.
template <class T>
void write_words(collprobe::cuda::stream_ref stream, const T& value, void* to)
{
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0 && sizeof(T) <= sizeof(word_block));
    word_block block;
    std::memcpy(block.words, &value, sizeof value);
    write_words(stream, block, sizeof(T) / 8, to);
}

} // namespace collprobe_preload

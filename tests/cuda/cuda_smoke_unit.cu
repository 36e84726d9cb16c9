// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/collprobe.cuh>

collprobe::statistics statistics_on_gpu(const float* data, std::uint64_t count)
{
    namespace cu = collprobe::cuda;
    const cu::stream stream;
    cu::workspace scratch;
    cu::pinned_buffer<collprobe::statistics> result(1);
    cu::device::reduce(stream.get(), collprobe::statistics_reducer<float>({data, count}), count, result.data(), scratch);
    stream.synchronize();
    return result[0];
}

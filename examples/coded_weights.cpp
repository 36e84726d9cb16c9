// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Weights gathered as 8-bit codes, as by ZeRO++'s qwZ: a rank encodes its shard once for a step of the optimiser, and
// both passes gather these codes. Events order the uses of the guarded buffers, so that no pass reads others.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include <collprobe/collprobe.hpp>
#include <collprobe/guard.hpp>
#include <collprobe/quant.hpp>

using namespace collprobe;
using device = host::device; // for GPUs cuda::device, with quant/cuda/codec_kernels.cuh

int main()
{
    local::run(4, [](local::communicator& world) {
        constexpr std::uint64_t slot = 4096, count = 4 * slot; // elements of a rank, and of all
        const slice_codec<bfloat16> codec({.format = code_format::int8}, 4, slot, count);
        guarded<device, float> master(slot);
        guarded<device, std::uint8_t> codes(codec.message_bytes()), arrivals(4 * codec.message_bytes());
        guarded<device, bfloat16> weights(count);
        quantisation_errors errors;
        std::uint64_t nonfinite = 0;
        device::workspace encoding, decoding;
        host::stream compute, traffic;
        for (std::uint64_t step = 1; step <= 2; ++step) {
            master.write(compute, [&](view<float> shard) { // the optimiser
                compute.enqueue([=] {
                    std::this_thread::sleep_for(std::chrono::milliseconds(20)); // a gather would not wait by itself
                    for (std::uint64_t i = 0; i < slot; ++i) shard.data()[i] = float(step) * (1 + std::sin(float(i)));
                });
            });
            master.read(compute, [&](view<const float> shard) {
                codes.write(compute, [&](view<std::uint8_t> to) { // behind the gathers of the last ones
                    codec.encode<device>(compute, shard, to.data(), world.rank(), step, &errors, encoding);
                });
            });
            for (const char* pass : {"forward", "backward"}) {
                copy_then_all_gather(codes, arrivals, world, traffic, {}, {}, {.at_least = step}); // none older
                arrivals.read(traffic, [&](view<const std::uint8_t> all) {
                    weights.write(traffic, [&](view<bfloat16> to) {
                        codec.decode<device>(traffic, all.data(), to, &nonfinite, decoding);
                    });
                });
                weights.read(compute, [&](view<const bfloat16> all) {
                    double sum = 0;
                    compute.synchronize(); // to print it
                    for (const bfloat16 weight : all) sum += double(float(weight));
                    if (world.rank() == 0) std::printf("step %d, %s: mean %.2f\n", int(step), pass, sum / count);
                });
            }
        }
        if (world.rank() == 0) std::printf("a gather receives %d bytes of %d, SQNR %.1f dB\n",
            int(3 * codes.count()), int(6 * slot), 10 * std::log10(errors.squares / errors.error_squares));
    });
}

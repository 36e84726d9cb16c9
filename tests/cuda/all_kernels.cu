// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// Every kernel of the library for every element type: what cmake/kernel_resources.sh looks at. A whole
/// program too, so that all of it is known to link. It is compiled in parts, as COLLPROBE_PART says,
/// since all of it takes a minute of compilation for each architecture.
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/collprobe.cuh>
#include <collprobe/fault.hpp>
#include <collprobe/quant/cuda/codec_kernels.cuh>
#include <collprobe/quant/quantisation_probe.hpp>
#include <collprobe/quant/quantised.hpp>
#include <collprobe/reduce.hpp>
#include <collprobe/replica.hpp>
#include <collprobe/sum.hpp>

#include "../../examples/support/device_ranks.hpp"

namespace {

using namespace collprobe;
using gpu = collprobe::cuda::device;

/// What every type has.
template <element T>
void of_any_type(gpu::stream_ref stream, T* data, statistics* result, gpu::workspace& scratch)
{
    const view<const T> source(data, 1);
    gpu::fill(stream, view<T>(data, 1), T{});
    gpu::reduce(stream, collprobe::detail::digest_reducer<T>(source), 1, &result->digest, scratch);
    if constexpr (!floating_element<T>)
        gpu::reduce(stream, collprobe::detail::count_reducer<T>(source), 1, result, scratch);
    if constexpr (floating_element<T>) {
        gpu::reduce(stream, statistics_reducer<T>(source), 1, result, scratch);
        double* const sketch = nullptr;
        detail::enqueue_sketch<gpu>(stream, detail::sketch_source<T>{source, 0, 64, 0}, sketch, sketch);
    }
}

/// What `probed` does with floating-point types.
template <element T>
void of_a_gradient(gpu::stream_ref stream, T* data, double* gram, statistics* result, gpu::workspace& scratch)
{
    const view<const T> source(data, 1);
    gpu::reduce(stream, detail::result_reducer<T>(source, data), 1, reinterpret_cast<detail::result_record*>(result),
        scratch);
    const detail::sketch_target sketch{0, 64, 0, gram, gram};
    detail::read_input<gpu, T>(stream, source, result, sketch, scratch);
    detail::read_result<gpu, T>(
        stream, source, data, reinterpret_cast<detail::result_record*>(result), sketch, scratch);
    gpu::sum_each(stream, 1, detail::pair_dots<T>{data, 1, 1, 1, gram});
}

/// What `reproducible` does with floating-point types.
template <accumulation in, element T>
void of_a_sum(gpu::stream_ref stream, T* data)
{
    constexpr int width = static_cast<int>(gpu::body_bytes / sizeof(T));
    gpu::for_each(stream, 1, sum_rows<in, T, width>{{data, 1, 1, 1}, 1, data, 1, 1});
}
template <element T>
void of_sums(gpu::stream_ref stream, T* data)
{
    of_a_sum<accumulation::native>(stream, data);
    if constexpr (sizeof(T) <= 4) of_a_sum<accumulation::float32>(stream, data);
    of_a_sum<accumulation::float64>(stream, data);
    of_a_sum<accumulation::exact>(stream, data);
    auto* const codes = reinterpret_cast<detail::exponent_code<T>*>(data);
    auto* const sums = reinterpret_cast<std::int64_t*>(data);
    gpu::for_each(stream, 1, detail::pack_parts<T, 1>{data, 1, 1, 1, data});
    gpu::for_each(stream, 1, detail::code_exponents<T>{data, 1, 1, codes});
    gpu::for_each(stream, 1, detail::leaves_to_units<T>{data, 1, 1, codes, 1, sums});
    gpu::for_each(stream, 1, detail::units_to_elements<T>{sums, codes, 1, 1, data});
}

/// What quantised sums and gathers do, and their probe.
template <floating_element T>
void of_codes(local::device_communicator<gpu>& rank, gpu::stream_ref stream, T* data)
{
    probed comm(quantised(rank, {.rotate = true, .feedback = error_feedback::all}), {},
        quantisation_probe({}, {.messages = true}));
    comm.all_reduce(view<const T>(data, 1), view<T>(data, 1), reduction::sum, stream);
    comm.reduce_scatter(view<const T>(data, 1), view<T>(data, 1), reduction::sum, stream);
    comm.all_gather(view<const T>(data, 1), view<T>(data, 1), stream);
    comm.end_step(0, stream);
}

/// What checks, faults and repairs do.
template <element T>
void of_integrity(local::device_communicator<gpu>& rank, gpu::stream_ref stream, T* data)
{
    probed comm{faulty(rank, {}), {}, audit()};
    comm.all_reduce(view<const T>(data, 1), view<T>(data, 1), reduction::sum, stream);
    comm.all_gather(view<const T>(data, 1), view<T>(data, 1), stream);
    comm.end_step(0, stream);
    const std::vector<replica> all{view<T>(data, 1)};
    agreement check(rank);
    majority_repair(check, view<const replica>(all), stream);
    if constexpr (floating_element<T>) {
        replica_averaging<local::device_communicator<gpu>, every>(rank, all, {}).step(stream);
        replica_averaging<local::device_communicator<gpu>, when_worth_it> measured(rank, all, {});
        measured.before_update(all, 0.1, stream);
        measured.step(stream);
    }
}

/// All of these types, by a communicator of one rank.
template <element... T>
void of_integrity_of(gpu::stream_ref stream)
{
    local::run_on<gpu>(1, {}, [&](auto& rank) { (of_integrity<T>(rank, stream, nullptr), ...); });
}
template <floating_element... T>
void of_codes_of(gpu::stream_ref stream)
{
    local::run_on<gpu>(1, {}, [&](auto& rank) { (of_codes<T>(rank, stream, nullptr), ...); });
}

} // namespace

int main()
{
    // Compiled and linked, not for running.
    const gpu::stream stream;
    gpu::workspace scratch;
    statistics* const result = nullptr;
    double* const gram = nullptr;
    unsigned char* const bytes = nullptr;
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 1
    of_any_type<float>(stream.get(), nullptr, result, scratch);
    gpu::reduce_parts(stream.get(), collprobe::detail::digest_reducer<std::uint8_t>(), 0, 0,
        static_cast<std::uint64_t*>(nullptr), scratch);
    of_any_type<collprobe::float16>(stream.get(), nullptr, result, scratch);
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 2
    of_any_type<bfloat16>(stream.get(), nullptr, result, scratch);
    of_any_type<double>(stream.get(), nullptr, result, scratch);
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 3
    of_any_type<std::int8_t>(stream.get(), nullptr, result, scratch);
    of_any_type<std::uint8_t>(stream.get(), nullptr, result, scratch);
    of_any_type<std::int32_t>(stream.get(), nullptr, result, scratch);
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 4
    of_any_type<std::uint32_t>(stream.get(), nullptr, result, scratch);
    of_any_type<std::int64_t>(stream.get(), nullptr, result, scratch);
    of_any_type<std::uint64_t>(stream.get(), nullptr, result, scratch);
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 5
    of_a_gradient<float>(stream.get(), nullptr, gram, result, scratch);
    of_a_gradient<collprobe::float16>(stream.get(), nullptr, gram, result, scratch);
    of_a_gradient<bfloat16>(stream.get(), nullptr, gram, result, scratch);
    of_a_gradient<double>(stream.get(), nullptr, gram, result, scratch);
    gpu::reduce(stream.get(), detail::conservation_judge{gram, gram, 64,
            detail::conservation_bound::of<float>(reduction::sum, rounding_order::linear, 2, 1,
                detail::terms_of_linear(2))},
        64, reinterpret_cast<detail::conservation_result*>(result), scratch);
    gpu::for_each(stream.get(), 1, detail::add_parts{gram, 1, 1, gram});
    gpu::for_each(stream.get(), 1, detail::publish_report{}); // of captured steps
    gpu::for_each(stream.get(), 1, detail::write_header{});
    gpu::fill(stream.get(), view<double>(gram, 1), 0.0);
    gpu::fill(stream.get(), view<unsigned char>(bytes, 1), static_cast<unsigned char>(0));
    gpu::fill(stream.get(), view<detail::conservation_result>(nullptr, 0), detail::conservation_result{});
    gpu::fill(stream.get(), view<detail::replay_tickets>(nullptr, 0), detail::replay_tickets{});
    // The small kernels of a step of `probed`.
    local::run_on<gpu>(1, {}, [&](local::device_communicator<gpu>& rank) {
        probed comm(rank, {}, weight_probe());
        const auto average = [&]<class T>(T) {
            comm.all_reduce(view<const T>(), view<T>(), reduction::average, stream.get());
        };
        average(float()), average(double()), average(bfloat16()), average(float16());
        comm.end_step(0, {.loss = 0}, stream.get());
    });
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 6
    of_sums<float>(stream.get(), nullptr);
    of_sums<double>(stream.get(), nullptr);
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 7
    of_sums<collprobe::float16>(stream.get(), nullptr);
    of_sums<bfloat16>(stream.get(), nullptr);
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 8
    of_integrity_of<float, bfloat16, std::int32_t>(stream.get());
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 9
    of_integrity_of<collprobe::float16, double, std::int64_t>(stream.get());
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 10
    of_integrity_of<std::int8_t, std::uint8_t, std::uint32_t, std::uint64_t>(stream.get());
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 11
    of_codes_of<float, double>(stream.get());
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 12
    of_codes_of<bfloat16, collprobe::float16>(stream.get());
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 13
    of_any_type<float8_e4m3>(stream.get(), nullptr, result, scratch);
    of_any_type<float8_e5m2>(stream.get(), nullptr, result, scratch);
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 14
    of_sums<float8_e4m3>(stream.get(), nullptr);
    of_sums<float8_e5m2>(stream.get(), nullptr);
#endif
#if COLLPROBE_PART == 0 || COLLPROBE_PART == 15
    of_integrity_of<float8_e4m3, float8_e5m2>(stream.get());
#endif
}

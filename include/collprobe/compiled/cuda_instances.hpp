// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The kernels that `collprobe::compiled_cuda` holds: those of a probed call of floating-point elements, and of the
// exchange of its records; and their judge. COLLPROBE_INSTANCE is `extern template` or `template`; so no include guard.

namespace collprobe::inline COLLPROBE_ABI {

#define COLLPROBE_BODY(body) \
    COLLPROBE_INSTANCE void cuda::device::for_each(cuda::stream_ref, std::uint64_t, body);

#define COLLPROBE_KERNELS_OF(T) \
    COLLPROBE_INSTANCE void cuda::device::reduce( \
        cuda::stream_ref, statistics_reducer<T>, std::uint64_t, statistics*, cuda::workspace&, \
        reduction_times); \
    COLLPROBE_INSTANCE void cuda::device::reduce( \
        cuda::stream_ref, collprobe::detail::result_reducer<T>, std::uint64_t, collprobe::detail::result_record*, \
        cuda::workspace&, reduction_times); \
    COLLPROBE_INSTANCE void cuda::device::sum_each(cuda::stream_ref, std::uint64_t, collprobe::detail::pair_dots<T>); \
    COLLPROBE_BODY(collprobe::detail::take_sample<T>)

COLLPROBE_KERNELS_OF(float)
COLLPROBE_KERNELS_OF(bfloat16)
COLLPROBE_KERNELS_OF(float16)
COLLPROBE_KERNELS_OF(double)

COLLPROBE_BODY(collprobe::cuda::detail::fill_body<double>)
COLLPROBE_BODY(collprobe::detail::add_parts)
COLLPROBE_BODY(collprobe::detail::write_header)
COLLPROBE_BODY(collprobe::cuda::detail::fill_body<collprobe::detail::replay_tickets>)
COLLPROBE_BODY(collprobe::detail::publish_report)
COLLPROBE_BODY(collprobe::detail::pack_summary)
COLLPROBE_BODY(collprobe::detail::advance_reference)

COLLPROBE_INSTANCE struct detail::step_memory<cuda::device>;
COLLPROBE_INSTANCE class detail::open_step<cuda::device>;
COLLPROBE_INSTANCE void detail::report_judge::add(const detail::step_in_flight<cuda::device>&, std::uint32_t,
    std::uint64_t, detail::part_judges&, detail::function_ref<error_origin(const char*)>);

#undef COLLPROBE_KERNELS_OF
#undef COLLPROBE_BODY

} // namespace collprobe

#undef COLLPROBE_INSTANCE

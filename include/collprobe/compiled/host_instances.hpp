// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The instances that `collprobe::compiled` holds: what a probed call of floating-point elements asks for, and the
// exchange of its records. COLLPROBE_INSTANCE is `extern template` or `template`; so no include guard.

#include <collprobe/comm/local/run.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/step/probed.hpp>

namespace collprobe::inline COLLPROBE_ABI {

#define COLLPROBE_REDUCTIONS_OF(T) \
    COLLPROBE_INSTANCE void local::detail::move_all_reduce<T>(const local::detail::group_state&, int); \
    COLLPROBE_INSTANCE void local::detail::move_reduce_scatter<T>(const local::detail::group_state&, int);

#define COLLPROBE_READS_OF(T, reducer) \
    COLLPROBE_INSTANCE reducer::partial detail::reduce_blocks(const reducer&, std::uint64_t); \
    COLLPROBE_INSTANCE detail::sketched_reducer<reducer, T>::partial detail::reduce_blocks( \
        const detail::sketched_reducer<reducer, T>&, std::uint64_t);

#define COLLPROBE_SCANS_OF(T) \
    COLLPROBE_READS_OF(T, statistics_reducer<T>) \
    COLLPROBE_READS_OF(T, detail::result_reducer<T>) \
    COLLPROBE_INSTANCE detail::digest_reducer<T>::partial detail::reduce_blocks( \
        const detail::digest_reducer<T>&, std::uint64_t); \
    COLLPROBE_INSTANCE void detail::accumulate_gram<T, local::communicator>(local::communicator&, view<const T>, \
        view<double>, view<unsigned char>, host::stream_ref, call_site);

#define COLLPROBE_CALLS_OF(T) \
    COLLPROBE_INSTANCE void probed<local::communicator>::around<T>( \
        const collective_call&, host::stream_ref, detail::function_ref<void()>);

COLLPROBE_INSTANCE class local::detail::basic_group<local::communicator>;
COLLPROBE_INSTANCE void local::detail::run_ranks(const local::detail::basic_group<local::communicator>&,
    collprobe::detail::function_ref<void(int)>, collprobe::detail::function_ref<void(local::communicator&)>);
COLLPROBE_REDUCTIONS_OF(float)
COLLPROBE_REDUCTIONS_OF(bfloat16)
COLLPROBE_REDUCTIONS_OF(float16)
COLLPROBE_REDUCTIONS_OF(double)
COLLPROBE_REDUCTIONS_OF(std::uint64_t)
COLLPROBE_REDUCTIONS_OF(unsigned char)
COLLPROBE_SCANS_OF(float)
COLLPROBE_SCANS_OF(bfloat16)
COLLPROBE_SCANS_OF(float16)
COLLPROBE_SCANS_OF(double)

COLLPROBE_INSTANCE void detail::measure_orders(
    order_meter&, const detail::gathered_step&, view<const detail::probed_call>, step_record&) noexcept;

COLLPROBE_INSTANCE class detail::basic_missing_calls_check<>;
COLLPROBE_INSTANCE class detail::basic_call_series<>;
COLLPROBE_INSTANCE class detail::basic_step_judge<>;
COLLPROBE_INSTANCE void detail::judge_summary(detail::step_judge&, const detail::summary_parts&,
    const detail::gathered_step*, int, view<const detail::probed_call>, view<const detail::expected_value>,
    view<const double>, step_record&);
COLLPROBE_INSTANCE struct detail::step_resources<host::device>;
COLLPROBE_INSTANCE struct detail::step_block<host::device>;
COLLPROBE_INSTANCE class detail::report_ring<host::device>;
COLLPROBE_INSTANCE class detail::captured_steps<host::device>;
COLLPROBE_INSTANCE struct detail::step_memory<host::device>;
COLLPROBE_INSTANCE class detail::in_flight<detail::step_memory<host::device>>;
COLLPROBE_INSTANCE class detail::open_step<host::device>;
COLLPROBE_INSTANCE void detail::report_judge::add(const detail::step_in_flight<host::device>&, std::uint32_t,
    std::uint64_t, detail::part_judges&, detail::function_ref<error_origin(const char*)>);
COLLPROBE_INSTANCE void detail::report_exchange<host::device>::run(local::communicator&,
    const detail::step_block<host::device>&, const detail::write_header&, detail::function_ref<void(std::uint64_t*)>,
    host::stream_ref, call_site);
COLLPROBE_INSTANCE class probed<local::communicator>;
COLLPROBE_CALLS_OF(float)
COLLPROBE_CALLS_OF(bfloat16)
COLLPROBE_CALLS_OF(float16)
COLLPROBE_CALLS_OF(double)

#undef COLLPROBE_CALLS_OF
#undef COLLPROBE_SCANS_OF
#undef COLLPROBE_READS_OF
#undef COLLPROBE_REDUCTIONS_OF

} // namespace collprobe

/// The lists of a record.
#define COLLPROBE_LIST_OF(T) COLLPROBE_INSTANCE class std::vector<collprobe::T>;
COLLPROBE_LIST_OF(call_interval) COLLPROBE_LIST_OF(call_record) COLLPROBE_LIST_OF(expectation_record)
COLLPROBE_LIST_OF(finding) COLLPROBE_LIST_OF(missing_call) COLLPROBE_LIST_OF(rank_evidence)
COLLPROBE_LIST_OF(rank_lateness) COLLPROBE_LIST_OF(rank_with_zeros) COLLPROBE_LIST_OF(statistics)
COLLPROBE_LIST_OF(call_weights) COLLPROBE_LIST_OF(number_record) COLLPROBE_LIST_OF(step_record)
#undef COLLPROBE_LIST_OF

#undef COLLPROBE_INSTANCE

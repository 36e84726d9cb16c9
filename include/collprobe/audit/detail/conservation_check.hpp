// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/step/step_sketches.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A sum whose result is checked.
struct checked_sum {
    std::uint64_t call = 0; ///< index in the step
    std::uint64_t count = 0; ///< elements of the whole result
    reduction operation = reduction::sum;
    bool is_part = false; ///< a reduce-scatter: each rank has a part of the result
};

/// The bins of a sketch of a sum: at most `conservation_options::sketch`, at least `rows` elements in each, and rows of
/// at most 4 KiB: a thread of a GPU then has the same bins throughout, and on a CPU they stay in the first cache.
constexpr std::uint32_t bins_for(
    std::uint64_t count, element_type type, const conservation_options& options) noexcept
{
    const auto size = static_cast<std::uint32_t>(bytes_of(type));
    const std::uint32_t row = round_bytes / (size > 1 ? size : 2);
    const std::uint32_t most = options.sketch.bins < row ? options.sketch.bins : row;
    const std::uint64_t rows = options.rows;
    std::uint32_t bins = 64;
    while (bins < most && 2 * bins <= count / rows) bins *= 2;
    return bins;
}

/// Checks by a linear checksum whether the results of the all-reduces and reduce-scatters of a step are the sums or
/// averages of the ranks' inputs. `before` and `after` say what sketch of the rank's input and result the caller must
/// make, before and behind the collective. `end` adds the sketches over the ranks and compares bin by bin, up to a
/// bound for rounding (`conservation_bound`). Sums of integers are not checked. Every rank judges its own results. If
/// an input is not finite, nothing is checked. A result that is not finite is a violation if no sum of the inputs can
/// overflow. README.md says what is seen. Preconditions: all ranks call `before` and `after` around the same
/// collectives, with the same options. Calls of the same `lane` run one after the other. Stream behaviour: everything
/// is enqueued; the host never waits. It allocates until a step is as large as the largest before. Cost of a call: a
/// read of the input, one of the result; memory on the device: 32 bytes a bin. Cost of a step: an all-reduce of 16
/// bytes a bin and call (twice that for a reduce-scatter), and a launch for each call. On a GPU each lane has 2 KiB a
/// bin (at least 8 MiB in all). Source: K.-H. Huang and J. Abraham, "Algorithm-based fault tolerance for matrix
/// operations" (1984).
template <class Device>
class conservation_check {
public:
    using stream_ref = typename Device::stream_ref;

    /// \throws error `invalid_argument` unless the number of bins is a power of two from 64 to 2^20, `sigmas` is finite
    ///   and above 0, and `rows` is above 0.
    conservation_check(const conservation_options& options, int ranks, call_site where = call_site::current())
        : options_(checked(options, where)), ranks_(ranks), terms_(terms_of(options.order, ranks)),
          sketches_(options.sketch.bins, options.sketch.seed)
    {
    }

    void clear() noexcept { sketches_.clear(); }
    /// Calls from this index on were not made in the end.
    void forget(std::uint64_t first) noexcept { sketches_.forget(first); }

    template <element T>
    sketch_target before(const checked_sum& sum, int lane)
    {
        // This holds on all ranks or on none.
        if constexpr (!floating_element<T>) return {};
        else if (!judge<T>(sum, nullptr, nullptr).can_check) return {};
        else return sketches_.before({sum, &conservation_check::template judge_one<T>}, sum.call,
            bins_for(sum.count, element_traits<T>::type, options_), sum.is_part, lane);
    }

    /// `count`: elements of the result, or of this rank's part. Then the step's message adds the sketches of all parts,
    /// so all ranks get the same verdict, which does not tell whose part was damaged.
    template <element T>
    sketch_target after(std::uint64_t call, std::uint64_t count, int rank, int lane)
    {
        return sketches_.after(call, count, rank, lane);
    }

    /// Behind all calls of the step, of which there are `calls`. `out_of(call)` is where the device writes a verdict.
    template <communicator Comm, class OutOf>
    void end(Comm& ranks, std::uint64_t calls, stream_ref stream, const OutOf& out_of, call_site where)
    {
        forget(calls);
        sketches_.add_up(ranks, stream, where);
        for (const in_step& each : sketches_.open()) (this->*each.note.judge)(each, stream, out_of(each.call));
    }

private:
    struct note;
    using in_step = typename step_sketches<Device, note>::entry;
    struct note {
        checked_sum sum;
        void (conservation_check::*judge)(const in_step&, stream_ref, conservation_result*);
    };

    static const conservation_options& checked(const conservation_options& options, call_site where)
    {
        require_sketch_options(options.sketch, "audit", where);
        require(is_finite(options.sigmas) && options.sigmas > 0, "audit", "sigmas must be finite and above 0", where);
        require(options.rows != 0, "audit", "rows is 0", where);
        return options;
    }
    template <floating_element T>
    conservation_judge judge(const checked_sum& sum, const double* of_input, const double* of_result) const
    {
        const std::uint32_t bins = bins_for(sum.count, element_traits<T>::type, options_);
        return judge_conservation<T>(of_input, of_result, bins, (sum.count + bins - 1) / bins, sum.operation,
            options_.order, ranks_, options_.sigmas, terms_);
    }
    template <floating_element T>
    void judge_one(const in_step& each, stream_ref stream, conservation_result* out)
    {
        Device::reduce(stream, judge<T>(each.note.sum, each.of_input, each.of_result), each.bins, out, reduces_);
    }

    conservation_options options_;
    int ranks_;
    rounded_terms terms_;
    step_sketches<Device, note> sketches_;
    typename Device::workspace reduces_;
};

} // namespace collprobe::detail

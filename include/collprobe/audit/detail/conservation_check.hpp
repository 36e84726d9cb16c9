// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/comm/adaptor.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/sketch.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Checks by a linear checksum whether the result of an all-reduce or reduce-scatter is the sum or average of the
/// ranks' inputs. `before` sketches the rank's input; the collective may then overwrite it. `after` adds the sketches
/// over the ranks, sketches the result and compares bin by bin, up to a bound for rounding (`conservation_bound`).
/// Integer sums must match exactly. Every rank judges its own result. If an input is not finite, nothing is checked. A
/// result that is not finite is a violation if no sum of the inputs can overflow. README.md says what is seen.
/// Preconditions: all ranks call both around the same collective, with the same options; one such pair at a time.
/// Stream behaviour: everything is enqueued; the host neither waits nor allocates.
/// Cost: a read of the input, one of the result, and an all-reduce of 16 bytes a bin (8 for integers; twice that for a
/// reduce-scatter). Memory on the device: 48 bytes a bin on the CPU, 2 KiB a bin (8 MiB in all) on a GPU.
/// Source: K.-H. Huang and J. Abraham, "Algorithm-based fault tolerance for matrix operations" (1984).
template <class Device>
class conservation_check {
public:
    using stream_ref = typename Device::stream_ref;

    /// Allocates. \throws error `invalid_argument` unless the number of bins is a power of two from 64 to 2^20 and
    ///   `sigmas` is finite and above 0.
    conservation_check(const conservation_options& options, int ranks, call_site where = call_site::current())
        : options_(checked(options, where)),
          terms_(terms_of(options.order, ranks)),
          sketches_(4 * options.sketch.bins),
          scratch_(sketch_scratch_numbers<Device>(options.sketch.bins))
    {
        Device::load_kernels();
    }

    template <element T>
    void before(view<const T> input, stream_ref stream)
    {
        enqueue<T>(stream, source_of(input), input_sketch<T>());
    }

    /// `result`: the whole result, or after a reduce-scatter (`is_part`) this rank's part. Then the same message also
    /// adds the sketches of all parts, so all ranks get the same verdict, which does not tell whose part was damaged.
    /// `reduces`: scratch memory of the stream's reductions. The verdict goes to `*out`, which the device writes.
    template <element T, communicator Comm>
    void after(Comm& ranks, view<const T> result, bool is_part, reduction operation, stream_ref stream,
        typename Device::workspace& reduces, conservation_result* out, call_site where)
    {
        const std::uint32_t bins = options_.sketch.bins;
        const auto parts = is_part ? static_cast<std::uint64_t>(ranks.size()) : 1;
        const std::uint64_t count = result.count() * parts;
        sketch_sum<T>* const of_result = input_sketch<T>() + sketch_numbers<T>(bins);
        const auto judge = judge_conservation<T>(input_sketch<T>(), of_result, bins, (count + bins - 1) / bins,
            operation, options_.order, ranks.size(), options_.sigmas, terms_);
        if (!judge.can_check) {
            // This holds on all ranks or on none, so nothing needs to be sent.
            Device::fill(stream, view<conservation_result>(out, 1), {0, judge.limit, 0, false, true}, where);
            return;
        }
        const std::uint64_t first = is_part ? result.count() * static_cast<std::uint64_t>(ranks.rank()) : 0;
        enqueue<T>(stream, source_of(result, first), of_result);
        const view<sketch_sum<T>> sums(input_sketch<T>(), (is_part ? 2 : 1) * sketch_numbers<T>(options_.sketch));
        ranks.all_reduce(view<const sketch_sum<T>>(sums), sums, reduction::sum, stream, where);
        Device::reduce(stream, judge, bins, out, reduces);
    }

private:
    static const conservation_options& checked(const conservation_options& options, call_site where)
    {
        require_sketch_options(options.sketch, "audit", where);
        if (is_finite(options.sigmas) && options.sigmas > 0) return options;
        throw error(status::invalid_argument, "sigmas must be finite and above 0", {.call = "audit", .where = where});
    }
    /// The sketch of the inputs; that of the result follows.
    template <element T>
    sketch_sum<T>* input_sketch() const noexcept
    {
        return reinterpret_cast<sketch_sum<T>*>(sketches_.data());
    }
    template <element T>
    sketch_source<T> source_of(view<const T> data, std::uint64_t first = 0) const noexcept
    {
        return {data, first, options_.sketch.bins, options_.sketch.seed};
    }
    template <element T>
    void enqueue(stream_ref stream, const sketch_source<T>& source, sketch_sum<T>* to)
    {
        enqueue_sketch<Device>(stream, source, to, reinterpret_cast<sketch_sum<T>*>(scratch_.data()));
    }

    conservation_options options_;
    rounded_terms terms_;
    typename Device::template buffer<double> sketches_;
    typename Device::template buffer<double> scratch_;
};

} // namespace collprobe::detail

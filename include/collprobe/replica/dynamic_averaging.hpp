// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/replica/detail/average_replicas.hpp>
#include <collprobe/replica/detail/averaging_decision.hpp>
#include <collprobe/replica/detail/noise_gain.hpp>
#include <collprobe/replica/replica.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The rule that computes the next interval from the measurements.
enum class interval_rule : std::uint8_t {
    /// H = mean over the ranks of ||g~|| / ||thetabar - theta^m||, as in PAFT, which does not say which reduction its
    /// All-Reduce is. PAFT calls the divisor an estimate of sigma. But it grows with the root of the dimension, and
    /// with the root of the sum of squared learning rates since the last average, so also with the interval itself.
    literal,
    /// H = gain * rms(thetabar) / (sigma * eta / (1 - momentum)). The estimate of sigma is unbiased for float and
    /// double weights, and low for bfloat16 weights where noise is below their spacing (detail/noise_gain.hpp).
    corrected,
};

constexpr const char* name(interval_rule rule) noexcept
{
    return rule == interval_rule::literal ? "literal" : "corrected";
}

/// The rule for the interval between two averages, and its parameters. Equal on all ranks.
struct dynamic_options {
    interval_rule rule = interval_rule::corrected;
    /// For the corrected rule: a larger gain makes fewer averages. Training runs
    /// (examples/studies/aggregation_faults) show: 1 to 2 is as good as an average every 5 steps, with a third of the
    /// bytes or less; from 3 on strong noise costs accuracy.
    double gain = 1.5;
    double momentum = 0; ///< of the optimiser; the corrected rule needs it for the estimate of sigma
    std::uint64_t first_interval = 10; ///< steps before the first average, when there is no measurement yet
    std::uint64_t least_interval = 2; ///< also the steps after an average until the host asks for the decision
    std::uint64_t most_interval = 100; ///< holds on clean ranks too, where noise may begin at any time
    std::uint64_t sample_elements = 65536; ///< least number of coordinates measured, if there are so many
    std::uint64_t scratch_elements = std::uint64_t{1} << 20; ///< as in `periodic_options`
    bool through_adaptors = false; ///< as in `periodic_options`
};

/// The measurements of the last average; equal on all ranks.
struct averaging_measure {
    std::uint64_t step = 0; ///< step of the average, from 0
    double variance = 0; ///< the estimate of sigma^2
    double ratio = 0; ///< the ratio that the rule uses
    std::uint64_t interval = 0; ///< steps until the next average
};

/// Averages replicas that drift apart, at intervals that depend on the measured noise, while a step computes (PAFT-Dyn,
/// algorithm 2). README.md has the call sequence, the reason for the rule, and the effect of a damaged message.
/// `begin_step` starts an average of a copy. `before_update` puts the average in place of the weights, with any
/// optimiser: theta_(t+1) = thetabar_t - eta_t g~_t. It also measures, on a sample of coordinates, the drift and the
/// size of weights and gradient; from these follows the next interval, equal on all ranks.
/// Preconditions: `weights` and `state` as for `periodic_averaging`, borrowed; `state` is averaged with the weights.
/// Neither may change between `begin_step` and `before_update`. One thread at a time. Not in a graph.
/// Stream behaviour: averages run on a stream of this object, ordered by events. For a true overlap they need a
/// communicator of their own. The host waits only in `begin_step`, `least_interval` steps after an average, for the
/// decision.
/// Errors: as `periodic_averaging`; `invalid_argument` for intervals that are 0 or out of order, gradients that do not
/// match the weights, or a bad rate; `timeout` if a decision does not arrive.
/// Cost: an average, messages of 32 and 8 bytes, and memory and a copy of `weights` and `state`.
template <communicator Comm>
class dynamic_averaging {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    /// Takes ownership of the communicator, which `communicator()` returns.
    dynamic_averaging(Comm comm, view<const replica> weights, view<const replica> state = {},
        const dynamic_options& options = {}, call_site where = call_site::current())
        : comm_(std::move(comm)), options_(options), buffers_(weights.begin(), weights.end()), weights_(weights.size()),
          gain_(options.momentum)
    {
        detail::require_averages(comm_, buffers_, "weights", "dynamic_averaging", where);
        const std::vector<replica> of_state(state.begin(), state.end());
        detail::require_averages(comm_, of_state, "state", "dynamic_averaging", where);
        buffers_.insert(buffers_.end(), of_state.begin(), of_state.end());
        const bool ordered = options.least_interval > 0 && options.least_interval <= options.most_interval
            && options.first_interval > 0;
        require(ordered, "intervals must not be 0, and least_interval not above most_interval", where);
        require(options.gain > 0 && options.momentum >= 0 && options.momentum < 1,
            "gain must be above 0, momentum from 0 to below 1", where);
        require(options.sample_elements > 0 && options.scratch_elements > 0,
            "sample_elements and scratch_elements must not be 0", where);
        std::uint64_t count = 0;
        for (std::size_t i = 0; i < weights_; ++i) count += buffers_[i].count;
        stride_ = count / options.sample_elements > 0 ? count / options.sample_elements : 1;
        for (std::size_t i = 0; i < weights_; ++i) samples_ += samples_of(buffers_[i]);
        next_ = options.first_interval;
        const auto scope = comm_.device_scope();
        memory_ = detail::in_flight<memory>(comm_.timeout_ms(), buffers_, weights_, options);
        device::load_kernels();
    }
    /// A single buffer is not a list. Pass `std::vector<replica> list{view(weights)}`.
    template <detail::buffer_and_no_list_of_replicas Buffer>
    dynamic_averaging(const Comm&, const Buffer&, view<const replica> = {}, const dynamic_options& = {}) = delete;
    /// Legal while an average is under way. A moved-from object can only be destroyed or assigned to.
    dynamic_averaging(dynamic_averaging&&) = default;
    dynamic_averaging& operator=(dynamic_averaging&& other) noexcept
    {
        return detail::replace(*this, std::move(other));
    }
    /// Waits until no work uses the memory, at most the communicator's time-out; after that it is leaked.
    ~dynamic_averaging() = default;

    /// Begins a step and starts an average if one is due. Returns whether it started one. Collective.
    bool begin_step(stream_ref stream, call_site where = call_site::current())
    {
        if (undecided_ && steps_ >= measure_.step + options_.least_interval) read_decision(where);
        if (in_flight_ || undecided_ || steps_ < next_) return false;
        start(stream, where);
        return true;
    }

    /// Call it when the gradients are complete, before the optimiser runs. If an average was started, it replaces
    /// weights and state. Collective.
    /// `gradients`: the vectors for the update, one for each weight buffer, of the same count and any floating-point
    /// type. `rate`: the learning rate of the coming update.
    void before_update(view<const replica> gradients, double rate, stream_ref stream,
        call_site where = call_site::current())
    {
        require_update(gradients, rate, where);
        if (in_flight_) {
            const auto scope = comm_.device_scope();
            place(stream, where);
            decide(gradients, rate, stream, where);
            gain_.synchronised(buffers_.size() > weights_);
        }
        gain_.step(rate);
        ++steps_;
    }

    /// Ends the training. Averages once more if steps were made since the last average; then all ranks hold the same
    /// bits. Enqueued on `stream`. Collective.
    void finish(stream_ref stream, call_site where = call_site::current())
    {
        if (!in_flight_ && averaged_ == steps_) return;
        const auto scope = comm_.device_scope();
        if (!in_flight_) start(stream, where);
        place(stream, where);
        gain_.synchronised(buffers_.size() > weights_);
    }

    Comm& communicator() noexcept { return comm_; }
    /// The measurements of the last average whose decision the host has read.
    const averaging_measure& last() const noexcept { return shown_; }
    std::uint64_t rounds() const noexcept { return rounds_; } ///< averages started so far
    /// Bytes that this rank handed to all-reduces; a ring sends 2 (n-1)/n of that.
    std::uint64_t bytes() const noexcept
    {
        return rounds_ * detail::averaged_bytes(buffers_)
            + decisions_ * (sizeof(detail::averaging_sums) + sizeof(std::uint64_t));
    }

private:
    struct memory {
        memory(const std::vector<replica>& buffers, std::size_t weights, const dynamic_options& options)
            : scratch(detail::scratch_for(buffers, options.scratch_elements)), copies(buffers.size()),
              distances(3 * weights * detail::distance_parts), sums(1), decision(1), seen(1)
        {
            for (std::size_t i = 0; i < buffers.size(); ++i) {
                copies[i] = typename device::template buffer<std::uint8_t>(buffers[i].size_bytes());
            }
        }

        bool finished_by(detail::deadline until) const noexcept
        {
            return detail::finished_by(until, placed) && detail::finished_by(until, done);
        }

        typename device::template buffer<float> scratch;
        std::vector<typename device::template buffer<std::uint8_t>> copies;
        typename device::template buffer<double> distances; ///< of the weights, then norms of the gradients
        typename device::template buffer<detail::averaging_sums> sums;
        typename device::template buffer<detail::averaging_decision> decision;
        typename device::template host_buffer<detail::averaging_decision> seen;
        typename device::event done; ///< the last work on `communication`
        typename device::event placed; ///< the last work on the caller's stream
        typename device::stream communication; // destroyed first, with the work that uses the other members
    };

    void require(bool condition, const char* message, call_site where) const
    {
        detail::caller(comm_, "dynamic_averaging", where).require(condition, message);
    }
    void require_update(view<const replica> gradients, double rate, call_site where)
    {
        std::string wrong;
        // Test the bits first: comparisons with NaN are meaningless under -ffast-math.
        if (!is_finite(rate) || rate < 0) wrong = "rate must be finite and not negative";
        if (gradients.count() != weights_) wrong = "gradients must be as many buffers as the weights";
        for (std::size_t i = 0; wrong.empty() && i < weights_; ++i) {
            if (gradients[i].count != buffers_[i].count) wrong = " differs from the weights in its count";
            else wrong = detail::unfit_for_averages(gradients[i]);
            if (!wrong.empty()) wrong = "gradients[" + std::to_string(i) + "]" + wrong;
        }
        if (wrong.empty()) return;
        detail::caller(comm_, "before_update", where).fail(status::invalid_argument, wrong);
    }

    std::uint64_t samples_of(const replica& buffer) const noexcept { return (buffer.count + stride_ - 1) / stride_; }
    replica copy_of(std::size_t i) const noexcept
    {
        replica copy = buffers_[i];
        copy.data = memory_->copies[i].data();
        return copy;
    }

    /// Averages into the copies and measures the distance of this rank from the average.
    void start(stream_ref stream, call_site where)
    {
        const auto scope = comm_.device_scope();
        const stream_ref own = memory_->communication;
        typename device::event ready;
        ready.record(stream);
        own.wait(ready, where);
        // The caller may have changed streams.
        if (memory_->placed.recorded()) own.wait(memory_->placed, where);
        detail::enqueue_marked(memory_->done, own, [&] {
            detail::with_route(comm_, options_.through_adaptors, [&](auto& route) {
                for (std::size_t i = 0; i < buffers_.size(); ++i) {
                    detail::average_replica(route, buffers_[i], copy_of(i), view<float>(memory_->scratch), own, where);
                }
            });
            for (std::size_t i = 0; i < weights_; ++i) {
                measure(buffers_[i], copy_of(i).data, i, own);
                measure(copy_of(i), nullptr, 2 * weights_ + i, own);
            }
        });
        in_flight_ = true;
        averaged_ = steps_;
        ++rounds_;
    }

    /// Writes to slot `slot` the squared distances from `other` (null: squares), over the sample of a buffer.
    void measure(const replica& buffer, const void* other, std::size_t slot, stream_ref on)
    {
        with_floating_type(buffer.type, [&, this]<class T>(T) {
            device::sum_each(on, detail::distance_parts,
                detail::sampled_distance<T>{buffer.as<T>().data(), static_cast<const T*>(other), samples_of(buffer),
                    stride_, memory_->distances.data() + slot * detail::distance_parts});
        });
    }

    /// Copies the averages over the weights and the state.
    void place(stream_ref stream, call_site where)
    {
        stream.wait(memory_->done, where);
        detail::enqueue_marked(memory_->placed, stream, [&] {
            for (std::size_t i = 0; i < buffers_.size(); ++i) {
                device::copy(stream, view<const std::uint8_t>(copy_of(i).bytes()), buffers_[i].bytes(), where);
            }
        });
        in_flight_ = false;
    }

    void decide(view<const replica> gradients, double rate, stream_ref stream, call_site where)
    {
        using namespace detail;
        memory& at = *memory_;
        enqueue_marked(at.placed, stream, [&] {
            for (std::size_t i = 0; i < weights_; ++i) measure(gradients[i], nullptr, weights_ + i, stream);
        });
        const stream_ref own = at.communication;
        own.wait(at.placed, where);
        enqueue_marked(at.done, own, [&, this] {
            const double* const distances = at.distances.data();
            const std::uint64_t parts = weights_ * distance_parts;
            device::for_each(own, 1,
                add_up_distances{distances, parts, static_cast<double>(options_.most_interval), at.sums.data()});
            auto& route = comm_.innermost();
            const view<double> sums(&at.sums.data()->squared_distance, 4);
            route.all_reduce(view<const double>(sums), sums, reduction::sum, own, where);
            const double ranks = comm_.size();
            const auto sampled = static_cast<double>(samples_);
            device::for_each(own, 1, decide_interval{at.sums.data(), options_.rule == interval_rule::literal, ranks,
                ranks * expected_divergence(1, sampled, comm_.size(), gain_.value()), ranks * sampled,
                rate / (1 - options_.momentum),
                options_.gain, options_.least_interval, options_.most_interval, at.decision.data()});
            // The sums are equal on all ranks, but different processors may compute different intervals from them.
            const view<std::uint64_t> interval(&at.decision.data()->interval, 1);
            route.all_reduce(view<const std::uint64_t>(interval), interval, reduction::max, own, where);
            device::copy(own, view<const averaging_decision>(at.decision), view<averaging_decision>(at.seen), where);
        });
        ++decisions_;
        undecided_ = true;
        measure_.step = steps_;
    }

    void read_decision(call_site where)
    {
        const auto scope = comm_.device_scope();
        memory_->done.synchronize(comm_.timeout_ms(), where);
        const detail::averaging_decision& seen = memory_->seen[0];
        shown_ = {measure_.step, seen.variance, seen.ratio, seen.interval};
        next_ = measure_.step + seen.interval;
        undecided_ = false;
    }

    Comm comm_;
    dynamic_options options_;
    std::vector<replica> buffers_; ///< the weights, then the state
    std::size_t weights_;
    detail::noise_gain gain_;
    detail::in_flight<memory> memory_;
    std::uint64_t stride_ = 1;
    std::uint64_t samples_ = 0;
    std::uint64_t steps_ = 0; ///< updates so far
    std::uint64_t averaged_ = 0; ///< updates before the last average
    std::uint64_t next_ = 0; ///< the step that starts the next average
    std::uint64_t rounds_ = 0;
    std::uint64_t decisions_ = 0;
    averaging_measure measure_; ///< of the last decision that was enqueued
    averaging_measure shown_;
    bool in_flight_ = false;
    bool undecided_ = false;
};

} // namespace collprobe

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/replica/detail/average_replicas.hpp>
#include <collprobe/replica/detail/averaging_decision.hpp>
#include <collprobe/replica/replica.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// A schedule of `replica_averaging`: an average behind every `steps`-th step (PAFT-Sync, algorithm 1). Equal on all
/// ranks.
struct every {
    std::uint64_t steps = 10; ///< H: number of steps from one average to the next
    /// PAFT assumes that the average itself is never hit, so it uses the innermost communicator. With true it goes
    /// through the adaptors too, such as a fault injector.
    bool through_adaptors = false;
};

/// The rule that computes the next interval from the measurements.
enum class interval_rule : std::uint8_t {
    /// H = mean over the ranks of ||g~|| / ||thetabar - theta^m||, as in PAFT, which does not say which reduction its
    /// All-Reduce is. README.md says what is wrong with it.
    published,
    /// H = gain * rms(thetabar) / (sigma * eta / (1 - momentum)). The estimate of sigma is low for bfloat16 weights
    /// where noise is below their spacing.
    corrected,
};

/// A schedule of `replica_averaging`: intervals that depend on the measured noise, from 2 to 100 steps, 10 before the
/// first average. Averages run while a step computes (PAFT-Dyn, algorithm 2). Equal on all ranks.
struct when_worth_it {
    interval_rule rule = interval_rule::corrected;
    /// For the corrected rule: a larger gain makes fewer averages. Training runs
    /// (examples/studies/aggregation_faults) show: 1 to 2 is as good as an average every 5 steps, with a third of the
    /// bytes or less; from 3 on strong noise costs accuracy.
    double gain = 1.5;
    double momentum = 0; ///< of the optimiser; the corrected rule needs it for the estimate of sigma
    bool through_adaptors = false; ///< as in `every`
};

/// Averages replicas that drift apart. It bounds the drift without detecting it, and spreads errors to all ranks:
/// sigma^2 / M of the noise remains. `majority_repair` is exact if most ranks are right.
/// Each step calls `step` behind the optimiser, and the training ends with `finish`. With `every` an average runs in
/// place, on the stream of the step. With `when_worth_it` it runs on a copy, beside the next step (README.md).
/// Shapes: floating-point buffers of any types, borrowed; the same lists and counts on all ranks. Narrower elements
/// are sent and added as float, and rounded once. Equal replicas keep their bits on 2, 4, 8 ... ranks.
/// Result: all ranks hold the same bits, unless an adaptor changes what a rank receives (`through_adaptors`).
/// Preconditions: one thread at a time.
/// Stream behaviour: enqueued; the host does not allocate, and waits only in `step` of `when_worth_it`, two steps after
/// an average, for what was measured. With `every`, a step may be captured if no elements are narrower than float.
/// Errors: `invalid_argument` for integers (repair those by majority), null or misaligned buffers, and bad numbers;
/// `timeout` if what was measured does not arrive; those of the communicator.
/// Cost: an all-reduce of the buffers for each average; narrower elements are sent as 4 bytes, with two more passes.
/// With `when_worth_it` also a message of 32 bytes, and memory and a copy of the buffers.
template <communicator Comm, class Schedule>
    requires std::is_same_v<Schedule, every> || std::is_same_v<Schedule, when_worth_it>
class replica_averaging {
    static constexpr bool measures = std::is_same_v<Schedule, when_worth_it>;

public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    /// Takes ownership of the communicator, which `communicator()` returns; for a true overlap `when_worth_it` needs
    /// one of its own. `state`, the optimiser's, is averaged with the weights.
    replica_averaging(Comm comm, view<const replica> weights, const Schedule& schedule, view<const replica> state = {},
        call_site where = call_site::current())
        : comm_(std::move(comm)), schedule_(schedule), buffers_(weights.begin(), weights.end()),
          weights_(weights.size())
    {
        const detail::caller<Comm> who(comm_, "replica_averaging", where);
        detail::require_averages(who, weights, "weights");
        detail::require_averages(who, state, "state");
        buffers_.insert(buffers_.end(), state.begin(), state.end());
        if constexpr (measures) {
            who.require(is_finite(schedule.gain) && schedule.gain > 0, "gain must be above 0 and finite");
            who.require(schedule.momentum >= 0 && schedule.momentum < 1, "momentum must be 0 to below 1");
            std::uint64_t count = 0;
            for (const replica& each : weights) count += each.count;
            if (count > detail::sampled_coordinates) stride_ = count / detail::sampled_coordinates;
            for (const replica& each : weights) samples_ += samples_of(each);
            gain_ = detail::noise_gain(schedule.momentum);
            next_ = detail::first_interval;
        } else {
            who.require(schedule.steps != 0, "steps must not be 0");
            next_ = schedule.steps;
        }
        const auto scope = comm_.device_scope();
        memory_ = detail::in_flight<memory>(comm_.timeout_ms(), buffers_, weights_);
        device::load_kernels();
    }
    /// Legal while an average is under way. A moved-from object can only be destroyed or assigned to.
    replica_averaging(replica_averaging&&) = default;
    replica_averaging& operator=(replica_averaging&& other) noexcept
    {
        return detail::replace(*this, std::move(other));
    }
    /// Waits until no work uses the memory, at most the communicator's time-out; after that it is leaked.
    ~replica_averaging() = default;

    /// Ends a step, behind the optimiser. Starts an average if one is due, and returns whether it did. Collective.
    bool step(stream_ref stream, call_site where = call_site::current())
    {
        ++steps_;
        if constexpr (measures) {
            if (undecided_ && steps_ >= averaged_ + detail::least_interval) {
                const auto scope = comm_.device_scope();
                memory_->done.synchronize(comm_.timeout_ms(), where);
                next_ = averaged_ + next_interval(memory_->seen[0]);
                undecided_ = false;
            }
        }
        if (under_way_ || undecided_ || steps_ < next_) return false;
        if constexpr (!measures) next_ += schedule_.steps;
        start(stream, where);
        return true;
    }

    /// Call it in each step when the gradients are complete, before the optimiser runs. If an average is under way, it
    /// takes the place of weights and state: theta_(t+1) = thetabar_t - eta_t g~_t, with any optimiser. Also measures,
    /// on a sample of coordinates, the drift and the size of weights and gradient, for the next interval. Collective.
    /// Precondition: nothing has changed weights and state since `step`.
    /// `gradients`: the vectors for the update, one for each weight buffer, of the same count and any floating-point
    /// type. `rate`: the learning rate of the coming update.
    void before_update(view<const replica> gradients, double rate, stream_ref stream,
        call_site where = call_site::current())
        requires measures
    {
        const detail::caller<Comm> who(comm_, "before_update", where);
        // `is_finite` looks at the bits: comparisons with NaN are meaningless under -ffast-math.
        who.require(is_finite(rate) && rate >= 0, "rate must be finite and not negative");
        who.require(gradients.count() == weights_, "gradients must be as many buffers as the weights");
        for (std::size_t i = 0; i < weights_; ++i) {
            if (gradients[i].count != buffers_[i].count)
                who.fail(status::invalid_argument,
                    "gradients[" + std::to_string(i) + "] differs from the weights in its count");
        }
        detail::require_averages(who, gradients, "gradients");
        if (under_way_) {
            drift_ = gain_.value();
            rate_ = rate;
            place(stream, where);
            add_up(gradients, stream, where);
        }
        gain_.step(rate);
    }

    /// Ends the training, behind the last `step`: averages if steps were made since the last average. Then all ranks
    /// hold the same bits. Collective.
    void finish(stream_ref stream, call_site where = call_site::current())
    {
        if (!under_way_) {
            if (averaged_ == steps_) return;
            start(stream, where);
        }
        if constexpr (measures) place(stream, where);
    }

    Comm& communicator() noexcept { return comm_; }
    std::uint64_t rounds() const noexcept { return rounds_; } ///< averages started so far
    /// Bytes that this rank handed to all-reduces; a ring sends 2 (n-1)/n of that.
    std::uint64_t bytes() const noexcept { return bytes_; }

private:
    using memory = std::conditional_t<measures, detail::measuring_memory<device>, detail::averaging_memory<device>>;

    std::uint64_t samples_of(const replica& buffer) const noexcept { return (buffer.count + stride_ - 1) / stride_; }
    /// Where the average of a buffer is written to.
    replica target_of(std::size_t i) const noexcept
    {
        replica target = buffers_[i];
        if constexpr (measures) target.data = memory_->copies[i].data();
        return target;
    }

    /// Averages into the targets. Measures the distance of this rank from the average.
    void start(stream_ref stream, call_site where)
    {
        const auto scope = comm_.device_scope();
        stream_ref on = stream;
        if constexpr (measures) {
            on = memory_->communication;
            typename device::event ready;
            ready.record(stream);
            on.wait(ready, where);
            // The caller may have changed streams.
            if (memory_->placed.recorded()) on.wait(memory_->placed, where);
        } else if (memory_->scratch.size() != 0 && memory_->done.recorded()) {
            on.wait(memory_->done, where);
        }
        detail::enqueue_marked(memory_->done, on, [&, this] {
            const auto average_by = [&, this](auto& route) {
                for (std::size_t i = 0; i < buffers_.size(); ++i) {
                    detail::average_replica(route, buffers_[i], target_of(i), view<float>(memory_->scratch), on, where);
                    bytes_ += buffers_[i].count * (buffers_[i].type == element_type::float64 ? 8 : 4);
                }
            };
            if (schedule_.through_adaptors) average_by(comm_);
            else average_by(comm_.innermost());
            if constexpr (measures) {
                for (std::size_t i = 0; i < weights_; ++i) {
                    measure(buffers_[i], target_of(i).data, i, on);
                    measure(target_of(i), nullptr, 2 * weights_ + i, on);
                }
            }
        });
        under_way_ = measures;
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
        const auto scope = comm_.device_scope();
        stream.wait(memory_->done, where);
        detail::enqueue_marked(memory_->placed, stream, [&, this] {
            for (std::size_t i = 0; i < buffers_.size(); ++i)
                device::copy(stream, view<const std::uint8_t>(target_of(i).bytes()), buffers_[i].bytes(), where);
        });
        gain_.synchronised(buffers_.size() > weights_);
        under_way_ = false;
    }

    /// Adds up over the ranks what the next interval follows from.
    void add_up(view<const replica> gradients, stream_ref stream, call_site where)
    {
        const auto scope = comm_.device_scope();
        memory& at = *memory_;
        detail::enqueue_marked(at.placed, stream, [&, this] {
            for (std::size_t i = 0; i < weights_; ++i) measure(gradients[i], nullptr, weights_ + i, stream);
        });
        const stream_ref own = at.communication;
        own.wait(at.placed, where);
        detail::enqueue_marked(at.done, own, [&, this] {
            device::for_each(own, 1,
                detail::add_up_distances{at.distances.data(), weights_ * detail::distance_parts, at.sums.data()});
            const view<double> sums(&at.sums.data()->squared_distance, 4);
            comm_.innermost().all_reduce(view<const double>(sums), sums, reduction::sum, own, where);
            device::copy(
                own, view<const detail::averaging_sums>(at.sums), view<detail::averaging_sums>(at.seen), where);
        });
        bytes_ += sizeof(detail::averaging_sums);
        undecided_ = true;
    }

    std::uint64_t next_interval(const detail::averaging_sums& all) const noexcept
        requires measures
    {
        using namespace detail;
        const bool finite = is_finite(all.squared_distance) && is_finite(all.squared_gradient)
            && is_finite(all.squared_weights);
        if (!finite) return least_interval; // measure again soon
        const double ranks = comm_.size();
        if (schedule_.rule == interval_rule::published) return limited_interval(all.ratio / ranks);
        const auto sampled = static_cast<double>(samples_);
        const double variance
            = noise_variance(all.squared_distance, ranks * expected_divergence(1, sampled, comm_.size(), drift_));
        const double reach = rate_ / (1 - schedule_.momentum); // of a step's gradient in the end
        if (!(variance > 0 && reach > 0)) return most_interval;
        return limited_interval(
            schedule_.gain * (square_root(all.squared_weights / (ranks * sampled) / variance) / reach));
    }

    Comm comm_;
    Schedule schedule_;
    std::vector<replica> buffers_; ///< the weights, then the state
    std::size_t weights_;
    detail::in_flight<memory> memory_;
    detail::noise_gain gain_;
    std::uint64_t stride_ = 1; ///< of the sample
    std::uint64_t samples_ = 0;
    std::uint64_t steps_ = 0; ///< ended so far
    std::uint64_t averaged_ = 0; ///< steps before the last average
    std::uint64_t next_ = 0; ///< steps before the next average
    std::uint64_t rounds_ = 0;
    std::uint64_t bytes_ = 0;
    double drift_ = 0; ///< at the last average: `noise_gain`, and the learning rate
    double rate_ = 0;
    bool under_way_ = false; ///< an average is not yet in place
    bool undecided_ = false; ///< the host has not read the last sums
};

} // namespace collprobe

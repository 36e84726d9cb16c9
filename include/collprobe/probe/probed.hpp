// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/error.hpp>
#include <collprobe/probe/detail/step_judge.hpp>
#include <collprobe/probe/detail/step_message.hpp>
#include <collprobe/probe/detail/step_summary.hpp>
#include <collprobe/probe/gram.hpp>
#include <collprobe/probe/statistics.hpp>
#include <collprobe/record.hpp>
#include <collprobe/view.hpp>

namespace collprobe {

/// How gradient directions are compared.
enum class alignment_mode : std::uint8_t {
    pooled, ///< from norms alone, and leave-one-out where inputs outlive their all-reduce: no message
    exact, ///< from the Gram matrix of the gradients: one more gradient-sized message a step
};

struct probe_options {
    report_mode mode = report_mode::gather;
    alignment_mode alignment = alignment_mode::pooled;
    int exact_every = 1; ///< with `exact`: every so many steps, `pooled` in between
    int max_buckets = 64; ///< probed calls a step; further ones are forwarded and counted
    bool results = true; ///< read results too: agreement, pooled and leave-one-out cosine need it
    int steps_in_flight = 4; ///< steps whose records may be under way
    int unread_steps = 64; ///< finished steps kept for `poll`; then the oldest is dropped
    double false_alarms_per_step = 1e-4; ///< of all statistical checks of a step together
    std::uint64_t scratch_bytes = std::uint64_t{4} << 20; ///< for `exact`, in device memory
};

/// What a rank knows of its step beside the gradients.
struct step_observation {
    double loss = 0; ///< mean loss of the rank's batch
    double weight = 1; ///< how many samples or tokens that mean is over
    std::uint64_t sample_digest = 0; ///< digest of the rank's sample ids; 0 if not given
};

/// A communicator that looks at what it is handed. It satisfies the communicator concept, forwards
/// every call to the communicator it wraps, reads floating-point inputs before the call and results
/// after it, and once a step lets the ranks exchange what they saw: in one small message.
///
/// Shapes: one probed call is one bucket. Integer calls and calls beyond `max_buckets` are forwarded
/// unseen. All ranks make the same calls in the same order and give the same options.
/// Stream behaviour: everything is enqueued on the stream of the call; the host neither waits nor
/// allocates once a step has been as large as it gets. (If the host runs more than
/// `steps_in_flight - 1` steps ahead of its streams, `end_step` or the next call waits for the oldest.)
/// Threads: one thread at a time, as any communicator. Errors: those of the wrapped communicator, and
/// `status::invalid_argument` for a floating-point buffer that is null with a count above 0 or not
/// aligned, should the wrapped communicator take it.
/// Cost per step: one read of each input and result, and `160 * buckets + 40` bytes sent to every
/// rank (`gather`), or `88 * buckets + 136` bytes reduced (`summary`).
template <communicator Comm>
class probed {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    /// Takes the communicator over (a handle or a borrowed reference of it) and allocates all buffers.
    /// \throws error `invalid_argument` for an option out of range.
    explicit probed(Comm comm, probe_options options = {}, call_site where = call_site::current())
        : comm_(std::move(comm)),
          options_(checked(options, where)),
          judge_(comm_.size(), options.false_alarms_per_step)
    {
        const auto n = static_cast<std::uint64_t>(comm_.size());
        const auto buckets = static_cast<std::uint64_t>(options.max_buckets);
        ready_ = detail::fixed_array<step_record>(static_cast<std::size_t>(options.unread_steps));
        for (int i = 0; i < options.steps_in_flight; ++i) slots_.emplace_back(options, n, buckets);
        if (options.mode == report_mode::summary) {
            reference_ = typename device::template buffer<detail::step_reference>(1);
            bucket_reference_ = typename device::template buffer<double>(buckets);
        }
        if (options.alignment == alignment_mode::exact) {
            scratch_ = typename device::template buffer<unsigned char>(
                options.scratch_bytes > 16 * n ? options.scratch_bytes : 16 * n);
        }
        used_streams_.reserve(4);
    }
    probed(const probed&) = delete;
    probed& operator=(const probed&) = delete;
    /// Waits until the streams are done with this object's buffers; drops steps that were not read.
    ~probed() { finish(); }

    int rank() const noexcept { return comm_.rank(); }
    int size() const noexcept { return comm_.size(); }
    /// The wrapped communicator, for calls that are not to be probed.
    Comm& base() noexcept { return comm_; }
    const Comm& base() const noexcept { return comm_; }

    template <element T>
        requires has_all_reduce<Comm, T>
    void all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, call_site where = call_site::current())
    {
        const bool survives = static_cast<const void*>(send.data()) != receive.data();
        around<T>({.call = collective::all_reduce, .operation = operation, .count = send.count()}, send,
            receive, survives, stream, where,
            [&] { comm_.all_reduce(send, receive, operation, stream, where); });
    }

    template <element T>
        requires has_reduce_scatter<Comm, T>
    void reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, call_site where = call_site::current())
    {
        around<T>({.call = collective::reduce_scatter, .operation = operation, .count = send.count()}, send,
            receive, false, stream, where,
            [&] { comm_.reduce_scatter(send, receive, operation, stream, where); });
    }

    template <element T>
        requires has_all_gather<Comm, T>
    void all_gather(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref stream,
        call_site where = call_site::current())
    {
        around<T>({.call = collective::all_gather, .count = send.count()}, send, receive, false, stream, where,
            [&] { comm_.all_gather(send, receive, stream, where); });
    }

    template <element T>
        requires has_all_to_all<Comm, T>
    void all_to_all(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref stream,
        call_site where = call_site::current())
    {
        around<T>({.call = collective::all_to_all, .count = send.count()}, send, receive, false, stream, where,
            [&] { comm_.all_to_all(send, receive, stream, where); });
    }

    /// Only the result is probed: the ranks other than the root send nothing.
    template <element T>
        requires has_broadcast<Comm, T>
    void broadcast(std::type_identity_t<view<const T>> send, view<T> receive, int root, stream_ref stream,
        call_site where = call_site::current())
    {
        around<T>({.call = collective::broadcast, .count = receive.count()}, view<const T>(), receive, false,
            stream, where, [&] { comm_.broadcast(send, receive, root, stream, where); });
    }

    void barrier(stream_ref stream, call_site where = call_site::current())
        requires has_barrier<Comm>
    {
        comm_.barrier(stream, where);
    }

    /// A part of the wrapped communicator, not probed: wrap it if it should be.
    auto split(int color, int key, call_site where = call_site::current())
        requires has_split<Comm>
    {
        return comm_.split(color, key, where);
    }

    /// Ends a step: what was probed since the last call becomes its buckets. Collective; enqueued on
    /// `stream`, behind the probed work of every stream used in the step.
    /// `step` is the caller's number, equal on all ranks.
    void end_step(std::uint64_t step, const step_observation& seen, stream_ref stream,
        call_site where = call_site::current())
    {
        slot& open = open_slot();
        // Marks the stream whatever happens below: the buffers must outlive what is enqueued on it.
        const note_at_exit note{*this, stream};
        for (const used_stream& used : used_streams_) stream.wait(used.done, where);
        open.step = step;
        open.where = where;
        open.unprobed_calls = unprobed_calls_;
        device::for_each(stream, 1,
            write_header{reinterpret_cast<detail::step_header*>(open.message.data()),
                {step, seen.loss, seen.weight, seen.sample_digest, unprobed_calls_}});
        if (options_.mode == report_mode::gather) gather(open, stream, where);
        else summarise(open, stream, where);
        if (open.has_gram) {
            const view<double> gram(open.gram.data(), open.gram.size());
            comm_.all_reduce(view<const double>(gram), gram, reduction::sum, stream, where);
            device::copy(stream, view<const double>(gram), view<double>(open.host_gram), where);
        }
        open.done.record(stream);
        last_end_ = open.done;
        ++ended_;
        unprobed_calls_ = 0;
        used_streams_.clear();
    }

    /// Fills `out` with the next finished step and returns true, or returns false at once if none has
    /// finished. Never blocks; steps come in the order in which they were ended. `out` may be the same
    /// object each time: its memory is used again.
    /// \throws error of the stream or communicator if the step's work failed; the step is lost then.
    bool poll(step_record& out)
    {
        judge_finished();
        if (unread_ == 0) return false;
        std::swap(out, ready_[first_unread_]);
        first_unread_ = (first_unread_ + 1) % ready_.size();
        --unread_;
        return true;
    }

    /// Steps ended but not yet returned by `poll` or dropped.
    std::uint64_t pending_steps() const noexcept { return ended_ - judged_ + unread_; }
    /// Finished steps that were dropped because nobody polled for `unread_steps` steps.
    std::uint64_t dropped_steps() const noexcept { return dropped_; }

private:
    template <class T>
    using buffer = typename device::template buffer<T>;
    template <class T>
    using host_buffer = typename device::template host_buffer<T>;

    struct slot {
        slot(const probe_options& options, std::uint64_t n, std::uint64_t room)
            : calls(room), message(detail::message_bytes(room))
        {
            if (options.mode == report_mode::gather) {
                gathered = buffer<unsigned char>(n * message.size());
                host_gathered = host_buffer<unsigned char>(n * message.size());
            } else {
                const std::uint64_t sum_count = (sizeof(detail::step_sums) + room * sizeof(detail::bucket_sums)) / 8;
                const std::uint64_t key_count = (sizeof(detail::step_keys) + room * sizeof(detail::bucket_keys)) / 8;
                sums = buffer<double>(sum_count);
                host_sums = host_buffer<double>(sum_count);
                keys = buffer<std::uint64_t>(key_count);
                host_keys = host_buffer<std::uint64_t>(key_count);
                host_reference = host_buffer<detail::step_reference>(1);
                host_bucket_reference = host_buffer<double>(room);
            }
            if (options.alignment == alignment_mode::exact) {
                gram = buffer<double>(n * n);
                host_gram = host_buffer<double>(n * n);
            }
        }

        std::uint64_t step = 0;
        std::uint64_t unprobed_calls = 0;
        std::uint64_t buckets = 0;
        bool has_gram = false;
        call_site where;
        typename device::event done;
        host_buffer<detail::bucket_call> calls; // the device reads them too
        buffer<unsigned char> message;
        // gather
        buffer<unsigned char> gathered;
        host_buffer<unsigned char> host_gathered;
        // summary
        buffer<double> sums;
        host_buffer<double> host_sums;
        buffer<std::uint64_t> keys;
        host_buffer<std::uint64_t> host_keys;
        host_buffer<detail::step_reference> host_reference;
        host_buffer<double> host_bucket_reference;
        // exact alignment
        buffer<double> gram;
        host_buffer<double> host_gram;
    };

    struct used_stream {
        stream_ref stream;
        typename device::event done;
    };

    struct write_header {
        detail::step_header* to;
        detail::step_header value;
        COLLPROBE_HD void operator()(std::uint64_t) const noexcept { *to = value; }
    };

    const probe_options& checked(const probe_options& options, call_site where) const
    {
        require(options.max_buckets >= 1, "max_buckets must be at least 1", where);
        require(options.steps_in_flight >= 2, "steps_in_flight must be at least 2", where);
        require(options.unread_steps >= 1, "unread_steps must be at least 1", where);
        require(options.exact_every >= 1, "exact_every must be at least 1", where);
        require(is_finite(options.false_alarms_per_step) && options.false_alarms_per_step > 0
                && options.false_alarms_per_step < 1,
            "false_alarms_per_step must lie between 0 and 1", where);
        require(options.mode == report_mode::gather || comm_.size() <= 0xffff,
            "summary mode is made for at most 65,535 ranks", where);
        return options;
    }

    void require(bool condition, const char* message, call_site where) const
    {
        if (condition) return;
        throw error(status::invalid_argument, message,
            {.call = "probed", .rank = comm_.rank(), .size = comm_.size(), .communicator = {}, .where = where});
    }

    template <class T>
    static bool readable(view<T> data) noexcept
    {
        return (data.empty() || data.data() != nullptr) && data.aligned();
    }
    template <class T>
    void require_readable(view<T> data, const char* argument, collective call, call_site where) const
    {
        if (readable(data)) return;
        throw error(status::invalid_argument,
            argument
                + (data.data() == nullptr ? " is null with count " + std::to_string(data.count())
                                          : " is not aligned to " + std::to_string(alignof(T)) + " bytes"),
            {.call = name(call), .rank = comm_.rank(), .size = comm_.size(), .communicator = {}, .where = where});
    }

    /// Probes the input, makes the call, probes the result.
    template <element T, class Call>
    void around(detail::bucket_call call, view<const T> input, view<T> result, bool input_survives,
        stream_ref stream, call_site where, Call&& make_call)
    {
        if constexpr (!floating_element<T>) {
            make_call();
            return;
        } else {
            if (!readable(input) || !readable(result)) {
                make_call(); // refuses it, and so that its peers hear of it; if not, this object does
                require_readable(input, "send", call.call, where);
                require_readable(result, "receive", call.call, where);
            }
            slot& open = open_slot();
            if (open.buckets == open.calls.size()) {
                ++unprobed_calls_;
                make_call();
                return;
            }
            const std::uint64_t bucket = open.buckets;
            detail::bucket_entry& entry
                = reinterpret_cast<detail::bucket_entry*>(open.message.data() + sizeof(detail::step_header))[bucket];
            const note_at_exit note{*this, stream};
            call.type = element_traits<T>::type;
            call.has_result = options_.results;
            const T* const surviving = input_survives && call.is_gradient() ? input.data() : nullptr;
            device::reduce(stream, statistics_reducer<T, true>{input}, input.count(), &entry.input);
            if (options_.alignment == alignment_mode::exact && call.is_gradient()) {
                add_to_gram(open, input, stream, where);
            }
            make_call();
            open.calls[bucket] = call;
            ++open.buckets;
            if (call.has_result) {
                device::reduce(stream,
                    detail::result_reducer<T>{view<const T>(result), surviving},
                    result.count(), &entry.result);
            }
        }
    }

    template <element T>
    void add_to_gram(slot& open, view<const T> input, stream_ref stream, call_site where)
    {
        if (ended_ % static_cast<std::uint64_t>(options_.exact_every) != 0) return;
        if constexpr (has_all_to_all<Comm, T>) {
            // The matrix and the scratch are shared by all buckets, on whatever streams they are.
            if (gram_done_.recorded()) stream.wait(gram_done_, where);
            if (!open.has_gram) {
                device::fill(stream, view<double>(open.gram), 0.0, where);
                open.has_gram = true;
            }
            accumulate_gram<T>(comm_, input, view<double>(open.gram), view<unsigned char>(scratch_), stream, where);
            gram_done_.record(stream);
        }
    }

    /// Marks how far this object's work on a stream goes: `end_step` orders itself behind it, and the
    /// destructor waits for it even if the stream is gone by then. Also when the call throws.
    struct note_at_exit {
        probed& self;
        stream_ref stream;
        ~note_at_exit()
        {
            for (used_stream& used : self.used_streams_) {
                if (used.stream != stream) continue;
                used.done.record(stream);
                return;
            }
            self.used_streams_.push_back({stream, {}});
            self.used_streams_.back().done.record(stream);
        }
    };

    void gather(slot& open, stream_ref stream, call_site where)
    {
        const std::uint64_t bytes = detail::message_bytes(open.buckets);
        const std::uint64_t all = bytes * static_cast<std::uint64_t>(comm_.size());
        const view<unsigned char> gathered(open.gathered.data(), all);
        comm_.all_gather(view<const unsigned char>(open.message.data(), bytes), gathered, stream, where);
        device::copy(stream, view<const unsigned char>(gathered), view<unsigned char>(open.host_gathered.data(), all), where);
    }

    void summarise(slot& open, stream_ref stream, call_site where)
    {
        // The references are of the step before, wherever that was ended.
        if (last_end_.recorded()) stream.wait(last_end_, where);
        const std::uint64_t sum_count = (sizeof(detail::step_sums) + open.buckets * sizeof(detail::bucket_sums)) / 8;
        const std::uint64_t key_count = (sizeof(detail::step_keys) + open.buckets * sizeof(detail::bucket_keys)) / 8;
        const view<double> sums(open.sums.data(), sum_count);
        const view<std::uint64_t> keys(open.keys.data(), key_count);
        const view<const detail::step_reference> reference(reference_.data(), 1);
        const view<const double> bucket_reference(bucket_reference_.data(), open.buckets);
        auto* const first_sums = reinterpret_cast<detail::step_sums*>(sums.data());
        if (ended_ == 0) {
            device::fill(stream, view<detail::step_reference>(reference_), detail::step_reference{0, 0}, where);
            device::fill(stream, view<double>(bucket_reference_), 0.0, where);
        }
        device::for_each(stream, open.buckets + 1,
            detail::pack_summary{open.message.data(), open.calls.data(), open.buckets, comm_.rank(),
                reference_.data(), bucket_reference_.data(), first_sums,
                reinterpret_cast<detail::step_keys*>(keys.data())});
        device::copy(stream, reference, view<detail::step_reference>(open.host_reference), where);
        device::copy(stream, bucket_reference, view<double>(open.host_bucket_reference.data(), open.buckets), where);
        comm_.all_reduce(view<const double>(sums), sums, reduction::sum, stream, where);
        comm_.all_reduce(view<const std::uint64_t>(keys), keys, reduction::max, stream, where);
        device::copy(stream, view<const double>(sums), view<double>(open.host_sums.data(), sum_count), where);
        device::copy(stream, view<const std::uint64_t>(keys), view<std::uint64_t>(open.host_keys.data(), key_count), where);
        device::for_each(stream, open.buckets + 1,
            detail::advance_reference{first_sums, reference_.data(), bucket_reference_.data()});
    }

    /// The slot of the step being recorded; waits for its last use if the host is that far ahead.
    slot& open_slot()
    {
        slot& open = slots_[static_cast<std::size_t>(ended_ % slots_.size())];
        if (slot_is_open_for_ == ended_ + 1) return open;
        if (ended_ - judged_ == slots_.size()) {
            judge_finished();
            while (ended_ - judged_ == slots_.size()) {
                oldest().done.synchronize();
                judge_finished();
            }
        }
        open.buckets = 0;
        open.has_gram = false;
        slot_is_open_for_ = ended_ + 1;
        return open;
    }

    slot& oldest() noexcept { return slots_[static_cast<std::size_t>(judged_ % slots_.size())]; }

    /// Judges the steps whose messages have arrived, in order.
    void judge_finished()
    {
        while (judged_ < ended_) {
            slot& next = oldest();
            bool arrived = true;
            try {
                arrived = next.done.query();
                if (arrived) judge(next);
            } catch (...) {
                ++judged_; // its work failed: there will never be a record of this step
                throw;
            }
            if (!arrived) return;
            ++judged_;
        }
    }

    void judge(slot& finished)
    {
        if (unread_ == ready_.size()) {
            first_unread_ = (first_unread_ + 1) % ready_.size();
            --unread_;
            ++dropped_;
        }
        step_record& out = ready_[(first_unread_ + unread_) % ready_.size()];
        const view<const detail::bucket_call> calls(finished.calls.data(), static_cast<std::size_t>(finished.buckets));
        view<const double> gram;
        if (finished.has_gram) gram = view<const double>(finished.host_gram.data(), finished.host_gram.size());
        if (options_.mode == report_mode::gather) {
            const detail::gathered_step step(finished.host_gathered.data(), comm_.size(), finished.buckets);
            require_arrived(step.header(comm_.rank()).step, finished);
            judge_.judge(step, calls, gram, out, finished.where);
        } else {
            const detail::summed_step step{reinterpret_cast<const detail::step_sums*>(finished.host_sums.data()),
                reinterpret_cast<const detail::step_keys*>(finished.host_keys.data()), finished.host_reference.data(),
                finished.host_bucket_reference.data()};
            if (step.keys->step == ~step.keys->step_complement) require_arrived(step.keys->step, finished);
            detail::judge_summary(
                judge_, step, comm_.size(), calls, finished.unprobed_calls, gram, out, finished.where);
        }
        ++unread_;
    }

    void require_arrived(std::uint64_t step, const slot& finished) const
    {
        if (step == finished.step) return;
        throw error(status::device_failure,
            "the records of step " + std::to_string(finished.step) + " never arrived: work on its stream failed",
            {.call = "poll", .rank = comm_.rank(), .size = comm_.size(), .communicator = {}, .where = finished.where});
    }

    void finish() noexcept
    {
        const auto wait = [](auto& done) {
            try {
                done.synchronize();
            } catch (...) { // failed work no longer uses the buffers either
            }
        };
        for (used_stream& used : used_streams_) wait(used.done);
        for (; judged_ < ended_; ++judged_) wait(oldest().done);
    }

    Comm comm_;
    probe_options options_;
    detail::step_judge judge_;
    std::vector<slot> slots_;
    detail::fixed_array<step_record> ready_;
    std::vector<used_stream> used_streams_;
    buffer<detail::step_reference> reference_;
    buffer<double> bucket_reference_;
    buffer<unsigned char> scratch_;
    typename device::event gram_done_;
    typename device::event last_end_;
    std::uint64_t ended_ = 0; ///< steps ended; the open one is number `ended_`
    std::uint64_t judged_ = 0;
    std::uint64_t slot_is_open_for_ = 0; ///< `ended_ + 1` once the open step's slot is cleared
    std::uint64_t unprobed_calls_ = 0;
    std::uint64_t dropped_ = 0;
    std::size_t first_unread_ = 0;
    std::size_t unread_ = 0;
};

} // namespace collprobe

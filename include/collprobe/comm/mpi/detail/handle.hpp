// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/rendezvous.hpp>
#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/mpi/detail/call_order.hpp>
#include <collprobe/comm/mpi/detail/library.hpp>
#include <collprobe/comm/mpi/detail/meeting.hpp>
#include <collprobe/comm/mpi/detail/moves.hpp>
#include <collprobe/comm/mpi/options.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/ref.hpp>

namespace collprobe::inline COLLPROBE_ABI::mpi::detail {

using collprobe::detail::list_ranks;
using failure = collprobe::detail::rendezvous_failure;

/// The state that the copies of a communicator and its queued work share: the `MPI_Comm`, the order of calls and the
/// failure. One host thread at a time makes calls; the work runs on the threads of the streams.
class handle : public collprobe::detail::ref_counted {
public:
    handle(MPI_Comm comm, options settings, bool owned)
        : comm_(comm), settings_(std::move(settings)), owned_(owned)
    {
    }
    /// Reads the properties of the `MPI_Comm`. The first call, made once. Collective if it verifies a borrowed
    /// `MPI_Comm`.
    /// \throws error as `communicator_ref`'s constructor.
    void open(call_site where)
    {
        constexpr const char* call = "mpi::communicator";
        const error_origin unknown{.call = call, .communicator = settings_.name, .where = where};
        require_threads(unknown);
        if (comm_ == MPI_COMM_NULL) throw error(status::invalid_argument, "the MPI_Comm is MPI_COMM_NULL", unknown);
        if (settings_.timeout_ms == 0) {
            throw error(status::invalid_argument, "timeout_ms is 0: nothing could be waited for", unknown);
        }
        try {
            int inter = 0;
            require(MPI_Comm_test_inter(comm_, &inter), "MPI_Comm_test_inter");
            if (inter != 0) {
                throw error(status::invalid_argument, "the MPI_Comm is an inter-communicator", unknown);
            }
            require(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
            require(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
            if (owned_) require(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
            if (settings_.verify_calls && size_ > 1) {
                // A lender's own messages could otherwise be taken for those of a meeting.
                if (!owned_) require(MPI_Comm_dup(comm_, &for_meetings_), "MPI_Comm_dup");
                meeting_ = new meeting(owned_ ? comm_ : for_meetings_, rank_, size_);
            }
        } catch (const refusal& said) {
            throw error(status_of(said.code), describe(said), unknown);
        }
    }
    handle(const handle&) = delete;
    ~handle()
    {
        // A failed communicator may have messages under way, so its duplicate is not freed.
        if (for_meetings_ != MPI_COMM_NULL && !failed() && usable()) MPI_Comm_free(&for_meetings_);
        delete meeting_;
        delete failure_.load(std::memory_order_acquire);
    }

    MPI_Comm comm() const noexcept { return comm_; }
    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    const options& settings() const noexcept { return settings_; }
    bool verifies() const noexcept { return meeting_ != nullptr; }

    error_origin origin(const char* call, call_site where) const
    {
        return {.call = call, .rank = rank_, .size = size_, .communicator = settings_.name, .where = where};
    }

    /// \throws error the failure, if there is one.
    void require_usable(const char* call, call_site where) const
    {
        if (const failure* const cause = failure_.load(std::memory_order_acquire)) {
            throw error(cause->code, cause->message, origin(call, where), cause->culprits);
        }
    }
    bool failed() const noexcept { return failure_.load(std::memory_order_acquire) != nullptr; }
    /// Stores the first failure, which is final: no call takes place that has not begun.
    void fail(failure cause)
    {
        auto* const record = new failure(std::move(cause));
        failure* none = nullptr;
        if (!failure_.compare_exchange_strong(none, record, std::memory_order_acq_rel)) delete record;
        order_.close();
    }

    /// The number of the call that the rank makes now.
    std::uint64_t next_call() noexcept { return order_.take(); }

    /// Does call `number` of the communicator by `move()`, when the calls before it are done. If calls are verified,
    /// it also waits until all ranks are here and call the same. If one rank is `absent`, the call fails on all
    /// ranks.
    /// \throws error the communicator's failure, which is final.
    template <class Move>
    void perform(std::uint64_t number, const call_description& what, absence absent, call_site where, Move move)
    {
        const char* const call = collprobe::name(what.call);
        try {
            if (!order_.await(number)) require_usable(call, where);
            require_usable(call, where);
            if (meeting_ != nullptr) meet(number, what, absent);
            move();
        } catch (const refusal& said) {
            fail({status_of(said.code), describe(said), {}});
        } catch (const failure& cause) {
            fail(cause);
        } catch (const error&) { // the communicator keeps the failure
        } catch (const std::exception& cause) {
            fail({status::device_failure, describe_call(what.call, number) + " could not be done: " + cause.what(),
                {rank_}});
        }
        require_usable(call, where);
        order_.pass();
    }
    /// Does the rest of a call that this rank makes wrongly or not at all: tells the peers if calls are verified. The
    /// failure is this rank's.
    void miss(std::uint64_t number, const call_description& what, absence why, const std::string& message,
        call_site where) noexcept
    {
        try {
            perform(number, what, why, where, [&] { throw failure{status::peer_failure, message, {rank_}}; });
        } catch (const error&) { // the communicator keeps it
        }
    }

    /// The arguments of a call of MPI, for the rank whose turn it is.
    transfer transfer_of(const call_description& what, const void* send, void* receive)
    {
        return {comm_, rank_, size_, what.operation, what.root, what.count, send, receive, scratch_};
    }

    /// Asks all ranks for a new `MPI_Comm` each: see `communicator_ref::split`.
    std::pair<MPI_Comm, options> split(int color, int key, call_site where)
    {
        MPI_Comm part = MPI_COMM_NULL;
        perform(next_call(), {.call = collective::split}, absence::none, where, [&] {
            const int mpi_color = color == no_color ? MPI_UNDEFINED : color;
            require(MPI_Comm_split(comm_, mpi_color, key, &part), "MPI_Comm_split");
        });
        std::pair<MPI_Comm, options> result(part, settings_);
        result.second.name += "/split" + std::to_string(splits_++) + ".color" + std::to_string(color);
        return result;
    }

    /// Ends an owned `MPI_Comm` behind this rank's calls. If it has failed or `hurry` is set, leaves it to
    /// MPI_Finalize, because the peers may never come to the end.
    void end(bool hurry) noexcept
    {
        if (!hurry && !failed() && order_.await(order_.taken()) && usable()) MPI_Comm_free(&comm_);
        fail({status::invalid_argument, "the communicator was destroyed", {}});
    }

private:
    /// \throws failure the failure that all ranks have found; refusal
    void meet(std::uint64_t number, const call_description& what, absence absent)
    {
        std::vector<int> given_up;
        const deadline until = deadline::in_ms(settings_.timeout_ms);
        const std::vector<int> missing = meeting_->gather({number, what.count, what.whole.bits, what.root,
                                                              static_cast<std::uint8_t>(what.call),
                                                              static_cast<std::uint8_t>(what.type),
                                                              static_cast<std::uint8_t>(what.operation), absent},
            until, given_up);
        if (!missing.empty()) throw late(missing, given_up, what.call, number);
        if (const failure found = disagreement(number); !found.message.empty()) {
            meeting_->leave();
            throw found;
        }
        if (const std::vector<int> too_late = meeting_->agree(given_up); !too_late.empty()) {
            throw late(too_late, given_up, what.call, number);
        }
    }
    /// All ranks find the same, because they compare the same arrivals.
    failure disagreement(std::uint64_t number) const
    {
        for (const absence why : {absence::bad_argument, absence::stream_failed}) {
            std::vector<int> culprits;
            for (int rank = 0; rank < size_; ++rank) {
                if (meeting_->of(rank).reason == why) culprits.push_back(rank);
            }
            if (culprits.empty()) continue;
            const std::string who = list_ranks(culprits);
            return {status::peer_failure,
                why == absence::bad_argument
                    ? who + " gave a bad argument, which its own error names"
                    : who + " could not take part in "
                        + collprobe::name(meeting_->of(culprits.front()).what().call)
                        + ", because earlier work on its stream failed",
                culprits};
        }
        collprobe::detail::disagreement found = collprobe::detail::compare_calls(
            size_, [&](int rank) { return meeting_->of(rank).what(); });
        if (found.culprits.empty()) return {};
        return {status::mismatch,
            "the ranks disagree in call " + std::to_string(number) + " of the communicator: " + found.message,
            std::move(found.culprits)};
    }
    failure late(const std::vector<int>& missing, const std::vector<int>& given_up, collective call,
        std::uint64_t number) const
    {
        std::string message = list_ranks(missing) + " did not arrive at " + describe_call(call, number) + " within "
            + std::to_string(settings_.timeout_ms) + " ms";
        if (!given_up.empty()) message += ": " + list_ranks(given_up) + " gave up";
        return {status::timeout, std::move(message), missing};
    }
    static std::string describe_call(collective call, std::uint64_t number)
    {
        return std::string(collprobe::name(call)) + " (call " + std::to_string(number) + " of the communicator)";
    }

    MPI_Comm comm_;
    options settings_;
    bool owned_;
    int rank_ = -1;
    int size_ = 0;
    std::uint64_t splits_ = 0;
    collprobe::detail::call_order order_;
    // Only the call whose turn it is uses these members.
    MPI_Comm for_meetings_ = MPI_COMM_NULL;
    meeting* meeting_ = nullptr;
    scratch scratch_;

    std::atomic<failure*> failure_{nullptr};
};

} // namespace collprobe::mpi::detail

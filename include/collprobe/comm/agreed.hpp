// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/detail/failure.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>

namespace collprobe::inline COLLPROBE_ABI {

struct agreed_options {
    /// Also compares the file and the line of calls without a name. Off, because ranks may make the same call from
    /// different lines: the first stage of a pipeline, say, or the rank that logs.
    bool lines = false;
};

/// A communicator whose ranks compare each call before they make it, because NCCL and MPI do not: these hang, or move
/// wrong data. Wrap it around all other adaptors: `agreed comm{reproducible(world)};` compares the caller's calls.
/// Compared are collective, type, count, operation, root, leaves, the name (`call_site::named`) and the number of
/// compared calls before; with `agreed_options::lines` the lines, too.
/// Preconditions: all ranks wrap their communicators, with equal options.
/// Stream behaviour: in each call the host waits for a small all-gather of the innermost communicator, and so for that
/// communicator's earlier collectives. After the first call of a type nothing is allocated.
/// Errors: `mismatch` on all ranks, with the calls of the ranks and, as culprits, those outside the largest group that
/// agrees; `timeout` if not all ranks come within the communicator's time-out. Both are final, and nothing is written.
/// `unsupported` in a group and in a capture, where the host may not wait. A bad argument throws before the ranks
/// compare: the peers wait until the rank makes the right call, get `mismatch` if it makes another, or `timeout`. (What
/// the wrapped adaptor alone refuses, throws behind the comparison.)
/// Cost: 64 bytes to and from each rank, two copies and a wait.
template <communicator Comm>
class agreed : public adaptor<agreed<Comm>, Comm> {
    using base_type = adaptor<agreed, Comm>;
    using base_type::comm_;

public:
    using typename base_type::device;
    using typename base_type::stream_ref;
    using base_type::rank;
    using base_type::size;

    explicit agreed(Comm comm, agreed_options options = {}) : base_type(std::move(comm)), options_(options)
    {
        const auto scope = comm_.device_scope();
        memory_ = detail::in_flight<memory>(1000, static_cast<std::uint64_t>(size()));
    }

    /// \throws error see above; the wrapped communicator's.
    template <element T>
    outcome_of<Comm, T> make(const collective_call& call, stream_ref on)
    {
        const detail::caller who(comm_, call.what, call.where);
        if (failure_) who.fail(failure_->code, failure_->message, failure_->culprits);
        if (call.sends(rank())) comm_.check_buffer(call.sent<T>(), "send", call.what, on, call.where);
        comm_.check_buffer(call.received<T>(), "receive", call.what, on, call.where);
        if (call.leaves == 1) who.require_right(call); // several leaves are of `reproducible` alone, which checks them
        who.require_immediate();
        if constexpr (detail::can_capture<stream_ref>) {
            if (on.capturing(call.where)) {
                who.fail(status::unsupported, "the stream is being captured, and the host must wait for the peers");
            }
        }
        compare(call, who);
        return comm_.template make<T>(call, on);
    }

private:
    using caller = detail::caller<Comm>;

    using signature = detail::call_description; ///< of a rank's call, which is a message as it is
    struct memory {
        explicit memory(std::uint64_t ranks)
            : own(sizeof(signature)), all(ranks * sizeof(signature)), host_own(1), host_all(ranks)
        {
            for (signature& none : host_all) none.number = no_call;
            device::copy(on, view<const unsigned char>(bytes_of(host_all)), view<unsigned char>(all));
        }
        /// Returns true also if the work has failed.
        bool finished_by(detail::deadline until) const noexcept
        {
            try {
                on.synchronize(until.remaining_ms());
                return true;
            } catch (const error& why) {
                return why.code() != status::timeout;
            } catch (...) {
                return true;
            }
        }

        typename device::template buffer<unsigned char> own, all;
        typename device::template host_buffer<signature> host_own, host_all;
        typename device::stream on; // the last member: its work uses the others
    };
    static_assert(sizeof(signature) == 64);
    static constexpr std::uint64_t no_call = ~std::uint64_t{0};

    template <class Memory>
    static view<unsigned char> bytes_of(Memory& all) noexcept
    {
        return {reinterpret_cast<unsigned char*>(all.data()), all.size() * sizeof(signature)};
    }

    void compare(const collective_call& call, const caller& who)
    {
        const auto scope = comm_.device_scope();
        memory& mine = *memory_;
        signature what = signature::of(call, size());
        what.number = calls_++;
        what.place = detail::call_place::of(call.where, options_.lines);
        mine.host_own[0] = what;
        const view<unsigned char> own(mine.own), all(mine.all);
        device::copy(mine.on, view<const unsigned char>(bytes_of(mine.host_own)), own, call.where);
        try {
            comm_.innermost().all_gather(own, all, mine.on, call.where);
        } catch (const error& why) {
            pass_on(why, who);
        }
        device::copy(mine.on, view<const unsigned char>(all), bytes_of(mine.host_all), call.where);
        wait(call, what, who);
        const auto called = [&](int peer) { return mine.host_all[static_cast<std::uint64_t>(peer)]; };
        // A rank receives its own message, too, unless NCCL has postponed the all-gather.
        if (called(rank()) != what) who.fail(status::unsupported, detail::inside_a_group);
        detail::call_mismatch found = detail::compare_calls(size(), called);
        if (found.culprits.empty()) return;
        fail_for_good(who, {status::mismatch, "the ranks disagree in " + name_of(what) + ": " + found.message,
                               std::move(found.culprits)});
    }
    void wait(const collective_call& call, const signature& what, const caller& who)
    {
        const std::int64_t timeout_ms = comm_.timeout_ms();
        // Ranks that meet on streams of the host find the late ones themselves, at the same time: these may come first.
        constexpr bool meets_in_tasks = requires(stream_ref on) { on.enqueue([] {}); };
        try {
            comm_.innermost().synchronize(
                memory_->on, timeout_ms < 0 || !meets_in_tasks ? timeout_ms : timeout_ms + 100, call.where);
        } catch (const error& why) {
            if (why.code() != status::timeout) pass_on(why, who);
            memory_.leak_now(); // the all-gather is still under way
            const std::vector<int>& late = why.culprits();
            const std::string message = (late.empty() ? "not all ranks" : detail::list_ranks(late) + " never")
                + " came to " + name_of(what) + " within " + std::to_string(timeout_ms) + " ms ("
                + detail::describe(what) + ")";
            fail_for_good(who, {status::timeout, message, late});
        }
    }
    [[noreturn]] static void pass_on(const error& why, const caller& who)
    {
        who.fail(why.code(), std::string("before the call, where the ranks compare it: ") + why.what(), why.culprits());
    }
    static std::string name_of(const signature& what)
    {
        return "call " + std::to_string(what.number) + " of the communicator";
    }
    [[noreturn]] void fail_for_good(const caller& who, detail::failure cause)
    {
        failure_ = std::move(cause);
        who.fail(failure_->code, failure_->message, failure_->culprits);
    }

    agreed_options options_;
    std::uint64_t calls_ = 0;
    std::optional<detail::failure> failure_;
    detail::in_flight<memory> memory_;
};

template <class Comm>
agreed(Comm) -> agreed<Comm>;
template <class Comm>
agreed(Comm, agreed_options) -> agreed<Comm>;

} // namespace collprobe

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/detail/call_order.hpp>
#include <collprobe/comm/detail/failure.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/function_ref.hpp>

/// The meeting of the ranks of one process: it knows which rank called what, which ranks are missing, and which
/// failed. Nothing here touches the data of a collective.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A place where all ranks meet, again and again. In a round every rank calls `arrive`. The last rank to arrive
/// resolves the round, and opens the gate for all ranks or closes it for ever. A rank that passed the gate calls
/// `leave`, which returns when all ranks have called it. A gate that opened lets all ranks through, even if it is
/// closed a moment later. So no rank returns from a round while another still reads its memory.
class meeting {
public:
    explicit meeting(int ranks) : ranks_(ranks), rounds_(static_cast<std::size_t>(ranks)) {}

    /// Returns whether the gate opened. `resolve()` runs on the last rank to arrive, while the others wait; it may
    /// close the meeting. `give_up(missing)` runs on a rank that has waited too long for the ranks `missing`, and
    /// closes the meeting.
    /// Preconditions: a rank that is in round k has left round k - 1; neither callable throws.
    bool arrive(int rank, std::uint64_t round, std::int64_t timeout_ms, function_ref<void()> resolve,
        function_ref<void(std::vector<int>)> give_up);

    /// Waits for all ranks. All have passed the gate, and none blocks between the two calls.
    void leave(std::uint64_t round) noexcept;

    /// Lets no further rank through, and wakes the ranks that wait.
    void close() noexcept;

private:
    static constexpr std::uint32_t closed = 1;

    std::vector<int> missing_in(std::uint64_t round) const;

    int ranks_;
    std::vector<std::atomic<std::uint64_t>> rounds_; // for each rank: the last round that it came to, plus 1
    alignas(64) std::atomic<int> arrived_{0};
    std::atomic<std::uint32_t> gate_{0}; // twice the rounds that were opened, modulo 2^32, and `closed`
    alignas(64) std::atomic<int> left_{0};
    std::atomic<std::uint32_t> over_{0}; // the rounds that all ranks have left, modulo 2^32
};

/// One rank's arguments of a collective. The code that moves the data uses the addresses.
struct posted_call {
    call_description what;
    const void* send = nullptr;
    void* receive = nullptr;
};

/// The shared state of a communicator whose ranks live in one process, without the data movement.
///
/// A rank numbers a collective when it is called (`next_call`). The ranks meet later, in call order, where the work
/// runs (`enter`, `leave`). Host calls that block (`split`) have a separate meeting. The first failure is kept for
/// ever, and all ranks get it.
class rendezvous {
public:
    rendezvous(int ranks, std::string name, std::int64_t timeout_ms);
    rendezvous(const rendezvous&) = delete;
    rendezvous& operator=(const rendezvous&) = delete;

    int size() const noexcept { return static_cast<int>(ranks_.size()); }
    const std::string& name() const noexcept { return name_; }
    std::int64_t timeout_ms() const noexcept { return timeout_ms_; }

    /// The number of the collective that `rank` calls now, from 0.
    std::uint64_t next_call(int rank) noexcept { return at(rank).order.take(); }

    /// Waits for the rank's own turn and for all ranks, and checks that all made the same call. When it returns, the
    /// data may be moved. Then `leave` must follow, and nothing may block before it.
    /// \throws error if the ranks disagree, a rank is missing too long, or the rendezvous has failed.
    void enter(int rank, std::uint64_t call, const posted_call& own, call_site where);
    void leave(int rank, std::uint64_t call) noexcept;
    /// The arguments of `rank` in the collective that the caller has entered.
    const posted_call& posted(int rank) const noexcept { return ranks_[static_cast<std::size_t>(rank)].posted; }

    /// The same for a host call, which must be the rank's `call`-th. `resolve()` runs on the last rank.
    void enter_on_host(
        int rank, std::uint64_t call, collective what, call_site where, function_ref<void()> resolve);
    void leave_on_host(std::uint64_t call) noexcept { host_.leave(call); }

    /// Makes the communicator unusable on all ranks. Returns false if it was unusable before.
    bool fail(failure cause) noexcept;
    /// \throws error the failure, as `rank` reports it from a call; returns if there is none.
    void require_usable(int rank, collective call, call_site where) const;
    error_origin origin(int rank, collective call, call_site where) const;

private:
    struct alignas(64) rank_state {
        call_order order;
        posted_call posted;
    };
    rank_state& at(int rank) noexcept { return ranks_[static_cast<std::size_t>(rank)]; }

    /// Runs the collectives of a communicator one after the other even if their streams differ: work of a rank's
    /// later call waits here for the rank's earlier call.
    void await_turn(int rank, std::uint64_t call, collective what, call_site where);

    void check_agreement(std::uint64_t call);

    void meet(meeting& place, int rank, std::uint64_t call, collective what, call_site where,
        function_ref<void()> resolve);

    static std::string describe_call(collective what, std::uint64_t call);

    std::string name_;
    std::int64_t timeout_ms_;
    std::vector<rank_state> ranks_;
    meeting work_;
    meeting host_;
    first_failure failure_;
};

} // namespace collprobe::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/comm/detail/rendezvous.ipp>
#endif

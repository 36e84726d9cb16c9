// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/mpi/detail/library.hpp>
#include <collprobe/detail/wait.hpp>

/// The meeting of the ranks before a collective, for `options::verify_calls`.
namespace collprobe::inline COLLPROBE_ABI::mpi::detail {

using collprobe::detail::back_off;
using collprobe::detail::call_description;
using collprobe::detail::deadline;

/// Why a rank comes to a meeting only to say that it will not take part.
enum class absence : std::uint8_t { none, bad_argument, stream_failed };

/// What a rank tells its peers about the call that it makes.
struct arrival {
    std::uint64_t number; ///< the number of the call, from 0
    std::uint64_t count;
    std::uint64_t whole; ///< the call that this call is a part of: the bits of a `whole_call`
    std::int32_t root;
    std::uint8_t call;
    std::uint8_t type;
    std::uint8_t operation;
    absence reason;

    call_description what() const noexcept
    {
        return {static_cast<collective>(call), static_cast<element_type>(type), static_cast<reduction>(operation),
            root, count, collprobe::detail::whole_call(whole)};
    }
};
static_assert(sizeof(arrival) == 32);

/// One meeting of all ranks after another, by messages between each two ranks. A meeting has two rounds.
///
/// In the first round every rank tells all others what it calls. In the second a rank that has heard from all others
/// sends `come` and commits. A rank that times out instead names the missing ranks and leaves. The call proceeds only
/// on ranks that received `come` from everyone, so a late rank learns that it is late and never waits for ranks that
/// have left.
class meeting {
public:
    /// Preconditions: only this object uses `comm` for messages between two ranks.
    meeting(MPI_Comm comm, int rank, int size)
        : comm_(comm),
          rank_(rank),
          size_(size),
          words_((static_cast<std::size_t>(size) + 63) / 64),
          arrivals_(static_cast<std::size_t>(size)),
          decisions_(static_cast<std::size_t>(size) * words_),
          sent_(2 * static_cast<std::size_t>(size), MPI_REQUEST_NULL),
          arriving_(static_cast<std::size_t>(size), MPI_REQUEST_NULL),
          deciding_(static_cast<std::size_t>(size), MPI_REQUEST_NULL)
    {
    }
    meeting(const meeting&) = delete;
    meeting& operator=(const meeting&) = delete;

    /// Tells `own` to all ranks and hears from all. Returns the ranks that did not come. If it is empty, all have
    /// come and `arrivals` holds their messages. `given_up` gets the ranks that stopped waiting for the missing ones.
    /// \throws refusal
    std::vector<int> gather(const arrival& own, deadline until, std::vector<int>& given_up)
    {
        own_arrival_ = own;
        arrivals_[static_cast<std::size_t>(rank_)] = own;
        for_each_peer([&](int peer, std::size_t at) {
            receive(&arrivals_[at], sizeof(arrival), peer, arrival_tag, arriving_[at]);
            receive(decision_of(peer), words_ * sizeof(std::uint64_t), peer, decision_tag, deciding_[at]);
        });
        for_each_peer([&](int peer, std::size_t at) {
            send(&own_arrival_, sizeof(arrival), peer, arrival_tag, sent_[at]);
        });
        std::vector<int> missing;
        for (unsigned round = 0; missing.empty(); ++round) {
            if (all_done(arriving_)) return {};
            given_up = who_gave_up();
            if (!given_up.empty()) missing = named_by(given_up);
            else if (until.passed()) missing = who_did_not_arrive();
            else back_off(round);
        }
        decide(missing);
        leave();
        return missing;
    }
    /// Says that this rank takes part, and waits until all ranks have said whether they do. Returns the ranks that
    /// other ranks (`given_up`) gave up waiting for; empty if all take part.
    std::vector<int> agree(std::vector<int>& given_up)
    {
        decide({});
        // A short wait: all ranks have arrived, and each decides within its own deadline.
        for (unsigned round = 0; !all_done(deciding_); ++round) back_off(round);
        given_up = who_gave_up();
        if (!given_up.empty()) {
            leave();
            return named_by(given_up);
        }
        for (unsigned round = 0; !all_done(sent_); ++round) back_off(round);
        return {};
    }
    /// For a meeting that ends after `gather`: all ranks know that no collective follows.
    void leave()
    {
        for (std::vector<MPI_Request>* const open : {&arriving_, &deciding_}) {
            for (MPI_Request& request : *open) {
                if (request == MPI_REQUEST_NULL) continue;
                MPI_Cancel(&request);
                MPI_Wait(&request, MPI_STATUS_IGNORE);
            }
        }
        // MPI sends such small messages at once, but a request may need further tests before it is complete.
        const deadline soon = deadline::in_ms(1000);
        for (unsigned round = 0; !all_done(sent_) && !soon.passed(); ++round) back_off(round);
    }

    const arrival& of(int rank) const noexcept { return arrivals_[static_cast<std::size_t>(rank)]; }

private:
    static constexpr int arrival_tag = 0;
    static constexpr int decision_tag = 1;

    template <class Body>
    void for_each_peer(Body body) const
    {
        for (int peer = 0; peer < size_; ++peer) {
            if (peer != rank_) body(peer, static_cast<std::size_t>(peer));
        }
    }
    void receive(void* into, std::size_t bytes, int peer, int tag, MPI_Request& request)
    {
        require(MPI_Irecv(into, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, &request), "MPI_Irecv");
    }
    void send(const void* from, std::size_t bytes, int peer, int tag, MPI_Request& request)
    {
        require(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, &request), "MPI_Isend");
    }
    /// A decision is the set of ranks that did not come, one bit each; `come` is the empty set.
    std::uint64_t* decision_of(int rank) noexcept { return &decisions_[static_cast<std::size_t>(rank) * words_]; }
    bool says_missing(int witness, int rank) noexcept
    {
        return (decision_of(witness)[rank / 64] >> (rank % 64) & 1) != 0;
    }
    void decide(const std::vector<int>& missing)
    {
        std::uint64_t* const own = decision_of(rank_);
        for (std::size_t word = 0; word < words_; ++word) own[word] = 0;
        for (const int rank : missing) own[rank / 64] |= std::uint64_t{1} << (rank % 64);
        for_each_peer([&](int peer, std::size_t at) {
            send(own, words_ * sizeof(*own), peer, decision_tag, sent_[static_cast<std::size_t>(size_) + at]);
        });
    }
    static bool all_done(std::vector<MPI_Request>& requests)
    {
        int done = 0;
        require(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
        return done != 0;
    }
    /// Looks at the messages that have arrived by now.
    std::vector<int> who_gave_up()
    {
        std::vector<int> ranks;
        for_each_peer([&](int peer, std::size_t at) {
            if (!arrived(deciding_[at])) return;
            for (std::size_t word = 0; word < words_; ++word) {
                if (decision_of(peer)[word] == 0) continue;
                ranks.push_back(peer);
                break;
            }
        });
        return ranks;
    }
    std::vector<int> who_did_not_arrive()
    {
        std::vector<int> ranks;
        for_each_peer([&](int peer, std::size_t at) {
            if (!arrived(arriving_[at])) ranks.push_back(peer);
        });
        return ranks;
    }
    std::vector<int> named_by(const std::vector<int>& witnesses)
    {
        std::vector<int> ranks;
        for (int rank = 0; rank < size_; ++rank) {
            for (const int witness : witnesses) {
                if (!says_missing(witness, rank)) continue;
                ranks.push_back(rank);
                break;
            }
        }
        return ranks;
    }
    static bool arrived(MPI_Request& request)
    {
        int done = 0;
        require(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
        return done != 0;
    }

    MPI_Comm comm_;
    int rank_;
    int size_;
    std::size_t words_; ///< the number of words of a decision
    arrival own_arrival_{};
    std::vector<arrival> arrivals_;
    std::vector<std::uint64_t> decisions_;
    std::vector<MPI_Request> sent_;
    std::vector<MPI_Request> arriving_;
    std::vector<MPI_Request> deciding_;
};

} // namespace collprobe::mpi::detail

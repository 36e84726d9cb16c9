// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/detail/bootstrap_wire.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

/// Rank 0's side of an exchange over TCP: one thread, one `poll` over all connections, so that no
/// connection waits for another.
class tcp_root {
public:
    tcp_root(const exchange_call& call, std::int64_t timeout_ms, std::int64_t handshake_ms)
        : call_(call),
          size_(static_cast<std::size_t>(call.of.size)),
          timeout_ms_(timeout_ms),
          handshake_ms_(handshake_ms),
          until_(deadline::in_ms(timeout_ms < 0 ? timeout_ms : timeout_ms - time_for_farewell(timeout_ms))),
          prove_(call.of),
          limit_(size_ + strays_allowed + 256),
          listeners_(listen_where_told())
    {
    }

    /// Gives the value to every peer; returns when all have it and know that all have it.
    void run()
    {
        try {
            while (consents_ + 1 < size_) serve_once();
            listeners_.clear();
            release();
        } catch (const verdict& failed) {
            listeners_.clear();
            tell(failed);
            throw call_.failure(failed.code, failed.message, failed.culprits);
        }
    }

private:
    /// Connections that have not proved anything may be this many more than the ranks.
    static constexpr std::size_t strays_allowed = 64;

    enum class stage {
        greeted, ///< nothing is known of it
        offered, ///< it proved to be a rank of the job and was sent the value
        consented, ///< it has the value
    };

    struct connection {
        descriptor socket;
        hash root_nonce{};
        hash peer_nonce{};
        deadline until = deadline::never(); ///< of its hello
        std::int64_t since_ns = deadline::now_ns();
        stage now = stage::greeted;
        int rank = -1;
        std::uint64_t patience_ms = hello::forever;
        std::array<std::uint8_t, hello_bytes> in{};
        std::size_t received = 0;
        bytes out{};
        std::size_t sent = 0;

        bool proven() const noexcept { return now != stage::greeted; }
    };

    /// The end of the exchange for all ranks.
    struct verdict {
        status code;
        std::string message;
        std::vector<int> culprits;
    };

    [[noreturn]] void refuse_to_listen(const std::string& where, int code) const
    {
        if (code == EADDRINUSE) {
            throw call_.failure(status::invalid_argument,
                "port " + std::to_string(call_.of.port) + " of " + where
                    + " is taken by another process: choose a free one, the same on all ranks "
                      "(COLLPROBE_PORT)");
        }
        throw call_.failure(status::device_failure,
            "cannot listen on " + where + ", port " + std::to_string(call_.of.port) + ": "
                + describe_errno(code));
    }

    /// 0 or an errno.
    int listen_at(const address& where, bool both_families, std::vector<descriptor>& listeners) const
    {
        descriptor socket = open_socket(where.family());
        if (!socket.open()) return errno;
        const int on = 1;
        const int six_only = both_families ? 0 : 1;
        // An earlier exchange on this port leaves connections behind that are no obstacle.
        setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (where.family() == AF_INET6) {
            setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &six_only, sizeof six_only);
        }
        if (bind(socket.get(), where.get(), where.length) != 0 || listen(socket.get(), SOMAXCONN) != 0)
            return errno;
        listeners.push_back(std::move(socket));
        return 0;
    }

    /// A number or "localhost" is where to listen, and only there. A name is not: on its own machine it
    /// often means a loopback address that the others cannot reach.
    std::vector<descriptor> listen_where_told() const
    {
        std::vector<descriptor> listeners;
        const std::string& host = call_.of.master_address;
        if (host == "localhost" || is_numeric(host)) {
            for (const address& each : resolve(host, call_.of.port).addresses) {
                const int code = listen_at(each, false, listeners);
                // Behind a translated address this machine does not know itself by it.
                if (code != 0 && code != EADDRNOTAVAIL && code != EAFNOSUPPORT)
                    refuse_to_listen(each.text(), code);
            }
            if (!listeners.empty()) return listeners;
        }
        int code = EADDRNOTAVAIL;
        for (const char* any : {"::", "0.0.0.0"}) {
            for (const address& each : resolve(any, call_.of.port, AI_NUMERICHOST).addresses) {
                code = listen_at(each, true, listeners);
                if (code == 0) return listeners;
                if (code == EADDRINUSE) refuse_to_listen("this machine", code);
            }
        }
        refuse_to_listen("this machine", code);
    }

    void serve_once()
    {
        if (until_.passed()) give_up();
        const std::size_t known = connections_.size();
        polled_.clear();
        deadline next = until_;
        for (const connection& each : connections_) {
            const bool pending = each.sent < each.out.size();
            polled_.push_back(
                {each.socket.get(), static_cast<short>(pending ? POLLIN | POLLOUT : POLLIN), 0});
            if (!each.proven() && each.until.remaining_ns() < next.remaining_ns()) next = each.until;
        }
        const bool resting = !rest_until_.passed();
        if (resting && rest_until_.remaining_ns() < next.remaining_ns()) next = rest_until_;
        for (const descriptor& each : listeners_) {
            polled_.push_back({each.get(), static_cast<short>(resting ? 0 : POLLIN), 0});
        }

        const int ready = poll(polled_.data(), static_cast<nfds_t>(polled_.size()), poll_ms(next));
        if (ready < 0 && errno != EINTR && errno != EAGAIN) too_many_files(errno);
        for (std::size_t i = 0; i < known; ++i) {
            connection& each = connections_[i];
            if (ready > 0 && polled_[i].revents != 0) {
                advance(each);
            } else if (!each.proven() && each.until.passed()) {
                turn_away(each, "said nothing in time");
            }
        }
        for (std::size_t i = 0; ready > 0 && i < listeners_.size(); ++i) {
            if (polled_[known + i].revents != 0) accept_from(listeners_[i]);
        }
        std::erase_if(connections_, [](const connection& each) { return !each.socket.open(); });
    }

    void accept_from(const descriptor& listener)
    {
        constexpr int at_once = 128;
        for (int i = 0; i < at_once; ++i) {
            descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (!socket.open()) {
                const int code = errno;
                if (code == EAGAIN || code == EWOULDBLOCK) return;
                const bool full = code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
                if (full && !make_room(listener, code)) return;
                continue; // else that connection went wrong by itself
            }
            send_at_once(socket.get());
            connection fresh;
            fresh.root_nonce = fresh_nonce(call_);
            fresh.until = sooner(until_, handshake_ms_);
            fresh.out = write_greeting(fresh.root_nonce);
            fresh.socket = std::move(socket);
            connections_.push_back(std::move(fresh));
            advance(connections_.back());

            std::size_t strangers = 0;
            for (const connection& each : connections_)
                strangers += each.socket.open() && !each.proven() ? 1u : 0u;
            if (strangers > size_ + strays_allowed) drop_oldest_stray();
        }
    }

    /// No descriptor is left. Whether one is now, and somebody waits for it.
    bool make_room(const descriptor& listener, int code)
    {
        // accept fails so before it looks whether anybody is there.
        pollfd waiting{listener.get(), POLLIN, 0};
        if (poll(&waiting, 1, 0) <= 0) return false;
        bool strangers = false;
        for (connection& each : connections_) {
            if (!each.socket.open() || each.proven()) continue;
            strangers = true;
            // A rank needs a moment to prove itself: it must not go for the next one.
            constexpr std::int64_t moment_ns = 200'000'000;
            if (deadline::now_ns() - each.since_ns < moment_ns) continue;
            turn_away(each, "was one of too many");
            return true;
        }
        if (!strangers) too_many_files(code);
        rest_until_ = deadline::in_ms(10);
        return false;
    }

    bool drop_oldest_stray()
    {
        for (connection& each : connections_) {
            if (!each.socket.open() || each.proven()) continue;
            turn_away(each, "was one of too many");
            return true;
        }
        return false;
    }

    void turn_away(connection& stray, const std::string& why)
    {
        ++turned_away_;
        last_turned_away_ = peer_address(stray.socket.get()).text() + " " + why;
        stray.socket.close();
    }

    /// Does all that can be done for a connection without waiting.
    void advance(connection& each)
    {
        if (!each.socket.open()) return;
        if (send_some(each.socket.get(), each.out.data(), each.out.size(), each.sent) == transfer::closed) {
            lose(each);
            return;
        }
        if (each.now == stage::greeted && receive(each, hello_bytes)) admit(each);
        if (each.now == stage::offered && receive(each, consent_bytes)) take_consent(each);
        if (each.now == stage::consented && receive(each, 1)) {
            throw verdict{status::peer_failure,
                "rank " + std::to_string(each.rank) + " sent what it should not", {each.rank}};
        }
    }

    /// Whether a message of `count` bytes is complete in `in`.
    bool receive(connection& each, std::size_t count)
    {
        if (!each.socket.open()) return false;
        const transfer now = receive_some(each.socket.get(), each.in.data(), count, each.received);
        if (!each.proven() && !begins_with_magic(each.in.data(), each.received)) {
            turn_away(each, "spoke of something else");
            return false;
        }
        if (now == transfer::closed) lose(each);
        if (now != transfer::done) return false;
        each.received = 0;
        return true;
    }

    /// A connection is gone. Only a rank that had joined takes the exchange with it; another may come back.
    void lose(connection& gone)
    {
        if (gone.now == stage::consented) {
            std::string message = "rank " + std::to_string(gone.rank) + " left before all ranks had joined";
            const std::vector<int> missing = missing_ranks();
            if (!missing.empty()) message += " (" + name_ranks(missing) + " had not)";
            throw verdict{status::peer_failure, message, {gone.rank}};
        }
        turn_away(gone,
            gone.proven() ? "(rank " + std::to_string(gone.rank) + ") left before it had the value"
                          : "left before it said who it is");
    }

    void admit(connection& each)
    {
        hello claims;
        if (!read_hello(each.in.data(), each.root_nonce, prove_, claims)) {
            bytes denial;
            put_reply(denial, reply::denied, nullptr, 0, each.root_nonce, claims.nonce, prove_);
            std::size_t sent = 0;
            send_some(each.socket.get(), denial.data(), denial.size(), sent);
            turn_away(each,
                "(as rank " + std::to_string(claims.rank)
                    + ") did not prove that it belongs to this job: "
                      "is its token another?");
            return;
        }
        each.now = stage::offered;
        each.peer_nonce = claims.nonce;
        each.patience_ms = claims.patience_ms;
        each.rank = static_cast<int>(claims.rank & INT_MAX);
        const std::string who
            = "rank " + std::to_string(each.rank) + " at " + peer_address(each.socket.get()).text();
        if (claims.size != size_) {
            throw verdict{status::mismatch,
                who + " takes part in a job of " + std::to_string(claims.size) + " ranks, rank 0 in one of "
                    + std::to_string(size_),
                {each.rank}};
        }
        if (claims.rank == 0 || claims.rank >= size_) {
            throw verdict{status::mismatch, who + ": expected a rank from 1 to " + std::to_string(size_ - 1),
                {each.rank}};
        }
        if (claims.value_bytes != call_.value.count()) {
            throw verdict{status::mismatch,
                who + " expects a value of " + std::to_string(claims.value_bytes)
                    + " bytes, rank 0 has one of " + std::to_string(call_.value.count()),
                {each.rank}};
        }
        refuse_twin(each);
        put_reply(each.out, reply::value, call_.value.data(), call_.value.size(), each.root_nonce,
            each.peer_nonce, prove_);
        if (send_some(each.socket.get(), each.out.data(), each.out.size(), each.sent) == transfer::closed)
            lose(each);
    }

    /// Only a rank that has consented bars another: one that has not may have lost its first connection.
    void refuse_twin(const connection& each) const
    {
        for (const connection& other : connections_) {
            if (other.rank != each.rank || !other.socket.open() || other.now != stage::consented) continue;
            throw verdict{status::mismatch,
                "two processes are rank " + std::to_string(each.rank) + ": at "
                    + peer_address(other.socket.get()).text() + " and at "
                    + peer_address(each.socket.get()).text(),
                {each.rank}};
        }
    }

    void take_consent(connection& each)
    {
        hash proof;
        std::memcpy(proof.data(), each.in.data(), proof.size());
        if (!equal_in_constant_time(proof, prove_("consent", each.root_nonce, each.peer_nonce))) {
            turn_away(each, "(rank " + std::to_string(each.rank) + ") sent a wrong proof");
            return;
        }
        refuse_twin(each);
        each.now = stage::consented;
        ++consents_;
        if (each.patience_ms == hello::forever) return;
        // Fail while it still listens, so that it hears which rank is missing.
        const auto patience = static_cast<std::int64_t>(each.patience_ms);
        const deadline its = deadline::in_ms(patience - time_for_farewell(patience));
        if (its.remaining_ns() < until_.remaining_ns()) {
            until_ = its;
            least_patient_ = each.rank;
        }
    }

    std::vector<int> missing_ranks() const
    {
        std::vector<char> here(size_, 0);
        here[0] = 1;
        for (const connection& each : connections_) {
            if (each.socket.open() && each.now == stage::consented)
                here[static_cast<std::size_t>(each.rank)] = 1;
        }
        std::vector<int> missing;
        for (std::size_t rank = 0; rank < size_; ++rank) {
            if (here[rank] == 0) missing.push_back(static_cast<int>(rank));
        }
        return missing;
    }

    [[noreturn]] void give_up() const
    {
        std::vector<int> missing = missing_ranks();
        std::string message = name_ranks(missing) + " of " + std::to_string(size_) + " did not join at "
            + place_of_root(call_.of)
            + (least_patient_ < 0 ? " within " + std::to_string(timeout_ms_) + " ms"
                                  : " while rank " + std::to_string(least_patient_) + " could wait");
        if (turned_away_ > 0) {
            message += "; turned away " + std::to_string(turned_away_) + " connection"
                + (turned_away_ == 1 ? "" : "s") + ", the last: " + last_turned_away_;
        }
        throw verdict{status::timeout, message, std::move(missing)};
    }

    [[noreturn]] void too_many_files(int code) const
    {
        rlimit limit{};
        getrlimit(RLIMIT_NOFILE, &limit);
        throw verdict{status::unsupported,
            "rank 0 cannot hold a connection to each of " + std::to_string(size_ - 1)
                + " peers: " + describe_errno(code) + " (this process may open "
                + std::to_string(limit.rlim_cur) + ", ulimit -n)",
            {0}};
    }

    void release()
    {
        for (connection& each : connections_) {
            if (each.now != stage::consented) continue;
            bytes go;
            put_reply(go, reply::go, nullptr, 0, each.root_nonce, each.peer_nonce, prove_);
            // A few bytes into an empty buffer: this does not wait.
            if (send_all(each.socket.get(), go.data(), go.size(), sooner(until_, handshake_ms_))
                != transfer::done) {
                throw verdict{status::peer_failure,
                    "rank " + std::to_string(each.rank) + " left while the ranks were told to go on",
                    {each.rank}};
            }
        }
    }

    /// Tells all ranks that joined why the exchange failed. Best effort, and brief.
    void tell(const verdict& failed)
    {
        const bytes text = pack_failure(failed.code, failed.culprits, failed.message);
        std::erase_if(
            connections_, [](const connection& each) { return !each.socket.open() || !each.proven(); });
        for (connection& each : connections_) {
            put_reply(
                each.out, reply::failure, text.data(), text.size(), each.root_nonce, each.peer_nonce, prove_);
        }
        // A connection that is closed with unread input is reset, and the reset may overtake the message:
        // wait for the peers to close.
        const deadline until = deadline::in_ms(time_for_farewell(timeout_ms_));
        while (!connections_.empty() && !until.passed()) {
            polled_.clear();
            for (connection& each : connections_) {
                const bool unsent = each.sent < each.out.size();
                polled_.push_back(
                    {each.socket.get(), static_cast<short>(unsent ? POLLIN | POLLOUT : POLLIN), 0});
            }
            if (poll(polled_.data(), static_cast<nfds_t>(polled_.size()), poll_ms(until)) <= 0) continue;
            for (std::size_t i = 0; i < connections_.size(); ++i) {
                connection& each = connections_[i];
                if (polled_[i].revents == 0) continue;
                const bool unsent = each.sent < each.out.size();
                const transfer now
                    = send_some(each.socket.get(), each.out.data(), each.out.size(), each.sent);
                if (unsent && now == transfer::done) shutdown(each.socket.get(), SHUT_WR);
                each.received = 0;
                if (now == transfer::closed
                    || receive_some(each.socket.get(), each.in.data(), each.in.size(), each.received)
                        == transfer::closed) {
                    each.socket.close();
                }
            }
            std::erase_if(connections_, [](const connection& each) { return !each.socket.open(); });
        }
    }

    exchange_call call_;
    std::size_t size_;
    std::int64_t timeout_ms_;
    std::int64_t handshake_ms_;
    deadline until_;
    prover prove_;
    open_file_limit limit_;
    std::vector<descriptor> listeners_;
    std::vector<connection> connections_;
    std::vector<pollfd> polled_;
    deadline rest_until_ = deadline::in_ms(0); ///< no connection is accepted before
    std::size_t consents_ = 0;
    int least_patient_ = -1;
    std::uint64_t turned_away_ = 0;
    std::string last_turned_away_;
};

} // namespace collprobe::bootstrap::detail

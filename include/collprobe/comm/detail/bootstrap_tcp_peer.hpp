// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/detail/bootstrap_wire.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

/// The side of any other rank of an exchange over TCP: it tries until rank 0 is there and has proved
/// that it is, then waits for the end.
class tcp_peer {
public:
    tcp_peer(const exchange_call& call, std::int64_t timeout_ms, std::int64_t handshake_ms)
        : call_(call),
          timeout_ms_(timeout_ms),
          // A silent stranger at the address must not take all the time.
          handshake_ms_(timeout_ms >= 0 && timeout_ms / 4 < handshake_ms ? timeout_ms / 4 : handshake_ms),
          until_(deadline::in_ms(timeout_ms)),
          prove_(call.of)
    {
    }

    /// Fills the value; returns when all ranks have it.
    void run()
    {
        std::int64_t pause_ms = 5;
        for (;;) {
            for (const address& each : where_is_root()) {
                if (attempt(each)) return;
                if (until_.passed()) break;
            }
            if (until_.passed()) give_up();
            poll(nullptr, 0, poll_ms(sooner(until_, pause_ms)));
            pause_ms = pause_ms < 125 ? 2 * pause_ms : 250;
        }
    }

private:
    /// How far an attempt came: the farthest says most about what is wrong.
    enum class reached { nothing, machine, something, collprobe, another_job };

    void note(reached far, std::string problem)
    {
        // An attempt that the time-out cut short tells less than the one before.
        if (far < farthest_ || (far == farthest_ && attempts_ > 1 && until_.passed())) return;
        farthest_ = far;
        problem_ = std::move(problem);
    }

    const std::vector<address>& where_is_root()
    {
        // A name may come up later, or move, but the resolver is not to be asked all the time.
        constexpr std::int64_t fresh_ms = 1000;
        if (addresses_.empty() || resolve_again_.passed()) {
            resolved found = resolve(call_.of.master_address, call_.of.port);
            addresses_ = std::move(found.addresses);
            resolve_again_ = deadline::in_ms(fresh_ms);
            if (addresses_.empty()) {
                ++attempts_;
                note(reached::nothing, "'" + call_.of.master_address + "' is not known: " + found.problem);
            }
        }
        return addresses_;
    }

    [[noreturn]] void give_up() const
    {
        const std::string where = "rank 0 at " + place_of_root(call_.of);
        const std::string effort = " (" + std::to_string(attempts_)
            + (attempts_ == 1 ? " attempt" : " attempts") + " in " + std::to_string(timeout_ms_) + " ms)";
        if (farthest_ == reached::another_job)
            throw call_.failure(status::mismatch, where + " " + problem_ + effort, {0});
        throw call_.failure(status::timeout, where + " was not reached: " + problem_ + effort, {0});
    }

    bool attempt(const address& where)
    {
        ++attempts_;
        descriptor socket = open_socket(where.family());
        if (!socket.open()) {
            if (errno == EMFILE || errno == ENFILE) {
                throw call_.failure(status::unsupported, "no socket: " + describe_errno(errno));
            }
            note(reached::nothing, describe_errno(errno));
            return false;
        }
        const deadline until = sooner(until_, handshake_ms_);
        if (const int code = connect_to(where, socket, until); code != 0) {
            note(code == ECONNREFUSED || code == ECONNRESET ? reached::machine : reached::nothing,
                where.text() + ": " + describe_errno(code));
            return false;
        }
        send_at_once(socket.get());

        std::uint8_t greeting[greeting_bytes];
        const transfer heard = receive_all(socket.get(), greeting, sizeof greeting, until);
        if (heard != transfer::done || !begins_with_magic(greeting, magic_bytes)) {
            note(reached::something,
                heard == transfer::closed        ? "the connection was closed without a word"
                    : heard == transfer::blocked ? "what listens there says nothing"
                                                 : "what listens there is something else");
            return false;
        }
        reader from(greeting + magic_bytes, sizeof greeting - magic_bytes);
        root_nonce_ = from.nonce();
        own_nonce_ = fresh_nonce(call_);
        return converse(socket, until);
    }

    /// 0 or an errno.
    static int connect_to(const address& where, descriptor& socket, deadline until)
    {
        if (connect(socket.get(), where.get(), where.length) != 0) {
            if (errno != EINPROGRESS && errno != EINTR) return errno;
            if (!wait_for(socket.get(), POLLOUT, until)) return ETIMEDOUT;
            int code = 0;
            socklen_t length = sizeof code;
            if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) return errno;
            if (code != 0) return code;
        }
        // Where nobody listens, the system may pick that very port for this end: it then talks to itself.
        if (own_address(socket.get()) == peer_address(socket.get())) {
            close_hard(socket);
            return ECONNREFUSED;
        }
        return 0;
    }

    bool converse(const descriptor& socket, deadline until)
    {
        const bytes own = write_hello({.rank = static_cast<std::uint64_t>(call_.of.rank),
                                          .size = static_cast<std::uint64_t>(call_.of.size),
                                          .value_bytes = call_.value.count(),
                                          .patience_ms = patience_ms(),
                                          .nonce = own_nonce_},
            root_nonce_, prove_);
        bytes value;
        if (send_all(socket.get(), own.data(), own.size(), until) != transfer::done
            || !receive_reply(socket, until, reply::value, value)) {
            return false;
        }
        if (value.size() != call_.value.count()) return false;

        const hash consent = prove_("consent", root_nonce_, own_nonce_);
        bytes nothing;
        if (send_all(socket.get(), consent.data(), consent.size(), until_) != transfer::done
            || !receive_reply(socket, until_, reply::go, nothing)) {
            if (until_.passed()) {
                throw call_.failure(status::timeout,
                    "rank 0 at " + place_of_root(call_.of)
                        + " has let this rank in, but not all ranks joined within "
                        + std::to_string(timeout_ms_) + " ms",
                    {0});
            }
            throw call_.failure(status::peer_failure,
                "rank 0 at " + place_of_root(call_.of) + " closed the connection before all ranks had joined",
                {0});
        }
        if (!value.empty()) std::memcpy(call_.value.data(), value.data(), value.size());
        return true;
    }

    std::uint64_t patience_ms() const
    {
        if (until_.is_never()) return hello::forever;
        const auto left = static_cast<std::uint64_t>(until_.remaining_ns() / 1'000'000);
        return left < hello::forever ? left : hello::forever - 1;
    }

    /// Whether a reply of that kind came, with its proof. A proven failure is thrown.
    bool receive_reply(const descriptor& socket, deadline until, reply expected, bytes& payload)
    {
        bytes message(reply_head_bytes);
        transfer now = receive_all(socket.get(), message.data(), message.size(), until);
        if (now != transfer::done) {
            note(reached::collprobe,
                now == transfer::blocked ? "it did not answer this rank's hello"
                                         : "it closed the connection at this rank's hello");
            return false;
        }
        reader head(message.data(), message.size());
        std::uint8_t first[magic_bytes];
        head.take(first, sizeof first);
        const auto kind = static_cast<reply>(head.number(4));
        const std::uint64_t count = head.number(4);
        if (!begins_with_magic(first, sizeof first) || kind == reply::denied || count > longest_payload()) {
            note(reached::another_job,
                kind == reply::denied ? "did not accept this rank's proof that it belongs to the job: is the "
                                        "token another there, or"
                                        " does another job use this port?"
                                      : "answered something else");
            return false;
        }
        message.resize(reply_head_bytes + static_cast<std::size_t>(count) + sizeof(hash));
        std::uint8_t* const rest = message.data() + reply_head_bytes;
        now = receive_all(socket.get(), rest, message.size() - reply_head_bytes, until);
        hash proof{};
        const std::size_t proven = message.size() - sizeof(hash);
        std::memcpy(proof.data(), message.data() + proven, proof.size());
        if (now != transfer::done
            || !equal_in_constant_time(
                proof, prove_("reply", root_nonce_, own_nonce_, message.data(), proven))) {
            note(reached::another_job, "did not prove that it belongs to this job");
            return false;
        }
        if (kind == reply::failure)
            throw unpack_failure(call_, reader(rest, static_cast<std::size_t>(count)));
        payload.assign(rest, rest + count);
        return kind == expected;
    }

    std::uint64_t longest_payload() const
    {
        const std::uint64_t failure = 8 + 4 * static_cast<std::uint64_t>(call_.of.size) + max_text_bytes;
        return failure > call_.value.count() ? failure : call_.value.count();
    }

    exchange_call call_;
    std::int64_t timeout_ms_;
    std::int64_t handshake_ms_;
    deadline until_;
    deadline resolve_again_ = deadline::never();
    prover prove_;
    std::vector<address> addresses_;
    hash root_nonce_{};
    hash own_nonce_{};
    std::uint64_t attempts_ = 0;
    reached farthest_ = reached::nothing;
    std::string problem_ = "no time to try";
};

} // namespace collprobe::bootstrap::detail

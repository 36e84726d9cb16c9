// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <collprobe/comm/detail/bootstrap_message.hpp>
#include <collprobe/comm/detail/bootstrap_socket.hpp>

/// What rank 0 and a peer say to each other over a connection. Numbers are little-endian; `proof` is
/// HMAC-SHA-256 over both nonces and all before it.
///
///     rank 0   greeting   magic, nonce of rank 0
///     peer     hello      magic, rank, size, bytes of the value, patience, nonce of the peer, proof
///     rank 0   reply      magic, kind = value, bytes, value, proof
///     peer     consent    proof
///     rank 0   reply      magic, kind = go, 0, proof       once all ranks consented
///
/// `failure` takes the place of any reply, and `denied`, the one without a proof, that of the first.
namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

inline constexpr std::size_t magic_bytes = 8;
inline constexpr std::uint8_t magic[magic_bytes + 1] = "cprobe01";
inline constexpr std::size_t greeting_bytes = magic_bytes + sizeof(hash);
inline constexpr std::size_t hello_fields_bytes = magic_bytes + 4 + 4 + 8 + 4 + sizeof(hash);
inline constexpr std::size_t hello_bytes = hello_fields_bytes + sizeof(hash);
inline constexpr std::size_t consent_bytes = sizeof(hash);
inline constexpr std::size_t reply_head_bytes = magic_bytes + 4 + 4;

enum class reply : std::uint32_t { value = 1, go = 2, failure = 3, denied = 4 };

inline bool begins_with_magic(const std::uint8_t* data, std::size_t count) noexcept
{
    return std::memcmp(data, magic, count < magic_bytes ? count : magic_bytes) == 0;
}

inline bytes write_greeting(const hash& root_nonce)
{
    bytes out;
    put(out, magic, magic_bytes);
    put(out, root_nonce);
    return out;
}

struct hello {
    std::uint64_t rank = 0;
    std::uint64_t size = 0;
    std::uint64_t value_bytes = 0;
    std::uint64_t patience_ms = 0; ///< how long the peer will still wait; `forever` if it has no limit
    hash nonce{};

    static constexpr std::uint64_t forever = UINT32_MAX;
};

inline bytes write_hello(const hello& say, const hash& root_nonce, const prover& prove)
{
    bytes out;
    put(out, magic, magic_bytes);
    put_number(out, say.rank, 4);
    put_number(out, say.size, 4);
    put_number(out, say.value_bytes, 8);
    put_number(out, say.patience_ms, 4);
    put(out, say.nonce);
    put(out, prove("hello", root_nonce, say.nonce, out.data(), out.size()));
    return out;
}

/// `claims` gets what the hello says also where the proof is wrong.
inline bool read_hello(const std::uint8_t* in, const hash& root_nonce, const prover& prove, hello& claims)
{
    reader from(in + magic_bytes, hello_bytes - magic_bytes);
    claims.rank = from.number(4);
    claims.size = from.number(4);
    claims.value_bytes = from.number(8);
    claims.patience_ms = from.number(4);
    claims.nonce = from.nonce();
    const hash proof = from.nonce();
    return begins_with_magic(in, magic_bytes)
        && equal_in_constant_time(proof, prove("hello", root_nonce, claims.nonce, in, hello_fields_bytes));
}

inline void put_reply(bytes& out, reply kind, const void* payload, std::size_t count, const hash& root_nonce,
    const hash& peer_nonce, const prover& prove)
{
    const std::size_t begin = out.size();
    put(out, magic, magic_bytes);
    put_number(out, static_cast<std::uint64_t>(kind), 4);
    put_number(out, count, 4);
    if (count != 0) put(out, payload, count);
    put(out,
        kind == reply::denied
            ? hash{}
            : prove("reply", root_nonce, peer_nonce, out.data() + begin, out.size() - begin));
}

/// The part of a wait that one silent connection may take: long enough for a busy machine, short
/// enough that it is over before anybody gives up.
inline deadline sooner(deadline until, std::int64_t ms) noexcept
{
    const deadline other = deadline::in_ms(ms);
    return other.remaining_ns() < until.remaining_ns() ? other : until;
}

/// What rank 0 keeps of a wait of `ms` to tell the others why it failed while they still listen.
inline std::int64_t time_for_farewell(std::int64_t ms) noexcept
{
    return ms < 0 || ms / 8 > 500 ? 500 : ms / 8;
}

inline std::string place_of_root(const job& of) { return of.master_address + ":" + std::to_string(of.port); }

} // namespace collprobe::bootstrap::detail

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <collprobe/comm/detail/bootstrap_directory.hpp>
#include <collprobe/comm/detail/bootstrap_wire.hpp>

/// What the files of an exchange hold. Each has one writer, and is replaced as a whole.
///
///     collprobe-rank-<r>   magic, rank, size, bytes of the value, patience, nonce of the rank,
///                          the nonce of the answer that the rank has (else 0), proof
///     collprobe-root       magic, kind (value, go or failure), nonce of rank 0, size, the nonces of all
///                          ranks that it answers (else 0), value or failure, proof
///
/// Rank 0 first removes what it finds; ranks that wait write theirs again. When it has a file of every
/// rank, it answers with the value; each rank repeats the answer's nonce in its file; then rank 0 answers
/// `go`, and each rank takes leave by removing its file.
namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

inline const std::string root_file = "collprobe-root";
inline std::string rank_file(int rank) { return "collprobe-rank-" + std::to_string(rank); }

struct rank_note {
    hello says;
    hash answer{}; ///< nonce of the answer that the rank has

    static constexpr std::size_t fields_bytes = hello_fields_bytes + sizeof(hash);
    static constexpr std::size_t total_bytes = fields_bytes + sizeof(hash);
};

inline bytes write_rank_note(const rank_note& note, const prover& prove)
{
    bytes out;
    put(out, magic, magic_bytes);
    put_number(out, note.says.rank, 4);
    put_number(out, note.says.size, 4);
    put_number(out, note.says.value_bytes, 8);
    put_number(out, note.says.patience_ms, 4);
    put(out, note.says.nonce);
    put(out, note.answer);
    put(out, prove("rank file", note.answer, note.says.nonce, out.data(), out.size()));
    return out;
}

inline bool read_rank_note(const bytes& in, const prover& prove, rank_note& note)
{
    if (in.size() != rank_note::total_bytes || !begins_with_magic(in.data(), in.size())) return false;
    reader from(in.data() + magic_bytes, in.size() - magic_bytes);
    note.says.rank = from.number(4);
    note.says.size = from.number(4);
    note.says.value_bytes = from.number(8);
    note.says.patience_ms = from.number(4);
    note.says.nonce = from.nonce();
    note.answer = from.nonce();
    const hash proof = from.nonce();
    return equal_in_constant_time(
        proof, prove("rank file", note.answer, note.says.nonce, in.data(), rank_note::fields_bytes));
}

/// A pause between looks that grows, so that many ranks do not wear a file server out.
class pause_between_looks {
public:
    explicit pause_between_looks(int size) : longest_ms_(20 + size / 20) {}
    void wait(deadline until)
    {
        poll(nullptr, 0, poll_ms(sooner(until, next_ms_)));
        next_ms_ = std::min(2 * next_ms_, longest_ms_);
    }
    void restart() { next_ms_ = 1; }

private:
    std::int64_t longest_ms_;
    std::int64_t next_ms_ = 1;
};

} // namespace collprobe::bootstrap::detail

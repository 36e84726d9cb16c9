// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <collprobe/comm/detail/bootstrap_file_notes.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

/// The side of any other rank of an exchange by files.
class file_peer {
public:
    file_peer(const exchange_call& call, const std::string& path, std::int64_t timeout_ms)
        : call_(call),
          timeout_ms_(timeout_ms),
          until_(deadline::in_ms(timeout_ms)),
          prove_(call.of),
          name_(rank_file(call.of.rank)),
          own_nonce_(fresh_nonce(call)),
          directory_(call, path, own_nonce_)
    {
    }
    file_peer(const file_peer&) = delete;
    file_peer& operator=(const file_peer&) = delete;
    /// Takes leave, also where the exchange failed.
    ~file_peer()
    {
        if (!replaced_) directory_.remove(name_);
    }

    void run()
    {
        pause_between_looks pause(call_.of.size);
        for (bool first = true;; first = false) {
            if (first || !own_file_is_there()) write_own();
            if (look()) break;
            if (until_.passed()) give_up();
            pause.wait(until_);
        }
        if (!value_.empty()) std::memcpy(call_.value.data(), value_.data(), value_.size());
    }

private:
    [[noreturn]] void give_up() const
    {
        const bool joined = answer_ != hash{};
        throw call_.failure(status::timeout,
            joined ? "rank 0 has let this rank in, but not all ranks joined in " + directory_.path()
                    + " within " + std::to_string(timeout_ms_) + " ms"
                   : "rank 0 did not answer in " + directory_.path() + " within "
                    + std::to_string(timeout_ms_) + " ms"
                    + (refused_ ? "; " + directory_.path_of(root_file)
                                + " holds no proof that it belongs to this job: is the token another there?"
                                : std::string()),
            {0});
    }

    void write_own() const
    {
        const std::uint64_t left = static_cast<std::uint64_t>(until_.remaining_ns() / 1'000'000);
        const rank_note note{{.rank = static_cast<std::uint64_t>(call_.of.rank),
                                 .size = static_cast<std::uint64_t>(call_.of.size),
                                 .value_bytes = call_.value.count(),
                                 .patience_ms = left < hello::forever ? left : hello::forever,
                                 .nonce = own_nonce_},
            answer_};
        directory_.write(name_, write_rank_note(note, prove_));
    }

    bool own_file_is_there()
    {
        bytes content;
        rank_note note;
        if (!directory_.read(name_, rank_note::total_bytes, content)
            || !read_rank_note(content, prove_, note)) {
            return false;
        }
        if (note.says.nonce == own_nonce_) return true;
        replaced_ = true;
        throw call_.failure(status::mismatch,
            "two processes are rank " + std::to_string(call_.of.rank) + ": another one has replaced "
                + directory_.path_of(name_),
            {call_.of.rank});
    }

    /// Whether the exchange is complete.
    bool look()
    {
        const std::size_t ranks_bytes = sizeof(hash) * static_cast<std::size_t>(call_.of.size);
        const std::size_t longest = std::max<std::size_t>(
            call_.value.size(), 8 + 4 * static_cast<std::size_t>(call_.of.size) + max_text_bytes);
        const std::size_t head = magic_bytes + 4 + sizeof(hash) + 4;
        refused_ = false;
        bytes in;
        if (!directory_.read(root_file, head + ranks_bytes + longest + sizeof(hash), in)) return false;
        if (in.size() < head + sizeof(hash) || !begins_with_magic(in.data(), in.size())) return false;

        const std::size_t proven = in.size() - sizeof(hash);
        reader from(in.data() + magic_bytes, proven - magic_bytes);
        const auto kind = static_cast<reply>(from.number(4));
        const hash root_nonce = from.nonce();
        const std::uint64_t ranks = from.number(4);
        hash proof{};
        std::memcpy(proof.data(), in.data() + proven, proof.size());
        if (!equal_in_constant_time(proof, prove_("root file", root_nonce, hash{}, in.data(), proven))) {
            refused_ = true;
            return false;
        }
        hash repeated{};
        for (std::uint64_t rank = 0; rank < ranks && from.good(); ++rank) {
            const hash nonce = from.nonce();
            if (rank == static_cast<std::uint64_t>(call_.of.rank)) repeated = nonce;
        }
        if (!from.good() || repeated != own_nonce_) return false; // an answer to an earlier run
        if (kind == reply::failure) throw unpack_failure(call_, from);
        if (kind == reply::go) return answer_ == root_nonce;
        if (kind != reply::value || from.left() != call_.value.size() || answer_ == root_nonce) return false;
        value_.assign(from.here(), from.here() + from.left());
        answer_ = root_nonce;
        if (own_file_is_there()) write_own();
        return false;
    }

    exchange_call call_;
    std::int64_t timeout_ms_;
    deadline until_;
    prover prove_;
    std::string name_;
    hash own_nonce_;
    hash answer_{};
    bytes value_;
    bool replaced_ = false;
    bool refused_ = false;
    shared_directory directory_;
};

} // namespace collprobe::bootstrap::detail

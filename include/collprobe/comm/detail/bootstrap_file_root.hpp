// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/comm/detail/bootstrap_file_notes.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

/// Rank 0's side of an exchange by files.
class file_root {
public:
    file_root(const exchange_call& call, const std::string& path, std::int64_t timeout_ms)
        : call_(call),
          timeout_ms_(timeout_ms),
          until_(deadline::in_ms(timeout_ms < 0 ? timeout_ms : timeout_ms - time_for_farewell(timeout_ms))),
          prove_(call.of),
          own_nonce_(fresh_nonce(call)),
          directory_(call, path, own_nonce_),
          peers_(static_cast<std::size_t>(call.of.size))
    {
    }

    void run()
    {
        for (const std::string& name : directory_.names()) directory_.remove(name);
        try {
            wait_until("did not join", [this] {
                look();
                return count(stage::known) + 1 >= peers_.size();
            });
            answer(reply::value, call_.value.data(), call_.value.size());
            wait_until("did not confirm", [this] {
                look();
                if (std::exchange(changed_, false))
                    answer(reply::value, call_.value.data(), call_.value.size());
                return count(stage::consented) + 1 >= peers_.size();
            });
            answer(reply::go, nullptr, 0);
            wait_until("did not go on", [this] {
                look_for_leave();
                return count(stage::left) + 1 >= peers_.size();
            });
        } catch (const verdict& failed) {
            tell(failed);
            throw call_.failure(failed.code, failed.message, failed.culprits);
        }
        clear();
    }

private:
    enum class stage { absent, known, consented, left };

    struct peer {
        stage now = stage::absent;
        hash nonce{};
    };

    struct verdict {
        status code;
        std::string message;
        std::vector<int> culprits;
    };

    std::size_t count(stage least) const
    {
        return static_cast<std::size_t>(std::count_if(
            peers_.begin(), peers_.end(), [least](const peer& each) { return each.now >= least; }));
    }

    template <class Done>
    void wait_until(const char* failing, Done done)
    {
        pause_.restart();
        while (!done()) {
            if (until_.passed()) give_up(failing);
            pause_.wait(until_);
        }
        lowest_ = lowest_ == stage::known ? stage::consented : stage::left;
    }

    [[noreturn]] void give_up(const char* failing) const
    {
        std::vector<int> missing;
        for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
            if (peers_[rank].now < lowest_) missing.push_back(static_cast<int>(rank));
        }
        std::string message = name_ranks(missing) + " of " + std::to_string(peers_.size()) + " " + failing
            + " in " + directory_.path()
            + (least_patient_ < 0 ? " within " + std::to_string(timeout_ms_) + " ms"
                                  : " while rank " + std::to_string(least_patient_) + " could wait");
        if (!refused_.empty()) message += "; no proof that it belongs to this job: " + refused_;
        throw verdict{status::timeout, message, std::move(missing)};
    }

    /// The rank whose file has this name; -1 if it is no rank's of this job.
    int rank_of(const std::string& name) const
    {
        static constexpr std::string_view begin = "collprobe-rank-";
        if (name.compare(0, begin.size(), begin) != 0) return -1;
        int rank = -1;
        const char* const end = name.data() + name.size();
        const auto [stop, code] = std::from_chars(name.data() + begin.size(), end, rank);
        return code == std::errc{} && stop == end && rank > 0 ? rank : -1;
    }

    /// Which ranks have a file there.
    std::vector<char> present()
    {
        std::vector<char> here(peers_.size(), 0);
        for (const std::string& name : directory_.names()) {
            const int rank = rank_of(name);
            if (rank < 0) continue;
            if (static_cast<std::size_t>(rank) < here.size()) {
                here[static_cast<std::size_t>(rank)] = 1;
            } else {
                outsider(rank);
            }
        }
        return here;
    }

    bool read(int rank, rank_note& note)
    {
        const std::string name = rank_file(rank);
        bytes content;
        if (!directory_.read(name, rank_note::total_bytes, content)) return false;
        if (read_rank_note(content, prove_, note) && note.says.rank == static_cast<std::uint64_t>(rank))
            return true;
        refused_ = directory_.path_of(name);
        return false;
    }

    void outsider(int rank)
    {
        rank_note note;
        if (!read(rank, note)) return;
        throw verdict{status::mismatch,
            "there is a rank " + std::to_string(rank) + " of " + std::to_string(note.says.size)
                + ": expected ranks from 1 to " + std::to_string(peers_.size() - 1),
            {rank}};
    }

    void look()
    {
        const std::vector<char> here = present();
        const bool all_known = count(stage::known) + 1 >= peers_.size();
        for (std::size_t i = 1; i < peers_.size(); ++i) {
            peer& each = peers_[i];
            const int rank = static_cast<int>(i);
            if (here[i] == 0) {
                if (each.now == stage::consented) {
                    throw verdict{status::peer_failure,
                        "rank " + std::to_string(rank) + " left before all ranks had joined", {rank}};
                }
                each.now = stage::absent;
                continue;
            }
            // One read for its coming, the others when there is something to expect.
            if (each.now == stage::consented || (each.now == stage::known && !all_known)) continue;
            rank_note note;
            if (!read(rank, note)) continue;
            check(rank, note);
            const bool same = each.now == stage::known && each.nonce == note.says.nonce;
            if (!same) changed_ = true;
            each.nonce = note.says.nonce;
            each.now = note.answer == own_nonce_ && same ? stage::consented : stage::known;
            keep_patience(rank, note.says.patience_ms);
        }
    }

    void check(int rank, const rank_note& note)
    {
        if (note.says.size != peers_.size()) {
            throw verdict{status::mismatch,
                "rank " + std::to_string(rank) + " takes part in a job of " + std::to_string(note.says.size)
                    + " ranks, rank 0 in one of " + std::to_string(peers_.size()),
                {rank}};
        }
        if (note.says.value_bytes != call_.value.count()) {
            throw verdict{status::mismatch,
                "rank " + std::to_string(rank) + " expects a value of "
                    + std::to_string(note.says.value_bytes) + " bytes, rank 0 has one of "
                    + std::to_string(call_.value.count()),
                {rank}};
        }
    }

    void keep_patience(int rank, std::uint64_t ms)
    {
        if (ms == hello::forever) return;
        const auto patience = static_cast<std::int64_t>(ms);
        const deadline its = deadline::in_ms(patience - time_for_farewell(patience));
        if (its.remaining_ns() >= until_.remaining_ns()) return;
        until_ = its;
        least_patient_ = rank;
    }

    void look_for_leave()
    {
        const std::vector<char> here = present_quietly();
        for (std::size_t i = 1; i < peers_.size(); ++i) {
            peer& each = peers_[i];
            if (each.now == stage::left) continue;
            rank_note note;
            // A file with another number is that of the next exchange already.
            if (here[i] == 0 || (read(static_cast<int>(i), note) && note.says.nonce != each.nonce)) {
                each.now = stage::left;
            }
        }
    }

    std::vector<char> present_quietly() const
    {
        std::vector<char> here(peers_.size(), 0);
        for (const std::string& name : directory_.names()) {
            const int rank = rank_of(name);
            if (rank > 0 && static_cast<std::size_t>(rank) < here.size())
                here[static_cast<std::size_t>(rank)] = 1;
        }
        return here;
    }

    void answer(reply kind, const void* payload, std::size_t payload_bytes)
    {
        changed_ = false;
        bytes out;
        put(out, magic, magic_bytes);
        put_number(out, static_cast<std::uint64_t>(kind), 4);
        put(out, own_nonce_);
        put_number(out, peers_.size(), 4);
        for (const peer& each : peers_) put(out, each.nonce);
        if (payload_bytes != 0) put(out, payload, payload_bytes);
        put(out, prove_("root file", own_nonce_, hash{}, out.data(), out.size()));
        directory_.write(root_file, out);
    }

    /// Tells those that are there. The answer stays if not all of them have read it in time.
    void tell(const verdict& failed)
    {
        try {
            for (std::size_t i = 1; i < peers_.size(); ++i) {
                rank_note note;
                if (read(static_cast<int>(i), note)) peers_[i] = {stage::known, note.says.nonce};
            }
            const bytes text = pack_failure(failed.code, failed.culprits, failed.message);
            answer(reply::failure, text.data(), text.size());
            const deadline until = deadline::in_ms(time_for_farewell(timeout_ms_));
            const auto all_left = [this] {
                const std::vector<char> here = present_quietly();
                return std::count(here.begin(), here.end(), 1) == 0;
            };
            pause_.restart();
            while (!all_left()) {
                if (until.passed()) return;
                pause_.wait(until);
            }
            clear();
        } catch (const error&) { // the first cause is the one to report
        }
    }

    void clear() const
    {
        directory_.remove(root_file);
        directory_.remove_directory();
    }

    exchange_call call_;
    std::int64_t timeout_ms_;
    deadline until_;
    prover prove_;
    hash own_nonce_;
    shared_directory directory_;
    std::vector<peer> peers_;
    pause_between_looks pause_{call_.of.size};
    stage lowest_ = stage::known; ///< what is being waited for
    bool changed_ = false;
    int least_patient_ = -1;
    std::string refused_;
};

} // namespace collprobe::bootstrap::detail

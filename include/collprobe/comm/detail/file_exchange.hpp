// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/random.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/detail/exchange_value.hpp>
#include <collprobe/comm/detail/job_variables.hpp>
#include <collprobe/comm/detail/shared_directory.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/wait.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

/// One rank's call of `exchange`.
struct exchange_call {
    int rank;
    int size;
    const std::string& path;
    const std::string& key;
    view<std::uint8_t> value;
    std::int64_t timeout_ms;
};

/// Every rank writes the file `rank-<r>`. When rank 0 has seen all of them, it writes `root`: the numbers that it
/// found in the other ranks' files, and the value. A rank that finds its number in `root` removes its own file. When
/// all files are removed, rank 0 removes `root`, and all ranks return. A failure is written to `root` in place of the
/// value. Throws `failed_exchange`.
class file_exchange {
public:
    explicit file_exchange(const exchange_call& call)
        : call_(call), directory_(call.path), seen_(ranks(), 0), numbers_(ranks(), 0)
    {
        if (getentropy(&number_, sizeof number_) != 0)
            throw failed_exchange{status::unsupported, "the system has no random numbers (getentropy failed)", {}};
        std::uint64_t key = 0;
        for (const char c : call.key) key = collprobe::detail::mix64(key + static_cast<unsigned char>(c) + 1);
        prefix_ = "collprobe-" + std::to_string(key) + "-";
    }

    void run()
    {
        if (call_.rank != 0) return take();
        try {
            give();
        } catch (const failed_exchange& failed) {
            tell(failed);
            throw;
        }
    }

private:
    /// The content of a rank's file.
    struct note {
        std::uint64_t rank, size, value_bytes, number;
    };
    /// The head of `root`. The number of each rank follows, then the value, or the message and the culprits.
    struct answer {
        std::uint64_t size, failed, code, bytes, culprits;
    };

    void give()
    {
        // Removes the files of an earlier run. A rank of this run that has already written its file writes it again.
        for (const std::string& name : directory_.names(prefix_)) directory_.remove(name);
        write_note();
        for (; !all_came(); pause()) look_after_own_note();
        write_answer({ranks(), 0, 0, call_.value.count(), 0}, call_.value.data(), {});
        while (const int waiting = one_that_waits()) {
            if (until_.passed()) {
                throw failed_exchange{status::timeout,
                    "rank " + std::to_string(waiting) + " did not take the value from "
                        + directory_.path_of(root_file()) + within(),
                    {waiting}};
            }
            pause();
        }
        clear();
    }

    void take()
    {
        std::string received;
        bool took = false;
        for (write_note();; pause()) {
            answer head{};
            std::string rest;
            if (read_answer(head, rest)) {
                if (head.failed != 0 || !took) directory_.remove(file_of(own()));
                if (head.failed != 0) throw_told(head, rest);
                if (!took) until_ = collprobe::detail::deadline::in_ms(call_.timeout_ms); // rank 0 ends it for all
                took = true;
                received = rest;
            } else if (took) {
                break;
            } else {
                list();
                look_after_own_note();
            }
            if (until_.passed()) give_up(took);
        }
        if (!received.empty()) std::memcpy(call_.value.data(), received.data(), received.size());
    }

    /// Checks that this rank's file is as it wrote it. Writes it again if it is gone.
    void look_after_own_note()
    {
        note here{};
        if (!read_note(own(), here)) return write_note();
        if (here.number == number_) return;
        if (call_.rank == 0) {
            // The other rank 0 finds this file in place of its own, and answers in the same way, or takes it away.
            write_note();
            const auto until = collprobe::detail::deadline::in_ms(500);
            while (read_note(own(), here) && here.number == number_ && !until.passed()) pause();
        }
        throw failed_exchange{status::mismatch, "two processes are rank " + std::to_string(call_.rank) + ": "
                + directory_.path_of(file_of(own())) + " was replaced", {call_.rank}};
    }

    [[noreturn]] void give_up(bool took)
    {
        directory_.remove(file_of(own()));
        if (seen_[0] != 0 && !took && !missing_ranks().empty()) throw missing();
        throw failed_exchange{
            status::timeout, "rank 0 did not answer in " + directory_.path_of(root_file()) + within(), {0}};
    }

    /// Rank 0: whether all ranks' files are there and agree with its own.
    bool all_came()
    {
        const std::vector<char> here = list();
        bool all = true;
        for (int rank = 1; rank < call_.size; ++rank) {
            const std::size_t at = static_cast<std::size_t>(rank);
            if (here[at] == 0 && numbers_[at] != 0) {
                if (!missing_ranks().empty()) throw missing(); // that rank has waited long enough for the missing ranks
                throw failed_exchange{status::peer_failure,
                    "rank " + std::to_string(rank) + " left before all ranks had joined", {rank}};
            }
            note found{};
            if (numbers_[at] == 0 && read_note(at, found)) {
                check(found, rank);
                numbers_[at] = found.number;
            }
            all = all && numbers_[at] != 0;
        }
        if (!all && until_.passed()) throw missing();
        return all;
    }

    void check(const note& found, int rank) const
    {
        const std::string who = "rank " + std::to_string(rank);
        if (found.size != ranks()) {
            throw failed_exchange{status::mismatch, who + " takes part in a job of " + std::to_string(found.size)
                    + " ranks, rank 0 in one of " + std::to_string(call_.size), {rank}};
        }
        if (found.value_bytes != call_.value.count()) {
            throw failed_exchange{status::mismatch, who + " expects a value of " + std::to_string(found.value_bytes)
                    + " bytes, rank 0 has one of " + std::to_string(call_.value.count()), {rank}};
        }
    }

    /// A rank other than 0 whose file is still there; 0 if there is none.
    int one_that_waits()
    {
        const std::vector<char> here = list();
        for (int rank = 1; rank < call_.size; ++rank) {
            if (here[static_cast<std::size_t>(rank)] != 0) return rank;
        }
        return 0;
    }

    /// Rank 0 tells the failure to the ranks that are there, and waits a little for them to read it.
    void tell(const failed_exchange& failed)
    {
        try {
            for (std::size_t rank = 1; rank < ranks(); ++rank) {
                note found{};
                if (read_note(rank, found)) numbers_[rank] = found.number;
            }
            write_answer(
                {ranks(), 1, static_cast<std::uint64_t>(failed.code), failed.message.size(), failed.culprits.size()},
                failed.message.data(), failed.culprits);
            const auto until = collprobe::detail::deadline::in_ms(500);
            while (one_that_waits() != 0 && !until.passed()) pause();
            clear();
        } catch (const failed_exchange&) { // the first cause is the one to report
        }
    }
    [[noreturn]] static void throw_told(const answer& head, const std::string& rest)
    {
        failed_exchange failed{static_cast<status>(head.code), "rank 0 reports: " + rest.substr(0, head.bytes), {}};
        failed.culprits.resize(head.culprits);
        if (head.culprits != 0)
            std::memcpy(failed.culprits.data(), rest.data() + head.bytes, head.culprits * sizeof(int));
        throw failed;
    }

    failed_exchange missing() const
    {
        const std::vector<int> all = missing_ranks();
        return {status::timeout, collprobe::detail::list_ranks(all) + " of " + std::to_string(call_.size)
                + " did not join in " + call_.path + within(), all};
    }
    std::vector<int> missing_ranks() const
    {
        std::vector<int> missing;
        for (int rank = 0; rank < call_.size; ++rank) {
            if (seen_[static_cast<std::size_t>(rank)] == 0 && rank != call_.rank) missing.push_back(rank);
        }
        return missing;
    }

    void write_note()
    {
        const note content{own(), ranks(), call_.value.count(), number_};
        directory_.write(
            file_of(own()), prefix_ + "new-" + std::to_string(number_), bytes_of(&content, sizeof content));
    }
    bool read_note(std::size_t rank, note& found) const
    {
        std::string content;
        if (!directory_.read(file_of(rank), sizeof found, content) || content.size() != sizeof found) return false;
        std::memcpy(&found, content.data(), sizeof found);
        return found.rank == rank;
    }

    void write_answer(const answer& head, const void* payload, const std::vector<int>& culprits)
    {
        std::string content(bytes_of(&head, sizeof head));
        content += bytes_of(numbers_.data(), numbers_.size() * sizeof numbers_[0]);
        content += bytes_of(payload, head.bytes);
        content += bytes_of(culprits.data(), culprits.size() * sizeof(int));
        directory_.write(root_file(), prefix_ + "new-" + std::to_string(number_), content);
    }
    /// Whether rank 0's answer is there and is for this rank. If so, its parts.
    bool read_answer(answer& head, std::string& rest) const
    {
        constexpr std::uint64_t word = sizeof(std::uint64_t);
        constexpr std::uint64_t most = sizeof head + 2 * max_size * word + max_value_bytes;
        std::string content;
        if (!directory_.read(root_file(), most, content) || content.size() < sizeof head) return false;
        std::memcpy(&head, content.data(), sizeof head);
        if (head.size <= own() || head.size > max_size || head.bytes > most || head.culprits > most) return false;
        if (content.size() != sizeof head + head.size * word + head.bytes + head.culprits * sizeof(int)) return false;
        std::uint64_t number = 0;
        std::memcpy(&number, content.data() + sizeof head + own() * word, word);
        rest = content.substr(sizeof head + head.size * word);
        return number == number_ && (head.failed != 0 || head.bytes == call_.value.count());
    }
    static std::string_view bytes_of(const void* data, std::size_t count)
    {
        return {static_cast<const char*>(data), count};
    }

    /// The ranks whose files are there now.
    std::vector<char> list()
    {
        std::vector<char> here(ranks(), 0);
        const std::string begin = prefix_ + "rank-";
        for (const std::string& name : directory_.names(begin)) {
            std::size_t rank = 0;
            const char* const end = name.data() + name.size();
            const auto [stop, code] = std::from_chars(name.data() + begin.size(), end, rank);
            if (code == std::errc{} && stop == end && rank < ranks()) here[rank] = seen_[rank] = 1;
        }
        return here;
    }

    void clear() const
    {
        directory_.remove(file_of(0));
        directory_.remove(root_file());
        directory_.remove_itself();
    }
    void pause()
    {
        const timespec nap{0, pause_ns_};
        nanosleep(&nap, nullptr);
        if (pause_ns_ < 16'000'000) pause_ns_ += pause_ns_ / 4;
    }

    std::size_t ranks() const { return static_cast<std::size_t>(call_.size); }
    std::size_t own() const { return static_cast<std::size_t>(call_.rank); }
    std::string file_of(std::size_t rank) const { return prefix_ + "rank-" + std::to_string(rank); }
    std::string root_file() const { return prefix_ + "root"; }
    std::string within() const { return " within " + std::to_string(call_.timeout_ms) + " ms"; }

    const exchange_call& call_;
    shared_directory directory_;
    collprobe::detail::deadline until_ = collprobe::detail::deadline::in_ms(call_.timeout_ms);
    std::string prefix_; ///< of the names of all files of this job
    std::uint64_t number_ = 0; ///< random, so that no file of an earlier run has it
    std::vector<char> seen_; ///< the ranks whose files have been seen
    std::vector<std::uint64_t> numbers_; ///< rank 0: the numbers found in the files
    long pause_ns_ = 1'000'000;
};

inline void exchange_files(const exchange_call& call, const call_site& where)
{
    try {
        const auto refuse
            = [](const std::string& message) { throw failed_exchange{status::invalid_argument, message, {}}; };
        if (call.size < 1 || call.size > max_size || call.rank < 0 || call.rank >= call.size) {
            refuse("a job of rank " + std::to_string(call.rank) + " of " + std::to_string(call.size)
                + ": expected 0 <= rank < size <= " + std::to_string(max_size));
        }
        if (call.value.data() == nullptr && !call.value.empty()) refuse("value is null");
        if (call.value.count() > max_value_bytes) {
            refuse("a value of " + std::to_string(call.value.count()) + " bytes: expected at most "
                + std::to_string(max_value_bytes));
        }
        if (call.size == 1) return;
        if (call.path.empty())
            refuse("no directory to exchange through: set COLLPROBE_PATH or job.path (or NCCL_COMM_ID, which"
                   " nccl::unique_id knows)");
        file_exchange(call).run();
    } catch (const failed_exchange& failed) {
        throw error(failed.code, failed.message,
            {.call = "bootstrap::exchange", .rank = call.rank, .size = call.size, .where = where},
            failed.culprits);
    }
}

} // namespace collprobe::bootstrap::detail

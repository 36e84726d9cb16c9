// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <collprobe/c/collprobe.h>

#include "tests/support/errors.hpp"
#include "tests/support/run_ranks.hpp"

/// Ranks as threads that use the C entry. Their all-gather is this file's own: a barrier, copies, a barrier.
namespace collprobe::testing {

/// Where the ranks meet.
class meeting {
public:
    explicit meeting(int ranks) : all_here_(ranks), sent_(static_cast<std::size_t>(ranks)), sizes_(sent_.size()) {}

    /// 0, or 1 if a rank has left, 2 if the ranks sent different numbers of bytes.
    int all_gather(int rank, const void* send, void* receive, std::size_t bytes)
    {
        const auto own = static_cast<std::size_t>(rank);
        sent_[own] = send;
        sizes_[own] = bytes;
        all_here_.arrive_and_wait();
        if (has_left_) return 1;
        bool fits = true;
        for (std::size_t r = 0; r < sent_.size(); ++r) {
            fits = fits && sizes_[r] == bytes;
            if (sizes_[r] == bytes) std::memcpy(static_cast<char*>(receive) + r * bytes, sent_[r], bytes);
        }
        all_here_.arrive_and_wait();
        return fits ? 0 : 2;
    }
    /// Of a rank that will not come again.
    void leave()
    {
        has_left_ = true;
        all_here_.arrive_and_drop();
    }

private:
    std::barrier<> all_here_;
    std::atomic<bool> has_left_{false};
    std::vector<const void*> sent_;
    std::vector<std::size_t> sizes_;
};

/// A rank's end of it: the context of its function.
struct c_rank {
    meeting* at;
    int rank;
    int ranks;
    int calls = 0; ///< of the function
    int fails_at = -1; ///< the call that does not go through
    collprobeProbe_t probe = nullptr;

    static int all_gather(void* context, const void* send, void* receive, std::size_t bytes)
    {
        auto& own = *static_cast<c_rank*>(context);
        if (own.calls++ == own.fails_at) return 42;
        return own.at->all_gather(own.rank, send, receive, bytes);
    }
    collprobeOptions_t options()
    {
        collprobeOptions_t given = COLLPROBE_OPTIONS_INIT;
        given.allGather = &c_rank::all_gather;
        given.context = this;
        return given;
    }
};

inline std::string last_error() { return collprobeGetLastError(); }

/// Ends the rank if a call did not go well.
inline void ok(int result, call_site where = call_site::current())
{
    require(result == collprobeSuccess, std::to_string(result) + ": " + last_error(), where);
}
/// Ends the rank unless the call was refused with this result, and a sentence that begins with the function's name and
/// has the words.
inline void refused(int result, int wanted, const std::string& function, const std::string& words,
    call_site where = call_site::current())
{
    const std::string said = last_error();
    require(result == wanted, "result " + std::to_string(result) + ", said " + said, where);
    require(said.rfind(function + ": ", 0) == 0, "not of " + function + ": " + said, where);
    require(contains(said, words), "without '" + words + "': " + said, where);
}

/// The same of an argument that is wrong.
inline void invalid(
    int result, const std::string& function, const std::string& words, call_site where = call_site::current())
{
    refused(result, collprobeInvalidArgument, function, words, where);
}
inline void mismatch(int result, const std::string& words, call_site where = call_site::current())
{
    refused(result, collprobeMismatch, "collprobePoll", words, where);
}

/// Runs `body(c_rank&)` for each rank on a thread; rethrows what the lowest rank threw.
inline void run_c_ranks(int ranks, const std::function<void(c_rank&)>& body)
{
    meeting at(ranks);
    run_threads(ranks, [&](int rank) {
        c_rank own{&at, rank, ranks};
        try {
            body(own);
        } catch (...) {
            at.leave();
            throw;
        }
    }, 120);
}
/// The same with a probe each.
inline void run_c_probes(int ranks, const std::function<void(c_rank&)>& body)
{
    run_c_ranks(ranks, [&](c_rank& own) {
        const collprobeOptions_t options = own.options();
        ok(collprobeCreate(&own.probe, own.rank, own.ranks, &options));
        body(own);
        ok(collprobeDestroy(own.probe));
    });
}

struct c_finding {
    std::string kind, text, call;
    int rank, call_index;
    bool exact;
    std::uint64_t element;
};
/// Of the record taken last.
inline std::vector<c_finding> findings_of(collprobeProbe_t probe)
{
    std::vector<c_finding> all;
    for (std::uint64_t i = 0;; ++i) {
        collprobeFinding_t of = COLLPROBE_FINDING_INIT;
        const int result = collprobeGetFinding(probe, i, &of);
        if (result == collprobeNotReady) return all;
        ok(result);
        all.push_back({of.kind, of.text, of.call, of.rank, of.callIndex, of.exact == 1, of.element});
    }
}
inline void require_silence(collprobeProbe_t probe, call_site where = call_site::current())
{
    for (const c_finding& of : findings_of(probe)) require(false, of.text, where);
}
inline double value_of(
    collprobeProbe_t probe, const char* name, int rank = -1, call_site where = call_site::current())
{
    double value = 0;
    ok(collprobeGetValue(probe, name, rank, &value), where);
    return value;
}

/// A rank's numbers in a step: not the same in two of them, and of no size that rounds.
template <class T = float>
std::vector<T> numbers_of(int rank, std::uint64_t step, std::size_t count)
{
    std::vector<T> numbers(count);
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t hash
            = (i * 2654435761u + static_cast<std::uint64_t>(rank) * 40503u + step * 9176u + 77) * 0x9e3779b97f4a7c15u;
        numbers[i] = T(static_cast<float>(static_cast<int>(hash >> 59)) - 16.0f);
    }
    return numbers;
}
/// Their sum over the ranks.
template <class T = float>
std::vector<T> sum_of(int ranks, std::uint64_t step, std::size_t count)
{
    std::vector<double> sum(count);
    for (int r = 0; r < ranks; ++r) {
        const std::vector<T> own = numbers_of<T>(r, step, count);
        for (std::size_t i = 0; i < count; ++i) sum[i] += static_cast<double>(own[i]);
    }
    std::vector<T> result(count);
    for (std::size_t i = 0; i < count; ++i) result[i] = T(sum[i]);
    return result;
}

} // namespace collprobe::testing

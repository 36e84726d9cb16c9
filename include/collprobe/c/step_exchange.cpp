// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include <collprobe/c/detail/step_exchange.hpp>
#include <collprobe/c/detail/types.hpp>
#include <collprobe/report/words.hpp>

namespace collprobe::inline COLLPROBE_ABI::c {

namespace {

constexpr std::size_t most_searched = 4096; ///< calls in which the first other one is looked for
constexpr std::size_t text_bytes = 192;

/// "ranks 0, 2 and 5"; of many the first ones.
std::string rank_list(const std::vector<int>& ranks)
{
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (i == 8 && ranks.size() > 9) return text + " and " + std::to_string(ranks.size() - i) + " more";
        if (i != 0) text += i + 1 == ranks.size() ? " and " : ", ";
        text += std::to_string(ranks[i]);
    }
    return text;
}

/// Each text, and the ranks that have it, in the order of the lowest ranks: "A on rank 0, B on ranks 1 and 2".
std::string by_rank(const std::vector<std::string>& texts)
{
    std::string all;
    for (std::size_t first = 0; first < texts.size(); ++first) {
        if (std::find(texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(first), texts[first])
            != texts.begin() + static_cast<std::ptrdiff_t>(first)) continue;
        std::vector<int> ranks;
        for (std::size_t r = first; r < texts.size(); ++r) {
            if (texts[r] == texts[first]) ranks.push_back(static_cast<int>(r));
        }
        all += (all.empty() ? "" : ", ") + texts[first] + " on " + rank_list(ranks);
    }
    return all;
}

std::string quoted(const char* name) { return name[0] == '\0' ? "" : std::string(" '") + name + "'"; }

} // namespace

std::string shown_call::text() const
{
    std::string words;
    if (call < 0) words = call == -1 ? "a value that is equal" : "a value that is distinct";
    else words = collprobe::name(collective_of(call));
    words += quoted(name);
    if (type < 0) return words;
    words += " of " + report::detail::with_commas(count) + " " + name_of_type(type);
    if (call == collprobeAllReduceCall || call == collprobeReduceScatterCall) {
        words += std::string(" (") + collprobe::name(reduction_of(operation)) + ")";
    }
    return words;
}

bool step_exchange::take_failure(failure& out)
{
    const std::lock_guard lock(guard_);
    if (failures_.empty()) return false;
    out = std::move(failures_.front());
    failures_.pop_front();
    return true;
}

bool step_exchange::is_broken(std::string& text)
{
    const std::lock_guard lock(guard_);
    text = broken_;
    return !broken_.empty();
}

void step_exchange::fail(status code, const std::string& text)
{
    const std::lock_guard lock(guard_);
    failures_.push_back({code, text});
}

bool step_exchange::gather(const void* send, void* receive, std::size_t bytes, std::uint64_t step)
{
    std::string how;
    try {
        const int result = function_(context_, send, receive, bytes);
        if (result == 0) return true;
        how = "returned " + std::to_string(result);
    } catch (...) { // it should not; one of the same C++ runtime can be told
        how = "threw an exception";
    }
    stopped_ = true;
    const std::string text = "the all-gather of the caller (collprobeOptions_t.allGather) " + how + " in step "
        + std::to_string(step) + " on rank " + std::to_string(heading.rank)
        + ": this probe is of no more use; destroy it, and make another one once the ranks can talk again";
    fail(status::peer_failure, text);
    const std::lock_guard lock(guard_);
    broken_ = text;
    return false;
}

bool step_exchange::run(const step_heading& own, const std::vector<shown_call>* calls, const void* send, void* receive,
    std::size_t bytes) noexcept
{
    try {
        if (stopped_) {
            fail(status::peer_failure, "step " + std::to_string(own.step)
                    + " was not sent, because the all-gather of the caller failed before");
            return false;
        }
        // The first time there is room for more ranks than there should be, so that too many are noticed.
        const auto ranks = static_cast<std::size_t>(own.ranks);
        const bool is_first = headings_.empty();
        headings_.assign(is_first ? most_ranks : ranks, step_heading{.magic = 0});
        if (!gather(&own, headings_.data(), sizeof own, own.step)) return false;
        std::string why;
        if (is_first) {
            std::size_t came = ranks;
            while (came < headings_.size() && headings_[came].magic != 0) ++came;
            if (came != ranks) {
                why = "the all-gather of the caller has more ranks than the " + std::to_string(ranks)
                    + " of collprobeCreate: " + std::to_string(came) + " or more";
            }
            headings_.resize(ranks);
            headings_.shrink_to_fit();
        }
        if (why.empty()) why = difference(own, *calls);
        if (stopped_) return false;
        if (!why.empty()) {
            fail(status::mismatch, why);
            return false;
        }
        return gather(send, receive, bytes, own.step);
    } catch (const std::exception& lack) { // of memory: the other ranks go on without this one
        stopped_ = true;
        const std::lock_guard lock(guard_);
        broken_ = lack.what();
        return false;
    }
}

std::string step_exchange::difference(const step_heading& own, const std::vector<shown_call>& calls)
{
    const std::size_t ranks = headings_.size();
    const auto are_equal = [&](auto member) {
        return std::all_of(headings_.begin(), headings_.end(),
            [&](const step_heading& of) { return of.*member == own.*member; });
    };
    const auto numbers = [&](auto member, const char* what) {
        std::vector<std::string> texts;
        for (const step_heading& of : headings_) texts.push_back(what + std::to_string(of.*member));
        return by_rank(texts);
    };
    for (std::size_t r = 0; r < ranks; ++r) {
        if (headings_[r].magic == 0) {
            return "the all-gather of the caller left part " + std::to_string(r) + " of the "
                + std::to_string(ranks) + " unwritten: it has fewer ranks than collprobeCreate was told, or does not "
                + "put rank r's bytes into part r";
        }
        if (headings_[r].magic != step_heading::known_magic) {
            return "rank " + std::to_string(r) + " sent what is no message of collprobe: the all-gather of the caller "
                + "mixes it with other messages";
        }
    }
    if (!are_equal(&step_heading::version)) {
        return "the ranks have different versions of the library (collprobeGetVersion): "
            + numbers(&step_heading::version, "");
    }
    if (!are_equal(&step_heading::ranks)) {
        return "collprobeCreate was told different numbers of ranks: " + numbers(&step_heading::ranks, "");
    }
    for (std::size_t r = 0; r < ranks; ++r) {
        if (headings_[r].rank == r) continue;
        return "part " + std::to_string(r) + " of the all-gather came from a rank that was created as rank "
            + std::to_string(headings_[r].rank) + ": part r must be rank r's";
    }
    if (!are_equal(&step_heading::every)) {
        return "the ranks have different options: every " + numbers(&step_heading::every, "");
    }
    if (!are_equal(&step_heading::expectations)) {
        return "the ranks have different options: expectations " + numbers(&step_heading::expectations, "");
    }
    if (!are_equal(&step_heading::false_alarms)) {
        return "the ranks have different options: falseAlarms " + numbers(&step_heading::false_alarms, "");
    }
    if (!are_equal(&step_heading::serial) || !are_equal(&step_heading::step)) {
        return "the ranks report different steps: " + numbers(&step_heading::step, "step ");
    }
    const bool fit = are_equal(&step_heading::calls) && are_equal(&step_heading::digest)
        && are_equal(&step_heading::bytes);
    return fit ? std::string() : first_other_call(own, calls);
}

std::string step_exchange::first_other_call(const step_heading& own, const std::vector<shown_call>& calls)
{
    const std::size_t ranks = headings_.size();
    std::uint64_t most = 0;
    for (const step_heading& of : headings_) most = std::max(most, of.calls);
    const auto searched = static_cast<std::size_t>(std::min<std::uint64_t>(most, most_searched));
    const std::string begin = "the ranks show other calls in step " + std::to_string(own.step) + ": ";

    std::vector<std::uint64_t> digests(searched);
    for (std::size_t b = 0; b < searched && b < own.calls; ++b) digests[b] = calls[b].digest;
    std::vector<std::uint64_t> all(searched * ranks);
    if (!gather(digests.data(), all.data(), searched * sizeof all[0], own.step)) return {};
    std::size_t at = 0;
    const auto is_equal = [&] {
        for (std::size_t r = 1; r < ranks; ++r)
            if (all[r * searched + at] != all[at]) return false;
        return true;
    };
    while (at < searched && is_equal()) ++at;
    if (at == searched) {
        return begin + "they differ behind call " + std::to_string(searched) + ", and the step was not sent";
    }
    char text[text_bytes] = {};
    const std::string words = at < own.calls ? calls[at].text() : "no further call";
    std::memcpy(text, words.data(), std::min(words.size(), text_bytes - 1));
    scratch_.assign(ranks * text_bytes, 0);
    if (!gather(text, scratch_.data(), text_bytes, own.step)) return {};
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < ranks; ++r) {
        const auto* const of = reinterpret_cast<const char*>(scratch_.data() + r * text_bytes);
        texts.emplace_back(of, strnlen(of, text_bytes));
    }
    return begin + "call " + std::to_string(at) + " is " + by_rank(texts) + "; this step has no record";
}

} // namespace collprobe::c

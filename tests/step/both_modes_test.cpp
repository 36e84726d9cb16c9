// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Where `gather` and `summary` both say something of a step, they say the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/audit.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/fault.hpp>

#include "support/element_types.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::both_modes_test {
namespace {

/// What differs, or "".
class comparison {
public:
    explicit comparison(const step_record& gathered, const step_record& summed) : a_(gathered), b_(summed) {}

    std::string text()
    {
        require(a_.step == b_.step && a_.first_call == b_.first_call && a_.calls.size() == b_.calls.size(), "step");
        require(same_bits(a_.loss, b_.loss), "loss");
        require(same_bits(a_.loss_weighted, b_.loss_weighted), "loss_weighted");
        require(same_bits(a_.gradient_norm, b_.gradient_norm), "gradient_norm");
        require(a_.forgot == b_.forgot && a_.zero_ranks.size() == b_.zero_ranks.size(), "forgot or zeros");
        near(a_.cosine.pooled, b_.cosine.pooled, 1e-6, "pooled");
        near(a_.result_norm, b_.result_norm, 1e-9, "result norm");
        require(same_bits(a_.losses, b_.losses), "losses");
        require(same_bits(a_.gradient_norms, b_.gradient_norms), "gradient_norms");
        bool all_agree = true; // of results that differ one side knows more
        for (const call_record& call : a_.calls) all_agree &= call.results_agree;
        const std::vector<double>&one = a_.cosine.leave_one_out, &other = b_.cosine.leave_one_out;
        for (std::size_t i = 0; all_agree && i < one.size() && i < other.size(); ++i) near(one[i], other[i], 1e-6, "leave_one_out");
        near(a_.cosine.predicted_cosine, b_.cosine.predicted_cosine, 1e-6, "predicted_cosine");
        // A copy in one call, and NaN in a step without gradients, leave a rank out in a gather alone.
        require(std::includes(a_.left_out.begin(), a_.left_out.end(), b_.left_out.begin(), b_.left_out.end()), "left out");
        if (a_.left_out == b_.left_out)
            require(of_whole_step(a_) == of_whole_step(b_), "findings " + of_whole_step(a_) + "or " + of_whole_step(b_));
        for (std::size_t c = 0; c < a_.calls.size(); ++c) {
            const call_record& x = a_.calls[c];
            const call_record& y = b_.calls[c];
            const std::string of = "call " + std::to_string(c) + " ";
            compare(x.gradient_norm, y.gradient_norm, of + "norm");
            near(x.pooled_cosine, y.pooled_cosine, 1e-6, of + "pooled");
            near(x.excess, y.excess, 1e-6, of + "excess");
            near(x.result_norm, y.result_norm, 1e-9, of + "result norm");
            require(x.nonfinite == y.nonfinite, of + "nonfinite");
            require(is_nan(x.result_norm) == is_nan(y.result_norm) || !x.has_result_digest || !y.results_agree, of + "result norm known");
            if (x.nonfinite == 0 && x.has_result_digest && y.results_agree)
                require((x.result_nonfinite != 0) == (y.result_nonfinite != 0), of + "result_nonfinite");
            // Of an all-gather the audit of a gather compares shards, that of a summary the results alone.
            const bool by_shards = x.call == collective::all_gather && x.audit.checked;
            require(by_shards ? x.results_agree <= y.results_agree : x.results_agree == y.results_agree, of + "results_agree");
            const bool both = x.has_result_digest && y.has_result_digest;
            require(!both || x.result_digest == y.result_digest, of + "digest");
            require(x.audit.checked == y.audit.checked, of + "checked");
            require(x.audit.sum_checked == y.audit.sum_checked, of + "sum_checked");
            // Of results that differ one side knows more.
            if (!x.results_agree || by_shards) continue;
            require(x.audit.conserved == y.audit.conserved, of + "conserved");
            require(x.audit.where == y.audit.where, of + "where");
        }
        const auto is_of = [](finding_kind what) { return [what](const finding& each) { return each.what == what; }; };
        // What most ranks have for the second step in a row, a gather tells once, without calls and ranks.
        const places not_finite = places_of(a_, is_of(finding_kind::non_finite));
        if (!not_finite.contains({-1, -1})) {
            const places in_summary = places_of(b_, is_of(finding_kind::non_finite));
            require(std::includes(not_finite.begin(), not_finite.end(), in_summary.begin(), in_summary.end()), "ranks not finite");
            require(calls_of(not_finite) == calls_of(in_summary), "calls not finite");
        }
        // The audit of a gather compares the shards of an all-gather also where inputs are not finite.
        const auto differs = [this](const finding& each) {
            const bool is_of_result = each.what == finding_kind::result_differs || each.what == finding_kind::shard_differs;
            const call_record* const of = is_of_result && each.call >= 0 ? &a_.calls[static_cast<std::size_t>(each.call)] : nullptr;
            return is_of_result && !(of != nullptr && of->call == collective::all_gather && of->nonfinite != 0);
        };
        require(calls_of(places_of(a_, differs)) == calls_of(places_of(b_, differs)), "results differ");
        for (const finding_kind what : {finding_kind::overflow, finding_kind::sum_differs})
            require(calls_of(places_of(a_, is_of(what), true)) == calls_of(places_of(b_, is_of(what), true)), name(what));
        // Of a scatter a gather names each part that overflows, a summary the worst.
        require(overflows_of(a_) == overflows_of(b_), "overflows");
        return text_;
    }

private:
    using places = std::set<std::pair<int, int>>;

    static bool same_bits(const std::vector<double>& a, const std::vector<double>& b)
    {
        return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 8 * a.size()) == 0);
    }
    static bool same_bits(const spread& a, const spread& b)
    {
        return a.finite == b.finite && to_bits(a.mean) == to_bits(b.mean) && to_bits(a.std) == to_bits(b.std)
            && a.maximum_rank == b.maximum_rank && a.minimum_rank == b.minimum_rank;
    }
    /// What is said of the whole step, but for kinds that in `gather` are of calls, too.
    static std::string of_whole_step(const step_record& of)
    {
        std::string text;
        for (const finding& each : of.findings) {
            const bool is_of_calls = each.what == finding_kind::duplicate || each.what == finding_kind::stale
                || each.what == finding_kind::unlike || each.what == finding_kind::non_finite
                || each.what == finding_kind::cosine;
            if (each.call >= 0 || is_of_calls) continue;
            text += std::string(name(each.what)) + " " + std::to_string(each.rank()) + " ";
        }
        return text;
    }
    void require(bool is_right, const std::string& what)
    {
        if (!is_right && text_.empty()) text_ = what;
    }
    void near(double a, double b, double tolerance, const std::string& what)
    {
        if (is_nan(a) || is_nan(b) || (!is_finite(a) && !is_finite(b))) return;
        require(std::fabs(a - b) <= tolerance * (std::fabs(a) + std::fabs(b)) + 1e-300 + (tolerance > 1e-7 ? tolerance : 0),
            what + " " + std::to_string(a) + " and " + std::to_string(b));
    }
    void compare(const spread& a, const spread& b, const std::string& what)
    {
        require(a.finite == b.finite, what + ".finite " + std::to_string(a.finite) + " and " + std::to_string(b.finite));
        if (a.finite == 0 || b.finite == 0) return;
        // The mean of a summary has the rounding of its reference, which is here up to 1e9.
        require(std::fabs(a.mean - b.mean) <= 1e-9 * (std::fabs(a.maximum) + std::fabs(a.minimum)) + 1e-6,
            what + ".mean " + std::to_string(a.mean) + " and " + std::to_string(b.mean));
        const double level = std::fabs(a.maximum) + std::fabs(a.minimum);
        if (!is_nan(b.std)) require(std::fabs(a.std - b.std) <= 1e-3 * a.std + 1e-12 * level,
            what + ".std " + std::to_string(a.std) + " and " + std::to_string(b.std));
        require(std::fabs(a.maximum - b.maximum) <= 0x1p-31 * std::fabs(a.maximum), what + ".maximum");
        require(std::fabs(a.minimum - b.minimum) <= 0x1p-31 * std::fabs(a.minimum), what + ".minimum");
    }
    /// Calls and ranks (-1: none) of some findings; `alike`: of calls whose results agree.
    template <class Picks>
    static places places_of(const step_record& of, const Picks& picks, bool alike = false)
    {
        places found;
        for (const finding& each : of.findings) {
            if (!picks(each) || (alike && !of.calls[static_cast<std::size_t>(each.call)].results_agree)) continue;
            if (!each.is_named()) found.insert({each.call, -1});
            for (const int rank : each.ranks) found.insert({each.call, rank});
        }
        return found;
    }
    static std::set<int> calls_of(const places& of)
    {
        std::set<int> calls;
        for (const auto& each : of) calls.insert(each.first);
        return calls;
    }
    static places overflows_of(const step_record& of)
    {
        places found;
        for (const finding& each : of.findings) {
            if (each.what == finding_kind::overflow && each.rank() < 0 && of.calls[static_cast<std::size_t>(each.call)].results_agree)
                found.insert({each.call, static_cast<int>(each.statistic)});
        }
        return found;
    }

    const step_record& a_;
    const step_record& b_;
    std::string text_;
};

template <floating_element T, class Comm>
void make_call(Comm& comm, std::mt19937_64& shared, std::mt19937_64& own, double scale, host::stream_ref stream)
{
    std::normal_distribution<double> normal;
    const auto n = static_cast<std::size_t>(comm.size());
    const std::size_t count = n * (1 + shared() % 60);
    const double level = shared() % 8 == 0 ? (std::is_same_v<T, float16> ? 2e4 : 1e6) : 1; // sums overflow
    const double spread = shared() % 4 == 0 ? 0 : 1;
    std::vector<T> send(count), same(count), whole(count * n);
    for (T& x : send) x = T(static_cast<float>(scale * level * (0.5 + spread * normal(own))));
    if (own() % 40 == 0) send[own() % count] = T(std::numeric_limits<float>::quiet_NaN());
    const auto what = shared() % 6;
    const reduction how = shared() % 2 == 0 ? reduction::sum : reduction::average;
    if (what < 2) comm.all_reduce(send, view<T>(same), how, stream);
    else if (what == 2) comm.reduce_scatter(send, view<T>(same.data(), count / n), how, stream);
    else if (what == 3) comm.all_gather(send, view<T>(whole), stream);
    else if (what == 4) comm.all_to_all(send, view<T>(same), stream);
    else comm.broadcast(send, view<T>(same), static_cast<int>(shared() % n), stream);
    stream.synchronize();
}

template <class Comm>
void make_step(Comm& comm, std::uint64_t seed, std::uint64_t step, host::stream_ref stream, step_record& record)
{
    std::mt19937_64 shared(seed + step);
    std::mt19937_64 own(seed + step * 1000 + static_cast<std::uint64_t>(comm.rank()) + 1);
    std::normal_distribution<double> normal;
    const bool is_unlike = comm.rank() == comm.size() - 1 && step >= 60; // in norms and losses, now and then far
    const double scale = !is_unlike ? 1 : step % 40 == 0 ? 30 : 1.5;
    for (std::uint64_t calls = shared() % 4; calls > 0; --calls) {
        const std::uint64_t type = shared() % 4;
        if (type == 0) make_call<bfloat16>(comm, shared, own, scale, stream);
        else if (type == 1) make_call<float16>(comm, shared, own, scale, stream);
        else make_call<float>(comm, shared, own, scale, stream);
    }
    const double level = shared() % 5 == 0 ? 1e9 : 3;
    const double spread = shared() % 3 == 0 ? 0 : 0.3;
    double loss = scale * (level + spread * normal(own));
    if (own() % 30 == 0) loss = detail::not_given();
    else if (own() % 30 == 0) loss = std::numeric_limits<double>::infinity();
    double weight = shared() % 2 == 0 ? 1 : static_cast<double>(own() % 5);
    if (own() % 20 == 0) weight = std::numeric_limits<double>::infinity();
    else if (own() % 20 == 0) weight = -1;
    comm.end_step(step, step_observation{.loss = &loss, .weight = &weight}, stream);
    REQUIRE(comm.wait(record));
}

/// A part that notes in two words which rank makes which call, and finds the largest of both.
struct counting_part {
    struct entry {
        std::uint64_t rank, call;
    };
    using summary = entry;
    COLLPROBE_HD static summary summarize(const entry& of) noexcept { return of; }
    template <element T, class Call>
    void before(Call& call, view<const T>, entry* to) const
    {
        call.stream().enqueue([to, noted = entry{static_cast<std::uint64_t>(call.ranks().rank()), call.index()}] { *to = noted; });
    }
    template <element T, class Call>
    void after(Call&, view<const T>, entry*) const {}
    void judge(const part_entries<entry>& all, step_record& record) const
    {
        for (int c = 0; c < all.calls(); ++c)
            for (int r = 0; r < all.ranks(); ++r)
                record.add_number(call_site::named("rank and call"), c, r, static_cast<double>(10 * all(c, r).rank + all(c, r).call));
    }
    void judge_summary(const part_summaries<summary>& largest, step_record& record) const
    {
        record.add_number(call_site::named("calls"), -1, -1, static_cast<double>(record.calls.size()));
        for (int c = 0; c < static_cast<int>(record.calls.size()); ++c)
            record.add({.call = c, .what = finding_kind::of_part, .statistic = static_cast<double>(10 * largest[c].rank + largest[c].call)});
    }
};

} // namespace

TEST_CASE("both modes say the same of random steps, with faults, weights of no sense and ranks without a loss")
{
    constexpr std::uint64_t steps = COLLPROBE_TEST_UNLESS_BRIEF(3'400, 300);
    constexpr auto always = std::uint64_t{1};
    const std::vector<fault> faults = {
        {.kind = fault_kind::bit_flips, .phase = fault_phase::after, .rank = fault::random_rank, .call = 0,
            .period = always, .probability = 0.1, .mask = 1u << 14, .seed = 1},
        {.kind = fault_kind::scale, .phase = fault_phase::during, .rank = fault::random_rank, .call = 0,
            .period = always, .probability = 0.1, .magnitude = 100, .seed = 2},
        {.kind = fault_kind::zero_slice, .phase = fault_phase::during, .rank = fault::random_rank, .call = 0,
            .period = always, .probability = 0.1, .seed = 3},
        {.kind = fault_kind::infinity, .phase = fault_phase::during, .rank = fault::random_rank, .call = 0,
            .period = always, .probability = 0.05, .seed = 4},
        {.kind = fault_kind::infinity, .phase = fault_phase::after, .rank = fault::random_rank, .call = 0,
            .period = always, .probability = 0.05, .seed = 5},
    };
    std::set<finding_kind> seen;
    for (const int ranks : {1, 2, 3, 5}) {
        CAPTURE(ranks);
        local::run(ranks, [&](local::communicator& world) {
            host::stream stream;
            probed gathered{faulty{world, faults}, {.times = false}, audit()};
            probed summed{faulty{world, faults}, {.mode = report_mode::summary, .times = false}, audit()};
            step_record a;
            step_record b;
            for (std::uint64_t step = 0; step < steps; ++step) {
                make_step(gathered, static_cast<std::uint64_t>(ranks), step, stream, a);
                make_step(summed, static_cast<std::uint64_t>(ranks), step, stream, b);
                if (world.rank() != 0) continue;
                const std::string differs = comparison(a, b).text();
                CHECK_MESSAGE(differs.empty(), "step ", step, ": ", differs);
                for (const finding& each : b.findings) seen.insert(each.what);
            }
        });
    }
    for (const finding_kind what : {finding_kind::non_finite, finding_kind::loss, finding_kind::gradient_norm,
             finding_kind::unlike, finding_kind::overflow, finding_kind::sum_differs}) {
        CAPTURE(std::string(name(what)));
        CHECK(seen.contains(what));
    }
}

TEST_CASE("copies and repeats of whole gradients name the same ranks in both modes")
{
    std::vector<std::set<int>> seen[2][2]; // of each mode: copies and repeats in each step
    for (const report_mode mode : both_modes) {
        for (const step_record& record : records_of({5, 12, {.mode = mode, .times = false}}, [](auto& comm, host::stream& stream, int step, auto&) {
                 for (int call = 0; call <= step % 3; ++call) {
                     const int like = comm.rank() == 4 && step == 8 ? 1 : comm.rank();
                     std::mt19937 own(static_cast<unsigned>(1000 * (like == 2 ? 0 : step) + 10 * call + like));
                     std::vector<float> data(100), sum(100);
                     for (float& x : data) x = static_cast<float>(own()) * 0x1p-32f - 0.5f;
                     if (call == 1) comm.reduce_scatter(data, view(sum.data(), 20), reduction::sum, stream, call_site::named("b"));
                     else comm.all_reduce(data, view(sum), reduction::average, stream, call_site::named(call == 0 ? "a" : "c"));
                     stream.synchronize();
                 }
             })) {
            for (const int repeats : {0, 1}) {
                std::set<int> ranks;
                for (const finding& each : findings_of(record, repeats == 0 ? finding_kind::duplicate : finding_kind::stale)) {
                    ranks.insert(each.ranks.begin(), each.ranks.end());
                    if (mode == report_mode::summary) CHECK(each.call == -1);
                }
                seen[mode == report_mode::summary][repeats].push_back(ranks);
            }
        }
    }
    for (std::size_t step = 3; step < 12; ++step) { // of each kind of step one was before
        CAPTURE(step);
        for (const auto& mode : seen) {
            CHECK(mode[0][step] == (step == 8 ? std::set{1, 4} : std::set<int>{}));
            CHECK(mode[1][step] == std::set{2});
        }
    }
}

TEST_CASE("a part has its own summaries, whatever part is before or behind it")
{
    const auto records_in = [](report_mode mode, const auto&... parts) {
        const std::vector<fault> faults{{.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 1, .call = 3, .magnitude = 100}};
        const auto wrap = [&](local::communicator& world) { return faulty(world, faults); };
        return records_over({3, 3, {.mode = mode, .times = false}}, wrap, [](auto& comm, host::stream& stream, int step, auto&) {
            std::vector<float> data(1000, static_cast<float>(1 + step + comm.rank())), sum(1000);
            for (int c = 0; c < 2; ++c) comm.all_reduce(data, view(sum), reduction::sum, stream);
            stream.synchronize();
        }, parts...);
    };
    const auto records_with = [&](const auto&... parts) { return records_in(report_mode::summary, parts...); };
    const std::vector<step_record> alone = records_with(audit());
    CHECK(findings_of(alone[1], finding_kind::sum_differs).size() == 1);
    for (std::vector<step_record>& records : std::vector{records_with(audit(), counting_part()), records_with(counting_part(), audit())}) {
        for (step_record& record : records) {
            const std::vector<finding> own = findings_of(record, finding_kind::of_part);
            REQUIRE(own.size() == 2);
            for (const std::size_t c : {0u, 1u}) CHECK(own[c].statistic == 20 + static_cast<double>(c)); // of the last rank
            std::erase_if(record.findings, [](const finding& each) { return each.what == finding_kind::of_part; });
            REQUIRE(record.numbers.size() == 1);
            CHECK(record.numbers[0].by_rank == std::vector<double>{2}); // of all ranks together
            record.numbers.clear();
            CHECK(difference(record, alone[record.step]) == "");
        }
    }
    for (const step_record& record : records_in(report_mode::gather, counting_part())) {
        REQUIRE(record.numbers.size() == 2);
        for (const std::size_t c : {0u, 1u}) {
            CHECK(record.numbers[c].call == static_cast<int>(c));
            CHECK(std::string(record.numbers[c].site.name) == "rank and call");
            for (const std::size_t r : {0u, 1u, 2u}) CHECK(record.numbers[c].by_rank.at(r) == static_cast<double>(10 * r + c));
        }
    }
}

TEST_CASE("the mode is settled once by ranks times calls, and by what is asked for")
{
    const auto mode_of = [](const probe_options& options, auto... parts) {
        report_mode seen = report_mode::automatic;
        local::run(4, [&](local::communicator& world) {
            host::stream stream;
            probed comm{world, options, parts...};
            std::vector<float> values(3, 1.0f);
            comm.all_reduce(values, view(values), reduction::average, stream);
            comm.end_step(0, stream);
            step_record record;
            REQUIRE(comm.wait(record));
            if (world.rank() == 0) seen = record.mode;
        });
        return seen;
    };
    CHECK(mode_of({}) == report_mode::gather);
    CHECK(mode_of({.calls = 5000}) == report_mode::gather);
    CHECK(mode_of({.calls = 5001}) == report_mode::summary);
    CHECK(mode_of({.calls = 5001}, audit()) == report_mode::summary);
    CHECK(mode_of({.mode = report_mode::gather, .calls = 5001}) == report_mode::gather);
    CHECK(mode_of({.mode = report_mode::summary}) == report_mode::summary);
    CHECK(mode_of({.calls = 5001, .groups = {0, 0, 1, 1}}) == report_mode::summary);
    // What only `gather` has.
    CHECK(mode_of({.calls = 5001, .order_sample = 2}) == report_mode::gather);
    CHECK(mode_of({.calls = 5001}, weight_probe()) == report_mode::gather);
}

} // namespace collprobe::testing::both_modes_test

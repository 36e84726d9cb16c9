// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a summary has of the ranks: keys and sums; and their totals, which are judged as the calls that `gather` has.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <collprobe/report/table.hpp>
#include <collprobe/step/detail/summary.hpp>
#include <collprobe/step/detail/wire_layout.hpp>

#include "bench/summary_simulation.hpp"

namespace collprobe::testing::step_summary_test {
namespace {

using namespace collprobe::detail;

constexpr int last_rank = most_summary_ranks - 1;

} // namespace

TEST_CASE("a key orders as its value does and gives it back to 32 bits")
{
    std::mt19937_64 random(3);
    std::vector<double> values{0.0, -0.0, 0x1p-1074, -0x1p-1074, 0x1p-1022, 1.7976931348623157e308, -1.7976931348623157e308};
    while (values.size() < 4000) {
        const double value = bit_cast<double>(random());
        if (is_finite(value)) values.push_back(value);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
        const int rank = static_cast<int>(random() % static_cast<unsigned>(most_summary_ranks));
        const std::uint64_t key = extremum_key(values[i], rank);
        CHECK(key != 0);
        CHECK(extremum_rank(key) == rank);
        const double back = extremum_value(key);
        CHECK(std::fabs(back) <= std::fabs(values[i])); // cut off towards zero
        CHECK(std::fabs(values[i]) - std::fabs(back) <= std::ldexp(std::fabs(values[i]), -32) + 0x1p-1042); // or a subnormal's
        const double other = values[(i * 7 + 1) % values.size()];
        // Apart by more than the cut-off bits: the value decides, whatever the ranks.
        if (std::fabs(other - values[i]) > std::ldexp(std::fabs(other) + std::fabs(values[i]), -31) + 0x1p-1040)
            CHECK((extremum_key(other, static_cast<int>(i)) < key) == (other < values[i]));
    }
    CHECK(extremum_key(not_a_number(), 3) == 0);
    CHECK(extremum_key(infinity(), 3) == 0);
    CHECK(extremum_key(-infinity(), 3) == 0);
}

TEST_CASE("equal values give the lowest rank up to a million of them")
{
    for (const double value : {1.5, -1.5, 0.0}) {
        CHECK(extremum_key(value, 0) > extremum_key(value, 1));
        CHECK(extremum_key(value, 65535) > extremum_key(value, 65536));
        CHECK(extremum_key(value, last_rank - 1) > extremum_key(value, last_rank));
        CHECK(extremum_rank(extremum_key(value, last_rank)) == last_rank);
        CHECK(extremum_rank(extremum_key(value, 100000)) == 100000);
    }
    CHECK(count_key(0, 5) == 0);
    CHECK(count_key(2, 9) > count_key(1, 0));
    CHECK(count_key(2, 3) > count_key(2, 4));
    CHECK(key_count(count_key(7, last_rank)) == 7);
    CHECK(extremum_rank(count_key(7, last_rank)) == last_rank);
    CHECK(key_count(count_key(~std::uint64_t{0}, 65536)) == (std::uint64_t{1} << 44) - 1);
    CHECK(extremum_rank(count_key(~std::uint64_t{0}, 65536)) == 65536);
}

TEST_CASE("a hundred thousand ranks are summed up as one table of them is")
{
    const int ranks = 100000;
    const std::uint64_t buckets = 2;
    summary_simulation::combined_step combined(ranks, buckets);
    step_judge judge(ranks, {}, report_mode::summary);
    summary_simulation::rank_values values{0, std::vector<double>(buckets), {}, 42};
    for (std::uint64_t step = 0; step < 3; ++step) {
        std::vector<double> losses;
        std::vector<double> norms;
        combined.begin();
        for (int rank = 0; rank < ranks; ++rank) {
            summary_simulation::make_up(step, rank, values);
            values.nonfinite.clear();
            if (step == 2 && rank == 99998) values.nonfinite = {0, 5};
            if (step == 2 && rank == 70000) values.nonfinite = {0, 3};
            values.result_digest = step == 1 && rank == 80000 ? 43 : 42;
            if (step == 0 && rank == 77777) values.loss = 9;
            if (step == 2) values.told_norm = rank == 0 ? 3 : 4; // both are wrong
            losses.push_back(values.loss);
            norms.push_back(values.norms[1]);
            combined.pack(summary_simulation::message_of(step, values), rank);
            combined.combine();
        }
        step_record record;
        combined.judge(judge, ranks, record);
        CHECK(record.step == step);
        CHECK(record.ranks == ranks);

        // By the two-pass formula over the table.
        const auto moments = [](const std::vector<double>& all) {
            double mean = 0;
            for (const double x : all) mean += x / static_cast<double>(all.size());
            double squares = 0;
            for (const double x : all) squares += (x - mean) * (x - mean);
            return std::pair{mean, std::sqrt(squares / static_cast<double>(all.size()))};
        };
        CHECK(record.loss.mean == doctest::Approx(moments(losses).first).epsilon(1e-12));
        CHECK(record.loss.std == doctest::Approx(moments(losses).second).epsilon(1e-9));
        CHECK(record.loss.finite == ranks);
        CHECK(record.loss.maximum_rank == std::max_element(losses.begin(), losses.end()) - losses.begin());
        CHECK(record.loss.minimum_rank == std::min_element(losses.begin(), losses.end()) - losses.begin());
        CHECK(record.calls[1].gradient_norm.std == doctest::Approx(moments(norms).second).epsilon(1e-9));
        CHECK(record.calls[1].gradient_norm.maximum_rank == std::max_element(norms.begin(), norms.end()) - norms.begin());
        CHECK(record.calls[1].gradient_norm.maximum
            == doctest::Approx(*std::max_element(norms.begin(), norms.end())).epsilon(0x1p-32));
        if (step == 0) {
            CHECK(record.loss.maximum_rank == 77777);
            CHECK(record.findings.empty());
        } else if (step == 1) {
            REQUIRE(record.findings.size() == 2); // both buckets have the digest
            CHECK(record.findings[0].what == finding_kind::result_differs);
            CHECK_FALSE(record.calls[0].results_agree);
        } else {
            REQUIRE(record.findings.size() == 2);
            CHECK(record.findings[1].what == finding_kind::norm_differs);
            CHECK_FALSE(record.findings[1].is_named());
            CHECK(record.findings[0].what == finding_kind::non_finite);
            CHECK(record.findings[0].rank() == 99998);
            CHECK(record.findings[0].statistic == 5);
            CHECK(record.calls[1].nonfinite == 8);
        }
    }
}

namespace {

/// The messages of the same ranks, step by step, judged in both ways.
class ranks_of_a_job {
public:
    ranks_of_a_job(int ranks, std::uint64_t seed)
        : random_(seed), ranks_(ranks), in_gather(ranks, options, report_mode::gather, true),
          in_summary(ranks, options, report_mode::summary, true)
    {
    }

    /// Makes up a step and judges it.
    void step()
    {
        const std::size_t count = 1 + (number_ % 3); // kinds of steps
        calls_.clear();
        for (std::size_t c = 0; c < count; ++c) {
            const bool is_part = parts && c % 2 == 1;
            calls_.push_back({is_part ? collective::reduce_scatter : collective::all_reduce, element_type::float32,
                averages && c != 1 ? reduction::average : reduction::sum, 1000 + c, true, true});
            calls_.back().place = place_of(call_site::named(c == 0 ? "a" : c == 1 ? "b" : "c"));
        }
        calls_.push_back({.call = collective::all_gather, .count = 10, .has_input = true, .has_result = true});
        const message_layout layout{.times = true};
        std::vector<std::uint64_t> words(at_rank(ranks_) * layout.bytes(calls_.size()) / 8);
        auto* const all = reinterpret_cast<unsigned char*>(words.data());
        for (int r = 0; r < ranks_; ++r) make_message(r, layout, all + at_rank(r) * layout.bytes(calls_.size()));
        in_gather.judge(gathered_step(all, ranks_, calls_.size(), layout), calls_, {}, {}, gathered);
        gathered.settle_findings();

        const probed_call whole = whole_gradient(calls_);
        std::vector<std::uint64_t> flags((calls_.size() + 15) / 16);
        for (std::size_t c = 0; c < calls_.size(); ++c) flags[c / 16] |= calls_[c].flags() << (c % 16 * 4);
        const message_layout of_totals = totals_layout(layout);
        std::vector<std::uint64_t> total_words(at_rank(ranks_) * of_totals.bytes(1) / 8);
        auto* const totals = reinterpret_cast<unsigned char*>(total_words.data());
        const step_report::shape form{.mode = report_mode::summary, .ranks = at_rank(ranks_), .layout = layout};
        std::vector<std::uint64_t> report(step_report::room_bytes(form, calls_.size()) / 8);
        const summary_parts own = step_report(reinterpret_cast<unsigned char*>(report.data()), form, calls_.size()).summary;
        const std::vector<double> references(of_first_call + calls_.size());
        for (int r = 0; r < ranks_; ++r) {
            pack_summary{all + at_rank(r) * layout.bytes(calls_.size()), flags.data(), calls_.size(), r, ranks_,
                references.data(), own, layout, whole.call, totals + at_rank(r) * of_totals.bytes(1)}(0);
        }
        summed.begin(number_, ranks_, report_mode::summary, calls_.size());
        in_summary.judge_totals(gathered_step(totals, ranks_, 1, of_totals), whole, {}, summed);
        summed.settle_findings();
        ++number_;
        lost = 0;
        bad_loss = bad_input = copy_of = no_data = repeating = -1;
        many_are_bad = false;
    }

    /// What the two say of the whole step, in words and bits: "" if it is the same.
    std::string difference() const
    {
        const auto bits = [](const std::vector<double>& a, const std::vector<double>& b) {
            return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 8 * a.size()) == 0);
        };
        const auto same = [](const spread& a, const spread& b) {
            return a.finite == b.finite && to_bits(a.mean) == to_bits(b.mean) && to_bits(a.std) == to_bits(b.std)
                && a.maximum_rank == b.maximum_rank && a.minimum_rank == b.minimum_rank;
        };
        if (!bits(gathered.losses, summed.losses)) return "losses";
        if (!bits(gathered.gradient_norms, summed.gradient_norms)) return "norms";
        if (!bits(gathered.cosine.leave_one_out, summed.cosine.leave_one_out)) return "cosines";
        if (to_bits(gathered.cosine.predicted_cosine) != to_bits(summed.cosine.predicted_cosine)) return "predicted";
        if (!same(gathered.loss, summed.loss) || !same(gathered.loss_weighted, summed.loss_weighted)) return "loss";
        if (!same(gathered.gradient_norm, summed.gradient_norm)) return "gradient norm";
        if (gathered.forgot != summed.forgot) return "forgot";
        if (gathered.lateness.last != summed.lateness.last) return "last";
        if (to_bits(gathered.lateness.behind) != to_bits(summed.lateness.behind)) return "behind";
        for (std::size_t r = 0; r < gathered.lateness_by_rank.size(); ++r) {
            const rank_lateness& a = gathered.lateness_by_rank[r];
            const rank_lateness& b = summed.lateness_by_rank.at(r);
            if (to_bits(a.latest) != to_bits(b.latest) || to_bits(a.behind) != to_bits(b.behind)
                || to_bits(a.behind_before) != to_bits(b.behind_before) || a.steps != b.steps)
                return "lateness of rank " + std::to_string(r);
        }
        if (gathered.zero_ranks.size() != summed.zero_ranks.size()) return "zeros";
        const std::string a = text_of(gathered);
        const std::string b = text_of(summed);
        return a == b ? "" : a + "or\n" + b;
    }
    /// The ranks of findings of a kind.
    static std::set<int> named(const step_record& of, finding_kind what)
    {
        std::set<int> ranks;
        for (const finding& each : of.findings)
            if (each.what == what) ranks.insert(each.ranks.begin(), each.ranks.end());
        return ranks;
    }

    double scale_of_last = 1, loss_of_last = 0, late_of_last = 0; // what is wrong with the last rank
    std::uint32_t lost = 0; // a rank lost the step so long ago
    int bad_loss = -1, bad_input = -1, copy_of = -1, no_data = -1, repeating = -1; // a rank, in the next step
    bool many_are_bad = false;
    bool averages = false, parts = false;

private:
    inline static const probe_options options{.lateness_floor_ns = 1000};

    /// Only what is said of the whole step: of calls a summary knows other things.
    static std::string text_of(const step_record& of)
    {
        std::string text;
        for (const finding& each : of.findings) {
            const bool is_of_call = each.what == finding_kind::duplicate || each.what == finding_kind::stale
                || (each.what == finding_kind::unlike && each.evidence.call >= 0);
            if (each.call >= 0 || is_of_call) continue;
            text += report::describe(each) + '\n';
        }
        return text;
    }
    void make_message(int r, const message_layout& layout, unsigned char* to)
    {
        std::normal_distribution<double> normal;
        double loss = 2 + 0.1 * normal(random_) + (r == ranks_ - 1 ? loss_of_last : 0);
        if (r == bad_loss) loss = not_a_number();
        *reinterpret_cast<step_header*>(to) = {number_, loss, r == no_data ? 0.0 : 1 + 0.1 * normal(random_), not_given(),
            static_cast<std::uint16_t>(r == 0 ? lost : 0), 0, static_cast<std::uint32_t>(number_ + 1)};
        for (std::size_t b = 0; b < calls_.size(); ++b) {
            layout.place(to, b) = calls_[b].place;
            call_entry entry{};
            entry.input.count = calls_[b].count;
            entry.input.digest = random_();
            entry.input.absolute_maximum = 4;
            const double norm = std::exp(0.1 * normal(random_)) * (r == ranks_ - 1 ? scale_of_last : 1);
            entry.input.sum_of_squares = norm * norm;
            if (copy_of >= 0 && r == ranks_ - 1)
                entry = layout.entry(to - at_rank(r - copy_of) * layout.bytes(calls_.size()), b);
            if (r == repeating) entry.input.digest = b;
            if (r == no_data) entry.input = {.count = calls_[b].count, .zero = calls_[b].count};
            const bool is_hit = number_ % 2 == 0 || calls_[b].call == collective::all_gather;
            if ((r == bad_input && is_hit) || (many_are_bad && r > 0)) entry.input.nan = 3;
            entry.result.digest = 17 + b;
            entry.result.sum_of_squares = calls_[b].operation == reduction::average ? 1 : ranks_;
            entry.result.dot = calls_[b].call == collective::all_reduce ? 1 + 0.001 * normal(random_) : not_a_number();
            layout.entry(to, b) = entry;
            const std::uint32_t begin = static_cast<std::uint32_t>(100 * (calls_.size() * number_ + b) + random_() % 6);
            const auto more = r == ranks_ - 1 ? static_cast<std::uint32_t>(late_of_last) : 0u;
            const std::uint64_t end = 100 * (calls_.size() * number_ + b) + (number_ % 4 == 0 ? 130 : 60); // calls overlap
            layout.times_of(to, b) = {begin + more, static_cast<std::uint32_t>(end)};
        }
    }

    std::mt19937_64 random_;
    int ranks_;
    std::vector<probed_call> calls_;
    std::uint64_t number_ = 0;

public:
    step_judge in_gather, in_summary;
    step_record gathered, summed;
};

} // namespace

TEST_CASE("totals are judged as the calls are: the same numbers and sentences, bit for bit")
{
    std::set<finding_kind> seen;
    for (const int ranks : {2, 3, 4, 5, 8, 16}) {
        for (std::uint64_t seed = 0; seed < 6; ++seed) {
            CAPTURE(ranks);
            CAPTURE(seed);
            ranks_of_a_job job(ranks, 100 * seed + static_cast<std::uint64_t>(ranks));
            job.averages = seed % 2 == 1;
            std::mt19937_64 random(seed);
            for (int step = 0; step < 260; ++step) {
                CAPTURE(step);
                const auto rank = [&](unsigned of) { return random() % of == 0 ? static_cast<int>(random() % static_cast<unsigned>(ranks)) : -1; };
                job.bad_loss = rank(20);
                job.bad_input = rank(20);
                job.no_data = rank(30);
                job.many_are_bad = step / 10 == 12;
                if (job.no_data == job.bad_input || job.many_are_bad) job.no_data = -1; // zeros are finite
                job.lost = step == 150 ? 2 : 0;
                if (step >= 80 && seed % 3 == 0) job.scale_of_last = step % 40 == 0 ? 30 : 1.5;
                if (step >= 80 && seed % 3 == 1) job.loss_of_last = step % 40 == 0 ? 30 : 0.5;
                if (step >= 80 && seed % 3 == 2) job.late_of_last = step % 40 == 0 ? 45 : 20;
                job.step();
                const std::string differs = job.difference();
                REQUIRE_MESSAGE(differs.empty(), differs);
                for (const finding& each : job.summed.findings) seen.insert(each.what);
            }
        }
    }
    for (const finding_kind what : {finding_kind::non_finite, finding_kind::loss, finding_kind::gradient_norm,
             finding_kind::late, finding_kind::unlike}) {
        CAPTURE(name(what));
        CHECK(seen.contains(what));
    }
}

TEST_CASE("copies and repeats of whole gradients name the ranks of a summary, too")
{
    for (const bool parts : {false, true}) {
        ranks_of_a_job job(5, 7);
        job.parts = parts;
        for (int step = 0; step < 12; ++step) {
            CAPTURE(step);
            const bool copies = step == 8;
            if (copies) job.copy_of = 1;
            job.repeating = 2;
            job.step();
            for (const finding_kind what : {finding_kind::duplicate, finding_kind::stale})
                if (step >= 3) // of each kind of step one was before
                    CHECK(job.named(job.summed, what) == job.named(job.gathered, what));
            CHECK(job.named(job.summed, finding_kind::duplicate) == (copies ? std::set{1, 4} : std::set<int>{}));
            for (const finding& each : job.summed.findings) CHECK(each.call == -1);
        }
        CHECK(job.named(job.summed, finding_kind::stale) == std::set{2});
    }
}

TEST_CASE("a summary goes on from the evidence of its checkpoint")
{
    ranks_of_a_job whole(4, 3);
    ranks_of_a_job restarted(4, 3);
    for (int step = 0; step < 100; ++step) {
        for (ranks_of_a_job* job : {&whole, &restarted}) {
            job->loss_of_last = 0.2;
            job->step();
        }
        if (step != 60) continue;
        const std::vector<std::uint64_t> state = whole.in_summary.evidence_state();
        CHECK(state.size() > 10);
        restarted.in_summary.forget();
        restarted.in_summary.restore_evidence({state.data(), state.size()}, {});
    }
    REQUIRE(restarted.summed.evidence_by_rank.size() == 4);
    CHECK(restarted.summed.evidence_by_rank[3].odds > 100);
    CHECK(restarted.summed.evidence_by_rank[3] == whole.summed.evidence_by_rank[3]);
}

} // namespace collprobe::testing::step_summary_test

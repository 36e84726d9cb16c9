// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What `merge_ranks` makes of blocks is what `probed` with an audit makes of the same buffers, bit for bit.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/merge_ranks.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/step/probed.hpp>

#include "rank_blocks.hpp"
#include "support/checks.hpp"
#include "support/element_types.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
using testing::block_words;

namespace {

double uniform(std::uint64_t seed, std::uint64_t index)
{
    return static_cast<double>(detail::mix64(seed + (index + 1) * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}
/// Nearly a standard normal number.
double normal(std::uint64_t seed, std::uint64_t index)
{
    double sum = -6;
    for (std::uint64_t i = 0; i < 12; ++i) sum += uniform(seed, 12 * index + i);
    return sum;
}

/// A gradient: half of it is common to the ranks.
template <element T>
std::vector<T> gradient(int rank, std::uint64_t step, std::size_t call, std::uint64_t count)
{
    std::vector<T> data;
    const std::uint64_t common = detail::mix64(step * 100 + call + 1);
    const std::uint64_t own = detail::mix64(common + static_cast<std::uint64_t>(rank) + 1);
    for (std::uint64_t i = 0; i < count; ++i) {
        if constexpr (floating_element<T>) data.push_back(static_cast<T>(normal(common, i) + normal(own, i)));
        else data.push_back(static_cast<T>(1000 * uniform(own, i)));
    }
    return data;
}

enum class harm { none, nan, copied, stale, outlier, flipped, wrong_sum, wrong_part, overflow };

/// A fault in one call of one step.
struct planned {
    harm what = harm::none;
    int rank = 0;
    std::uint64_t step = 0;
    std::size_t call = 0;

    bool hits(harm kind, int at, std::uint64_t in_step, std::size_t in_call) const
    {
        return what == kind && rank == at && step == in_step && call == in_call;
    }
};
using plan = std::vector<planned>;

bool hits(const plan& faults, harm kind, int rank, std::uint64_t step, std::size_t call)
{
    for (const planned& each : faults) {
        if (each.hits(kind, rank, step, call)) return true;
    }
    return false;
}

/// Damages results behind the calls, on their stream.
using damage_of_result = std::function<void(int rank, std::uint64_t serial, unsigned char* result, std::size_t size)>;

template <communicator Comm>
class damaging : public adaptor<damaging<Comm>, Comm> {
    using base_type = adaptor<damaging, Comm>;

public:
    using typename base_type::stream_ref;
    damaging(Comm comm, damage_of_result what) : base_type(std::move(comm)), what_(std::move(what)) {}

    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        base_type::template make<T>(call, on);
        if (call.what != collective::all_to_all && call.what != collective::barrier) apply(call.received<T>(), on);
    }

private:
    template <class T>
    void apply(view<T> result, stream_ref on)
    {
        auto* const bytes = reinterpret_cast<unsigned char*>(result.data());
        on.enqueue(
            [what = what_, rank = this->rank(), serial = serial_++, bytes] { what(rank, serial, bytes, sizeof(T)); });
    }
    damage_of_result what_;
    std::uint64_t serial_ = 0;
};

/// Steps of the same calls, judged by `probed`, and the blocks of their ranks.
struct measured_steps {
    std::vector<merged_call> calls;
    std::vector<step_record> records; ///< of rank 0
    std::vector<std::vector<block_words>> blocks; ///< by step: those of each call and rank
};

/// Makes the calls of a job on one rank: with `probed`, and with a reader of its own.
template <class Comm>
class caller {
public:
    caller(Comm& comm, measured_steps& out, const plan& faults) : comm_(comm), out_(out), faults_(faults) {}

    void begin(std::uint64_t step)
    {
        step_ = step;
        call_ = 0;
    }
    template <element T>
    void make(collective what, reduction operation, std::uint64_t count, bool in_place, const char* name)
    {
        const auto n = static_cast<std::uint64_t>(comm_.size());
        const bool gathers = what == collective::all_gather;
        merged_call call{.call = what,
            .type = element_traits<T>::type,
            .operation = operation,
            .count = what == collective::reduce_scatter ? count * n : count,
            .result_count = gathers ? count * n : count,
            .bucket = call_,
            .site = call_site::named(name)};
        call.bins = testing::bins_of<T>(call);
        std::vector<T> input = input_of<T>(call.count);
        std::vector<T> apart(in_place ? 0 : call.result_count);
        std::vector<T>& result = in_place ? input : apart;
        const bool is_sent = what != collective::broadcast || comm_.rank() == 0;
        const view<const T> sent = is_sent ? view<const T>(input) : view<const T>();
        testing::rank_reader<T> reader(call, sent, what == collective::all_reduce && !in_place);
        if (what == collective::all_reduce)
            comm_.all_reduce(view<const T>(input), view(result), operation, stream_, call.site);
        if (what == collective::reduce_scatter)
            comm_.reduce_scatter(view<const T>(input), view(result), operation, stream_, call.site);
        if (gathers) comm_.all_gather(view<const T>(input), view(result), stream_, call.site);
        if (what == collective::broadcast) comm_.broadcast(view<const T>(input), view(result), 0, stream_, call.site);
        stream_.synchronize(60'000);
        const auto rank = static_cast<std::size_t>(comm_.rank());
        const std::uint64_t first = what == collective::reduce_scatter ? rank * count : 0;
        out_.blocks[step_][call_ * n + rank] = reader.with_result(view<const T>(result), first);
        if (rank == 0 && step_ == 0) out_.calls.push_back(call);
        ++call_;
    }
    void end()
    {
        comm_.end_step(step_, stream_);
        stream_.synchronize(60'000);
        step_record record;
        while (comm_.poll(record)) {
            if (comm_.rank() == 0) out_.records.push_back(record);
        }
    }

private:
    template <element T>
    std::vector<T> input_of(std::uint64_t count)
    {
        const auto hit = [this](harm kind) { return hits(faults_, kind, comm_.rank(), step_, call_); };
        const int from = hit(harm::copied) ? (comm_.rank() + 1) % comm_.size() : comm_.rank();
        std::vector<T> data = gradient<T>(from, hit(harm::stale) ? step_ - 1 : step_, call_, count);
        if constexpr (floating_element<T>) {
            if (hit(harm::nan)) data[7] = static_cast<T>(detail::not_a_number());
            if (hit(harm::overflow)) data[9] = data[11] = static_cast<T>(0x1.8p127 * (sizeof(T) == 8 ? 0x1p896 : 1));
            for (T& each : data) {
                if (hit(harm::outlier)) each = static_cast<T>(20 * detail::widen(each));
            }
        }
        return data;
    }

    Comm& comm_;
    measured_steps& out_;
    const plan& faults_;
    host::stream stream_;
    std::uint64_t step_ = 0;
    std::size_t call_ = 0;
};

/// `make_calls(caller)` makes the calls of a step.
template <class MakeCalls>
measured_steps measure(int ranks, std::uint64_t steps, std::size_t calls, const plan& faults,
    const probe_options& options, const MakeCalls& make_calls)
{
    measured_steps out;
    out.blocks.resize(steps);
    for (auto& each : out.blocks) each.resize(calls * static_cast<std::size_t>(ranks));
    const damage_of_result damage = [&](int rank, std::uint64_t serial, unsigned char* result, std::size_t size) {
        const auto hit = [&](harm kind) { return hits(faults, kind, rank, serial / calls, serial % calls); };
        unsigned char& top = result[3 * size - 1]; // of the third element
        if (hit(harm::flipped)) top ^= 0x10;
        if (hit(harm::wrong_sum) || hit(harm::wrong_part)) top ^= 0x08;
    };
    testing::local_provider{ranks}.run([&](local::communicator& world) {
        probed comm{damaging(world, damage), options, audit()};
        caller on(comm, out, faults);
        for (std::uint64_t step = 0; step < steps; ++step) {
            on.begin(step);
            make_calls(on);
            on.end();
        }
    });
    return out;
}

/// Puts the times that `probed` saw into the blocks.
void write_times(measured_steps& of)
{
    for (std::size_t step = 0; step < of.records.size(); ++step) {
        for (std::size_t c = 0; c < of.calls.size(); ++c) {
            const std::vector<call_interval>& intervals = of.records[step].calls[c].intervals;
            for (std::size_t r = 0; r < intervals.size(); ++r) {
                auto* const bytes
                    = reinterpret_cast<unsigned char*>(of.blocks[step][c * intervals.size() + r].data());
                rank_call_layout::measurement(bytes).input_done = intervals[r].entered;
                rank_call_layout::measurement(bytes).result_begun = intervals[r].left;
            }
        }
    }
}

/// The blocks of a step as `merge_ranks` takes them.
std::vector<rank_block> all_blocks(const std::vector<block_words>& blocks)
{
    std::vector<rank_block> all;
    for (const block_words& each : blocks) all.push_back({testing::bytes_of(each), true, true, 1});
    return all;
}

std::vector<step_record> merge(const measured_steps& of, int ranks, const merge_options& options)
{
    merge_ranks judge(ranks, options);
    std::vector<step_record> merged;
    step_record record;
    for (std::size_t step = 0; step < of.blocks.size(); ++step) {
        const std::vector<rank_block> blocks = all_blocks(of.blocks[step]);
        judge.judge({.step = step, .first_call = step * of.calls.size(), .calls = of.calls, .blocks = blocks,
                        .follows = true},
            record);
        merged.push_back(record);
    }
    return merged;
}

/// Tells the first difference between two records; empty if there is none.
class comparison {
public:
    std::string of(const step_record& a, const step_record& b)
    {
        same("step", a.step, b.step);
        same("first_call", a.first_call, b.first_call);
        same("ranks", a.ranks, b.ranks);
        same("mode", a.mode == b.mode, true);
        same("unprobed_calls", a.unprobed_calls, b.unprobed_calls);
        same("unread_calls", a.unread_calls, b.unread_calls);
        spreads("loss", a.loss, b.loss);
        spreads("loss_weighted", a.loss_weighted, b.loss_weighted);
        spreads("gradient_norm", a.gradient_norm, b.gradient_norm);
        number("mean_pairwise", a.cosine.mean_pairwise, b.cosine.mean_pairwise);
        number("pooled", a.cosine.pooled, b.cosine.pooled);
        number("noise_scale", a.cosine.noise_scale, b.cosine.noise_scale);
        number("predicted_cosine", a.cosine.predicted_cosine, b.cosine.predicted_cosine);
        numbers("leave_one_out", a.cosine.leave_one_out, b.cosine.leave_one_out);
        numbers("losses", a.losses, b.losses);
        numbers("gradient_norms", a.gradient_norms, b.gradient_norms);
        late(a, b);
        suspects(a.findings, b.findings);
        same("calls", a.calls.size(), b.calls.size());
        for (std::size_t c = 0; c < a.calls.size() && c < b.calls.size(); ++c) {
            place_ = "call " + std::to_string(c) + ' ';
            call(a.calls[c], b.calls[c]);
        }
        return found_;
    }

private:
    template <class T>
    void same(const char* what, const T& a, const T& b)
    {
        if (!(a == b)) tell(what);
    }
    void number(const char* what, double a, double b)
    {
        if (to_bits(a) != to_bits(b)) tell(what + (": " + std::to_string(a) + " and " + std::to_string(b)));
    }
    void numbers(const char* what, const std::vector<double>& a, const std::vector<double>& b)
    {
        same(what, a.size(), b.size());
        for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) number(what, a[i], b[i]);
    }
    void spreads(const char* what, const spread& a, const spread& b)
    {
        number(what, a.mean, b.mean);
        number(what, a.std, b.std);
        number(what, a.std_sample, b.std_sample);
        number(what, a.range, b.range);
        number(what, a.cv, b.cv);
        number(what, a.minimum, b.minimum);
        number(what, a.maximum, b.maximum);
        same(what, a.minimum_rank, b.minimum_rank);
        same(what, a.maximum_rank, b.maximum_rank);
        same(what, a.finite, b.finite);
    }
    void late(const step_record& a, const step_record& b)
    {
        same("lateness.calls", a.lateness.calls, b.lateness.calls);
        same("lateness.last", a.lateness.last, b.lateness.last);
        number("lateness.behind", a.lateness.behind, b.lateness.behind);
        number("lateness.behind_before", a.lateness.behind_before, b.lateness.behind_before);
        number("lateness.noise", a.lateness.noise, b.lateness.noise);
        number("lateness.floor", a.lateness.floor, b.lateness.floor);
        same("lateness_by_rank", a.lateness_by_rank.size(), b.lateness_by_rank.size());
        for (std::size_t r = 0; r < a.lateness_by_rank.size() && r < b.lateness_by_rank.size(); ++r) {
            number("latest", a.lateness_by_rank[r].latest, b.lateness_by_rank[r].latest);
            number("behind", a.lateness_by_rank[r].behind, b.lateness_by_rank[r].behind);
            number("gain_before", a.lateness_by_rank[r].gain_before, b.lateness_by_rank[r].gain_before);
        }
    }
    void suspects(const std::vector<finding>& a, const std::vector<finding>& b)
    {
        same("suspects", a.size(), b.size());
        for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
            same("suspect.ranks", a[i].ranks, b[i].ranks);
            same("suspect.other_rank", a[i].other_rank, b[i].other_rank);
            same("suspect.call", a[i].call, b[i].call);
            same("suspect.what", std::string(name(a[i].what)), std::string(name(b[i].what)));
            number("suspect.statistic", a[i].statistic, b[i].statistic);
            number("suspect.threshold", a[i].threshold, b[i].threshold);
            same("suspect.index", a[i].index, b[i].index);
            number("suspect.value", a[i].number.value, b[i].number.value);
            number("suspect.expected", a[i].number.expected, b[i].number.expected);
            same("suspect.is_new_level", a[i].number.is_new_level, b[i].number.is_new_level);
            same("suspect.exact", a[i].exact, b[i].exact);
            number("suspect.false_alarms", a[i].false_alarms_per_step, b[i].false_alarms_per_step);
            same("suspect.name", std::string(a[i].site.name), std::string(b[i].site.name));
        }
    }
    void call(const call_record& a, const call_record& b)
    {
        same("call", std::string(name(a.call)), std::string(name(b.call)));
        same("type", a.type == b.type, true);
        same("count", a.count, b.count);
        same("result_count", a.result_count, b.result_count);
        same("name", std::string(a.site.name), std::string(b.site.name));
        spreads("gradient_norm", a.gradient_norm, b.gradient_norm);
        number("pooled_cosine", a.pooled_cosine, b.pooled_cosine);
        same("nonfinite", a.nonfinite, b.nonfinite);
        same("results_agree", a.results_agree, b.results_agree);
        same("result_digest", a.result_digest, b.result_digest);
        same("has_result_digest", a.has_result_digest, b.has_result_digest);
        number("result_norm", a.result_norm, b.result_norm);
        same("result_nonfinite", a.result_nonfinite, b.result_nonfinite);
        number("headroom", a.headroom, b.headroom);
        same("result_sample", a.result_sample.size(), b.result_sample.size());
        same("audit.checked", a.audit.checked, b.audit.checked);
        same("audit.majority", a.audit.majority, b.audit.majority);
        same("audit.where", std::string(name(a.audit.where)), std::string(name(b.audit.where)));
        same("audit.culprits", a.audit.culprits, b.audit.culprits);
        if (is_floating(a.type)) { // blocks have no sketches of integers
            same("audit.sum_checked", a.audit.sum_checked, b.audit.sum_checked);
            same("audit.conserved", a.audit.conserved, b.audit.conserved);
            number("audit.residual", a.audit.residual, b.audit.residual);
            number("audit.residual_limit", a.audit.residual_limit, b.audit.residual_limit);
            same("audit.bins", a.audit.bins, b.audit.bins);
        }
        same("lateness.present", a.lateness.present, b.lateness.present);
        same("lateness.last", a.lateness.last, b.lateness.last);
        number("lateness.spread", a.lateness.spread, b.lateness.spread);
        number("lateness.gain_before", a.lateness.gain_before, b.lateness.gain_before);
        same("intervals", a.intervals.size(), b.intervals.size());
        same("inputs", a.inputs.size(), b.inputs.size());
        for (std::size_t r = 0; r < a.inputs.size() && r < b.inputs.size(); ++r) {
            same("input.digest", a.inputs[r].digest, b.inputs[r].digest);
            number("input.sum_of_squares", a.inputs[r].sum_of_squares, b.inputs[r].sum_of_squares);
            number("input.sum", a.inputs[r].sum, b.inputs[r].sum);
            same("input.nan", a.inputs[r].nan, b.inputs[r].nan);
        }
    }
    void tell(const std::string& what)
    {
        if (found_.empty()) found_ = place_ + what;
    }

    std::string place_;
    std::string found_;
};

/// The calls of a step of the oracle, of all types: sums and averages, in place and not, parts, a broadcast, integers.
constexpr std::size_t oracle_calls = 8;
template <class Caller>
void make_oracle_calls(Caller& on)
{
    on.template make<float>(collective::all_reduce, reduction::sum, 3000, false, "a");
    on.template make<bfloat16>(collective::all_reduce, reduction::average, 2048, true, "b");
    on.template make<float16>(collective::all_reduce, reduction::average, 1111, false, "c");
    on.template make<double>(collective::all_reduce, reduction::sum, 900, true, "d");
    on.template make<float>(collective::reduce_scatter, reduction::sum, 700, false, "e");
    on.template make<bfloat16>(collective::reduce_scatter, reduction::average, 512, false, "f");
    on.template make<float>(collective::broadcast, reduction::sum, 500, true, "g");
    on.template make<std::int32_t>(collective::all_reduce, reduction::sum, 400, false, "h");
}

constexpr std::uint64_t quiet_steps = 34; // until ranks have a history
constexpr std::uint64_t oracle_steps = quiet_steps + COLLPROBE_TEST_UNLESS_BRIEF(60, 24);

/// A fault or none in each of the last steps, of every kind, in calls and on ranks by chance.
plan random_plan(int ranks, std::uint64_t seed)
{
    plan faults;
    for (std::uint64_t step = quiet_steps; step < oracle_steps; ++step) {
        const auto draw = [&](std::uint64_t salt, std::uint64_t below) {
            return detail::mix64(seed + 1000 * step + salt) % below;
        };
        const auto kind = static_cast<harm>((step + seed) % 9);
        const bool needs_part = kind == harm::wrong_part;
        const bool needs_sum = kind == harm::wrong_sum;
        // Of two ranks whose integers differ only their sketches, which blocks lack, tell which is wrong.
        const std::uint64_t replicas = ranks == 2 ? 7 : 8;
        const bool overflows = kind == harm::overflow;
        const std::size_t call = overflows ? std::size_t{0} + draw(1, 2) * (3 + draw(3, 2))
            : needs_part                    ? 4 + draw(1, 2)
                                            : draw(1, needs_sum ? 4 : kind == harm::flipped ? replicas : 6);
        const int rank = static_cast<int>(draw(2, static_cast<std::uint64_t>(ranks)));
        for (int r = 0; r < ranks; ++r) {
            if (r == rank || needs_sum || overflows) faults.push_back({kind, r, step, call});
        }
    }
    return faults;
}

std::uint64_t steps_with(const std::vector<step_record>& all, finding_kind what)
{
    std::uint64_t steps = 0;
    for (const step_record& record : all) {
        bool any = false;
        for (const finding& found : record.findings) any = any || found.what == what;
        steps += any ? 1 : 0;
    }
    return steps;
}

} // namespace

TEST_CASE("merge_ranks makes of blocks the record that probed makes of messages")
{
    for (const int ranks : {1, 2, 3, 8}) {
        CAPTURE(ranks);
        const plan faults = ranks == 1 ? plan() : random_plan(ranks, static_cast<std::uint64_t>(ranks));
        const probe_options options{.lateness_floor_ns = 50'000};
        measured_steps measured
            = measure(ranks, oracle_steps, oracle_calls, faults, options, [](auto& on) { make_oracle_calls(on); });
        REQUIRE(measured.records.size() == oracle_steps);
        write_times(measured);
        const std::vector<step_record> merged = merge(measured, ranks, {});
        for (std::size_t step = 0; step < merged.size(); ++step) {
            CAPTURE(step);
            CHECK(comparison().of(measured.records[step], merged[step]) == "");
        }
        if (ranks == 1) continue;
        for (const finding_kind each : {finding_kind::non_finite, finding_kind::duplicate, finding_kind::stale, finding_kind::result_differs,
                 finding_kind::sum_differs, finding_kind::overflow}) {
            CAPTURE(name(each));
            CHECK(steps_with(merged, each) > 0);
        }
        if (ranks > 2) CHECK(steps_with(merged, finding_kind::gradient_norm) > 0);
    }
}

TEST_CASE("an all-gather is judged by the whole result: the rank that received other bits is the same")
{
    constexpr int ranks = 4;
    const plan faults{{harm::flipped, 2, 1, 0}, {harm::stale, 3, 2, 0}, {harm::nan, 1, 3, 1}};
    measured_steps measured = measure(ranks, 4, 2, faults, {.lateness_floor_ns = 50'000}, [](auto& on) {
        on.template make<float>(collective::all_gather, reduction::sum, 600, false, "weights");
        on.template make<bfloat16>(collective::all_gather, reduction::sum, 600, false, "more");
    });
    write_times(measured);
    const std::vector<step_record> merged = merge(measured, ranks, {});
    REQUIRE(merged.size() == measured.records.size());
    for (std::size_t step = 0; step < merged.size(); ++step) {
        CAPTURE(step);
        const step_record& probed = measured.records[step];
        REQUIRE(merged[step].findings.size() == probed.findings.size());
        for (std::size_t i = 0; i < probed.findings.size(); ++i) {
            CHECK(merged[step].findings[i].rank() == probed.findings[i].rank());
            CHECK(merged[step].findings[i].call == probed.findings[i].call);
        }
        for (std::size_t c = 0; c < 2; ++c) {
            CHECK(merged[step].calls[c].results_agree == probed.calls[c].results_agree);
            CHECK(merged[step].calls[c].audit.culprits == probed.calls[c].audit.culprits);
            CHECK(merged[step].calls[c].audit.where == probed.calls[c].audit.where);
            CHECK(merged[step].calls[c].has_result_digest); // which an audit by shards does not take
        }
    }
    REQUIRE(merged[1].findings.size() == 1);
    CHECK(merged[1].findings[0].what == finding_kind::result_differs);
    CHECK(merged[1].findings[0].rank() == 2);
    REQUIRE(merged[2].findings.size() == 1);
    CHECK(merged[2].findings[0].what == finding_kind::stale);
    REQUIRE(merged[3].findings.size() == 1);
    CHECK(merged[3].findings[0].rank() == 1);
}

namespace {

/// Steps of all-reduces that are made here, one rank after the other, and judged.
class own_steps {
public:
    own_steps(int ranks, const merge_options& options = {}) : judge(ranks, options), ranks_(ranks) {}

    /// A sum of the ranks' inputs; each rank receives the sum of the inputs times its factor.
    template <element T>
    void all_reduce(const std::vector<std::vector<T>>& inputs, const std::vector<double>& factors = {},
        const char* name = "", std::uint64_t bucket = 0)
    {
        merged_call call{.type = element_traits<T>::type, .count = inputs[0].size(), .result_count = inputs[0].size(),
            .bucket = bucket, .site = call_site::named(name)};
        call.bins = testing::bins_of<T>(call);
        std::vector<T> sum(inputs[0].size());
        for (std::size_t i = 0; i < sum.size(); ++i) {
            double total = 0;
            for (std::size_t r = 0; r < inputs.size(); ++r) {
                total += detail::widen(inputs[r][i]) * (factors.empty() ? 1 : factors[r]);
            }
            sum[i] = static_cast<T>(total);
        }
        for (std::size_t r = 0; r < inputs.size(); ++r) {
            testing::rank_reader<T> reader(call, view<const T>(inputs[r]), false);
            words_.push_back(reader.with_result(view<const T>(sum), 0));
            blocks.push_back({nullptr, true, true, factors.empty() ? 1 : factors[r]});
        }
        calls.push_back(call);
    }
    /// A call that moves what the ranks send; each rank may send and get another number of elements.
    void move(collective what, const std::vector<std::vector<float>>& sent, const std::vector<std::vector<float>>& got)
    {
        merged_call call{.call = what, .type = element_type::float32, .count = sent[0].size(), .result_count = got[0].size()};
        for (std::size_t r = 0; r < sent.size(); ++r) {
            testing::rank_reader<float> reader(call, view<const float>(sent[r]), false);
            words_.push_back(reader.with_result(view<const float>(got[r]), 0));
            blocks.push_back({nullptr, true, true, 1});
        }
        calls.push_back(call);
    }
    rank_measurement& measurement(std::size_t call, int rank)
    {
        block_words& words = words_[call * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)];
        return rank_call_layout::measurement(reinterpret_cast<unsigned char*>(words.data()));
    }
    rank_block& block(std::size_t call, int rank)
    {
        return blocks[call * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)];
    }
    /// Judges the calls, and begins the next step.
    const step_record& end(merged_step of = {})
    {
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            if (is_missing_.empty() || !is_missing_[i]) blocks[i].bytes = testing::bytes_of(words_[i]);
        }
        of.step = next_++;
        of.calls = calls;
        of.blocks = blocks;
        judge.judge(of, record);
        calls.clear();
        blocks.clear();
        words_.clear();
        is_missing_.clear();
        return record;
    }
    void lose(std::size_t call, int rank)
    {
        is_missing_.resize(blocks.size());
        is_missing_[call * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)] = true;
    }

    merge_ranks judge;
    std::vector<merged_call> calls;
    std::vector<rank_block> blocks;
    step_record record;

private:
    int ranks_;
    std::uint64_t next_ = 0;
    std::vector<block_words> words_;
    std::vector<bool> is_missing_;
};

template <element T>
std::vector<std::vector<T>> gradients(int ranks, std::uint64_t step, std::size_t call, std::uint64_t count)
{
    std::vector<std::vector<T>> all;
    for (int r = 0; r < ranks; ++r) all.push_back(gradient<T>(r, step, call, count));
    return all;
}

bool names(const step_record& record, finding_kind what, int rank, int call)
{
    for (const finding& found : record.findings) {
        if (found.what == what && found.rank() == rank && found.call == call) return true;
    }
    return false;
}

} // namespace

TEST_CASE("a pre-multiplied sum has the norms and directions of what is summed")
{
    constexpr int ranks = 4;
    const std::vector<double> factors{0.25, 2, -0.5, 1}; // exact
    own_steps with_factors(ranks);
    own_steps multiplied(ranks);
    for (std::uint64_t step = 0; step < 3; ++step) {
        const std::vector<std::vector<float>> inputs = gradients<float>(ranks, step, 0, 500);
        std::vector<std::vector<float>> products = inputs;
        for (std::size_t r = 0; r < products.size(); ++r) {
            for (float& each : products[r]) each *= static_cast<float>(factors[r]);
        }
        with_factors.all_reduce(inputs, factors);
        multiplied.all_reduce(products);
        const step_record& a = with_factors.end();
        const step_record& b = multiplied.end();
        CHECK(a.gradient_norms == b.gradient_norms);
        CHECK(to_bits(a.cosine.pooled) == to_bits(b.cosine.pooled));
        CHECK(to_bits(a.calls[0].pooled_cosine) == to_bits(b.calls[0].pooled_cosine));
        for (std::size_t r = 0; r < ranks; ++r) {
            CHECK(a.calls[0].inputs[r].absolute_maximum == b.calls[0].inputs[r].absolute_maximum);
            CHECK(a.calls[0].inputs[r].sum == b.calls[0].inputs[r].sum);
            CHECK(a.calls[0].inputs[r].sum_of_squares == b.calls[0].inputs[r].sum_of_squares);
        }
        CHECK(a.findings.empty());
        CHECK_FALSE(a.calls[0].audit.sum_checked); // the products are rounded, too
        CHECK(b.calls[0].audit.sum_checked);
    }
}

TEST_CASE("a sum with a factor that nobody knows is no gradient, but searched and compared")
{
    constexpr int ranks = 4;
    own_steps steps(ranks);
    std::vector<std::vector<float>> inputs = gradients<float>(ranks, 0, 0, 500);
    inputs[1][5] = static_cast<float>(detail::not_a_number());
    steps.all_reduce(inputs);
    steps.block(0, 2).scale = detail::not_a_number();
    steps.measurement(0, 3).entry.result.digest ^= 1;
    const step_record& record = steps.end();
    CHECK(record.gradient_norms.empty());
    CHECK_FALSE(record.calls[0].audit.sum_checked);
    REQUIRE(record.findings.size() == 2);
    CHECK(names(record, finding_kind::non_finite, 1, 0));
    CHECK(names(record, finding_kind::result_differs, 3, 0));
}

TEST_CASE("a call that a rank lacks keeps its place, and the others are judged")
{
    constexpr int ranks = 4;
    own_steps steps(ranks);
    for (std::size_t c = 0; c < 3; ++c) steps.all_reduce(gradients<float>(ranks, 0, c, 500), {}, "", c);
    steps.lose(1, 2);
    steps.measurement(1, 0).entry.input.nan = 3;
    steps.measurement(2, 1).entry.result.digest ^= 1;
    const step_record& record = steps.end({.first_call = 40, .unread_calls = 7});
    CHECK(record.first_call == 40);
    CHECK(record.unread_calls == 7);
    REQUIRE(record.calls.size() == 3);
    CHECK(record.calls[0].has_result_digest);
    CHECK_FALSE(record.calls[1].has_result_digest);
    CHECK(record.calls[1].inputs.empty());
    CHECK_FALSE(record.calls[1].audit.checked);
    CHECK(record.calls[1].results_agree);
    REQUIRE(record.findings.size() == 2);
    CHECK(names(record, finding_kind::non_finite, 0, 1)); // what another rank sent is known
    CHECK(names(record, finding_kind::result_differs, 1, 2));
}

TEST_CASE("a call is compared with the earlier ones of its bucket and form, wherever it stands in its step")
{
    constexpr int ranks = 4;
    own_steps steps(ranks);
    const std::vector<std::vector<float>> first = gradients<float>(ranks, 7, 7, 500);
    std::vector<std::vector<float>> again = gradients<float>(ranks, 8, 7, 500);
    again[2] = first[2];
    steps.all_reduce(gradients<float>(ranks, 0, 0, 500), {}, "first", 0);
    steps.all_reduce(first, {}, "second", 3);
    CHECK(steps.end().findings.empty());
    steps.all_reduce(again, {}, "second", 3); // at another index, and the only call of the step
    const step_record& stale = steps.end();
    REQUIRE(stale.findings.size() == 1);
    CHECK(names(stale, finding_kind::stale, 2, 0));
    CHECK(std::string(stale.findings[0].site.name) == "second");
    // The form changes, or the bucket: another call, which has no past.
    steps.all_reduce(first, {}, "third", 4);
    CHECK(steps.end().findings.empty());
    // Nothing is compared where steps do not repeat.
    steps.all_reduce(again, {}, "third", 4);
    CHECK(steps.end({.repeats = false}).findings.empty());
    steps.judge.forget();
    steps.all_reduce(first, {}, "third", 4);
    CHECK(steps.end().findings.empty());
}

TEST_CASE("all-to-alls, even and uneven, keep squares; lost elements show")
{
    constexpr int ranks = 4;
    for (const bool even : {true, false}) {
        CAPTURE(even);
        own_steps steps(ranks);
        for (std::uint64_t step = 0; step < 40; ++step) {
            // Rank r sends to rank s so many elements.
            const auto between = [&](int r, int s) { return even ? 50u : 20u + static_cast<unsigned>((7 * r + 3 * s + static_cast<int>(step)) % 60); };
            std::vector<std::vector<float>> sent(ranks), got(ranks);
            for (int r = 0; r < ranks; ++r) {
                for (int s = 0; s < ranks; ++s) {
                    const std::vector<float> part = gradient<float>(r, step, static_cast<std::size_t>(s), between(r, s));
                    sent[static_cast<std::size_t>(r)].insert(sent[static_cast<std::size_t>(r)].end(), part.begin(), part.end());
                    got[static_cast<std::size_t>(s)].insert(got[static_cast<std::size_t>(s)].end(), part.begin(), part.end());
                }
            }
            const bool damaged = step % 4 == 3;
            if (damaged) std::fill_n(got[1].begin() + 16, 8, 0.0f);
            steps.move(collective::all_to_all, sent, got);
            const step_record& record = steps.end();
            CHECK(names(record, finding_kind::shard_differs, -1, 0) == damaged);
            CHECK((record.calls[0].excess > 1) == damaged);
            CHECK(record.findings.size() == (damaged ? 1 : 0));
        }
    }
}

TEST_CASE("calls whose form is always another one need no memory without end, and raise nothing")
{
    constexpr int ranks = 3;
    own_steps steps(ranks);
    for (std::uint64_t step = 0; step < 200; ++step) {
        steps.all_reduce(gradients<float>(ranks, step, 0, 100 + step));
        CHECK(steps.end().findings.empty());
    }
}

TEST_CASE("who comes late is named, also if the steps lie apart by more than the clock's range")
{
    constexpr int ranks = 4;
    own_steps steps(ranks, {.false_alarms_per_step = 1e-3});
    bool named = false;
    for (std::uint64_t step = 0; step < 120; ++step) {
        for (std::size_t c = 0; c < 2; ++c) {
            steps.all_reduce(gradients<float>(ranks, step, c, 64), {}, "", c);
            for (int r = 0; r < ranks; ++r) {
                // Each rank has a clock of its own, which wraps around between two steps. Rank 2 comes 1 ms late.
                const auto begin = static_cast<clock_stamp>(
                    detail::mix64(static_cast<std::uint64_t>(r)) + step * 0x90000000u + c * 100'000);
                const double jitter = 20 * uniform(step * 10 + c, static_cast<std::uint64_t>(r));
                const double waits = (r == 2 ? 1'000 : 5'000) + jitter; // ticks
                rank_measurement& of = steps.measurement(c, r);
                of.input_done = begin;
                of.result_begun = begin + static_cast<clock_stamp>(waits);
            }
        }
        const step_record& record = steps.end({.follows = false});
        CHECK(is_nan(record.calls[0].lateness.gain_before)); // nobody knows when the call before ended
        for (const finding& found : record.findings) {
            CHECK(found.rank() == 2);
            CHECK(found.what == finding_kind::unlike);
            CHECK(found.evidence.metric == finding_kind::late);
            named = true;
        }
        CHECK(record.lateness.last == 2);
    }
    CHECK(named);
}

TEST_CASE("adjacent steps tell the time between them, others do not")
{
    constexpr int ranks = 2;
    const auto first_call_of_second_step = [](bool follows) {
        own_steps steps(ranks);
        for (clock_stamp step = 0; step < 2; ++step) {
            steps.all_reduce(gradients<float>(ranks, step, 0, 64));
            for (int r = 0; r < ranks; ++r) {
                // Rank 1 works longer before the second step, by 2000 ticks.
                const clock_stamp late = r == 1 ? 2000 * step : 0;
                steps.measurement(0, r).input_done = 10'000 * step + late;
                steps.measurement(0, r).result_begun = 10'000 * step + 5000;
            }
            steps.end({.follows = follows});
        }
        return steps.record.calls[0].lateness;
    };
    const call_lateness told = first_call_of_second_step(true);
    CHECK(told.last == 1);
    CHECK(told.gain_before == 2000 * 256.0);
    CHECK(is_nan(first_call_of_second_step(false).gain_before));
}

TEST_CASE("clean steps raise suspects at the stated rate, and no alarm")
{
    constexpr int ranks = 8;
    constexpr std::uint64_t steps_made
        = COLLPROBE_TEST_UNLESS_BRIEF(10'000, COLLPROBE_TEST_UNLESS_SANITIZED(2'000, 400));
    constexpr double rate = 1e-2; // frequent enough to be measured
    own_steps steps(ranks, {.false_alarms_per_step = rate});
    own_steps rare(ranks);
    alarms raised(ranks);
    std::uint64_t suspicious = 0;
    std::uint64_t exact = 0;
    std::uint64_t alarm_count = 0;
    std::uint64_t rare_suspicious = 0;
    for (std::uint64_t step = 0; step < steps_made; ++step) {
        const auto a = gradients<float>(ranks, step, 0, 200);
        const auto b = gradients<bfloat16>(ranks, step, 1, 300);
        for (own_steps* each : {&steps, &rare}) {
            each->all_reduce(a, {}, "a", 0);
            each->all_reduce(b, {}, "b", 1);
        }
        // As steps come that are sampled, some of them with a call fewer.
        const step_record& record = steps.end({.follows = step % 3 == 0});
        suspicious += record.findings.empty() ? 0 : 1;
        for (const finding& found : record.findings) exact += found.exact ? 1 : 0;
        alarm_count += raised.judge(record).size();
        rare_suspicious += rare.end().findings.empty() ? 0 : 1;
    }
    CHECK(exact == 0);
    MESSAGE(steps_made, " clean steps: suspects in ", suspicious, " at ", rate, " and in ", rare_suspicious,
        " at 1e-4; alarms: ", alarm_count);
    const double expected = rate * static_cast<double>(steps_made);
    CHECK(static_cast<double>(suspicious) <= expected + 4 * std::sqrt(expected));
    CHECK(rare_suspicious <= 4);
    CHECK(alarm_count <= 2);
}

TEST_CASE("merge_ranks refuses what it cannot judge")
{
    step_record record;
    merge_ranks judge(2);
    const merged_call call{.count = 1, .result_count = 1};
    const rank_block block;
    testing::check_error(testing::error_of([&] {
        judge.judge({.calls = {&call, 1}, .blocks = {&block, 1}}, record);
    }), status::invalid_argument, std::vector<std::string>{"one block for each call and rank"});
    testing::check_error(testing::error_of([] { merge_ranks(0); }), status::invalid_argument,
        std::vector<std::string>{"at least 1 rank"});
    testing::check_error(testing::error_of([] { merge_ranks(2, {.false_alarms_per_step = 0}); }),
        status::invalid_argument, std::vector<std::string>{"false_alarms_per_step"});
}

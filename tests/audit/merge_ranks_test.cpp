// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What `merge_ranks` makes of blocks is what `probed` with an audit makes of the same buffers, bit for bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/merge_ranks.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/step/probed.hpp>

#include "rank_blocks.hpp"
#include "support/checks.hpp"
#include "support/difference.hpp"
#include "support/element_types.hpp"
#include "support/run_ranks.hpp"
#include "support/steps.hpp"

using namespace collprobe;
using testing::block_words;
using testing::told;

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

/// A job on some ranks, whose steps are judged together, by `probed`, and apart.
struct job {
    int ranks = 1;
    std::uint64_t steps = 1;
    probe_options options = {};
    audit_options audited = {};
    std::vector<fault> faults = {}; ///< on the way
};

/// What each rank of a job has of a step.
struct rank_step {
    std::vector<merged_call> calls;
    std::vector<block_words> blocks; ///< of the calls
    step_observation observation;
};

/// A rank of a job: makes its calls with `probed`, and reads the same buffers apart.
template <class Comm>
class caller {
public:
    caller(Comm& comm, const job& of, std::uint64_t step, rank_step& out)
        : comm_(comm), job_(of), out_(out), step_(step)
    {
    }

    template <element T>
    void make(collective what, reduction operation, std::uint64_t count, bool in_place, const char* name)
    {
        const auto n = static_cast<std::uint64_t>(comm_.size());
        const bool gathers = what == collective::all_gather;
        const bool scatters = what == collective::reduce_scatter;
        merged_call call{.call = what, .type = element_traits<T>::type, .operation = operation,
            .count = scatters ? count * n : count, .result_count = gathers ? count * n : count, .bucket = no_index,
            .has_shards = gathers, .site = call_site::named(name)};
        call.bins = testing::bins_of<T>(call, job_.audited.conservation);
        std::vector<T> input = input_of<T>(call.count);
        std::vector<T> apart(in_place ? 0 : call.result_count);
        std::vector<T>& result = in_place ? input : apart;
        const bool is_sent = what != collective::broadcast || comm_.rank() == 0;
        const view<const T> sent = is_sent ? view<const T>(input) : view<const T>();
        testing::rank_reader<T> reader(call, sent, what == collective::all_reduce && !in_place);
        if (what == collective::all_reduce)
            comm_.all_reduce(view<const T>(input), view(result), operation, stream_, call.site);
        if (scatters) comm_.reduce_scatter(view<const T>(input), view(result), operation, stream_, call.site);
        if (gathers) comm_.all_gather(view<const T>(input), view(result), stream_, call.site);
        if (what == collective::broadcast) comm_.broadcast(view<const T>(input), view(result), 0, stream_, call.site);
        stream_.synchronize(60'000);
        const auto first = scatters ? static_cast<std::uint64_t>(comm_.rank()) * count : 0;
        out_.blocks.push_back(reader.with_result(view<const T>(result), first));
        out_.calls.push_back(call);
    }
    /// The observation has weights of no sense, losses that are not there and norms that are wrong.
    void end()
    {
        const double ranks_loss = draw(1, 12) == 0 ? std::numeric_limits<double>::infinity()
            : draw(1, 12) == 1                     ? detail::not_given()
                                                   : 2 + 0.1 * normal(step_, static_cast<std::uint64_t>(comm_.rank()));
        double weight = draw(2, 3) == 0 ? 1 : static_cast<double>(draw(3, 5));
        if (draw(4, 20) == 0) weight = -1;
        const float norm = 3;
        step_observation& seen = out_.observation;
        seen = {.loss = ranks_loss, .weight = weight, .loss_is_sum = draw(5, 2) == 0, .loss_scale = 2};
        step_observation told = seen;
        told.weight = &weight;
        if (draw(6, 9) == 0) {
            seen.gradient_norm = norm;
            told.gradient_norm = &norm;
        }
        comm_.end_step(step_, told, stream_);
        stream_.synchronize(60'000);
    }

private:
    std::uint64_t draw(std::uint64_t salt, std::uint64_t below) const
    {
        return detail::mix64(detail::mix64(step_ * 64 + static_cast<std::uint64_t>(comm_.rank())) + salt) % below;
    }
    /// Rank 1 is unlike the others by its scale; and there are all faults that data have.
    template <element T>
    std::vector<T> input_of(std::uint64_t count)
    {
        const std::size_t call = out_.calls.size();
        const std::uint64_t kind = step_ < 20 ? 99 : draw(100 + call, 60);
        const int from = kind == 0 ? (comm_.rank() + 1) % comm_.size() : comm_.rank();
        std::vector<T> data = gradient<T>(from, kind == 1 ? step_ - 1 : step_, call, count);
        if constexpr (floating_element<T>) {
            if (kind == 2) data[7] = static_cast<T>(detail::not_a_number());
            if (kind == 3) data[9] = data[11] = static_cast<T>(0x1.8p127 * (sizeof(T) == 8 ? 0x1p896 : 1));
            const double factor = kind == 4 ? 20 : kind == 5 ? 0 : comm_.rank() == 1 ? 1.5 : 1;
            for (T& each : data) each = static_cast<T>(factor * detail::widen(each));
        }
        return data;
    }

    Comm& comm_;
    const job& job_;
    rank_step& out_;
    host::stream stream_;
    std::uint64_t step_;
};

/// The calls of a step, of all kinds and types; from step 30 on one is missing, from step 40 on another.
template <class Caller>
void make_calls(Caller& on, std::uint64_t step)
{
    on.template make<float>(collective::all_reduce, reduction::sum, 3000, false, "a");
    on.template make<bfloat16>(collective::all_reduce, reduction::average, 2048, true, "b");
    on.template make<float16>(collective::all_reduce, reduction::average, 1111, false, "c");
    if (step < 40) on.template make<double>(collective::all_reduce, reduction::sum, 900, true, "d");
    on.template make<double>(collective::all_reduce, reduction::sum, 900, true, "like d");
    on.template make<float>(collective::reduce_scatter, reduction::sum, 700, false, "e");
    on.template make<bfloat16>(collective::reduce_scatter, reduction::average, 512, false, "f");
    on.template make<float>(collective::broadcast, reduction::sum, 500, true, "g");
    on.template make<std::int32_t>(collective::all_reduce, reduction::sum, 400, false, "h");
    on.template make<float>(collective::all_gather, reduction::sum, 300, false, "i");
    on.template make<std::int32_t>(collective::all_gather, reduction::sum, 200, false, "j");
    if (step < 30) on.template make<std::int64_t>(collective::reduce_scatter, reduction::sum, 60, false, "k");
    on.template make<float>(collective::all_reduce, reduction::max, 100, false, "l");
}

struct judged_twice {
    std::vector<step_record> together; ///< as rank 0 has it
    std::vector<step_record> apart;
};

judged_twice judge_twice(const job& of)
{
    judged_twice judged;
    const auto n = static_cast<std::size_t>(of.ranks);
    std::vector<std::vector<rank_step>> seen(of.steps, std::vector<rank_step>(n));
    testing::local_provider{of.ranks}.run([&](local::communicator& world) {
        probed comm{faulty{world, of.faults}, of.options, audit(of.audited)};
        step_record record;
        for (std::uint64_t step = 0; step < of.steps; ++step) {
            caller on(comm, of, step, seen[step][static_cast<std::size_t>(comm.rank())]);
            make_calls(on, step);
            on.end();
            while (comm.poll(record))
                if (comm.rank() == 0) judged.together.push_back(record);
        }
    });
    REQUIRE(judged.together.size() == of.steps);

    merge_ranks apart(of.ranks, of.options, of.audited);
    step_record record;
    std::uint64_t first_call = 0;
    for (std::size_t step = 0; step < of.steps; ++step) {
        const std::vector<merged_call>& calls = seen[step][0].calls;
        std::vector<rank_block> blocks;
        std::vector<step_observation> observations;
        for (std::size_t c = 0; c < calls.size(); ++c) {
            for (std::size_t r = 0; r < n; ++r) {
                block_words& words = seen[step][r].blocks[c];
                const std::vector<call_interval>& times = judged.together[step].calls[c].intervals;
                if (!times.empty()) { // the clock's
                    rank_measurement& to = rank_call_layout::measurement(reinterpret_cast<unsigned char*>(words.data()));
                    to.input_done = times[r].entered;
                    to.result_begun = times[r].left;
                }
                // An audit reads the shards of an all-gather, and the step then not its result.
                blocks.push_back({testing::bytes_of(words), true, !calls[c].has_shards, 1});
            }
        }
        for (const rank_step& each : seen[step]) observations.push_back(each.observation);
        apart.judge({.step = step, .first_call = first_call, .calls = calls, .blocks = blocks,
                        .observations = observations, .follows = true},
            record);
        first_call += calls.size();
        judged.apart.push_back(record);
    }
    return judged;
}

std::uint64_t steps_with(const std::vector<step_record>& all, finding_kind what)
{
    std::uint64_t steps = 0;
    for (const step_record& record : all)
        steps += std::any_of(record.findings.begin(), record.findings.end(),
            [what](const finding& each) { return each.what == what; });
    return steps;
}

/// Each strikes in one of some calls, on a rank by chance.
std::vector<fault> faults_on_the_way(double probability)
{
    std::vector<fault> all = {
        {.kind = fault_kind::bit_flips, .phase = fault_phase::after, .mask = 16},
        {.kind = fault_kind::scale, .phase = fault_phase::during, .magnitude = 3},
        {.kind = fault_kind::zero_slice, .phase = fault_phase::after},
        {.kind = fault_kind::bit_flips, .phase = fault_phase::during, .mask = 64},
        {.kind = fault_kind::infinity, .phase = fault_phase::after},
        {.kind = fault_kind::swap, .phase = fault_phase::after},
    };
    for (fault& each : all) {
        each.rank = fault::random_rank;
        each.call = 240;
        each.period = 1;
        each.probability = probability;
        each.seed = static_cast<std::uint64_t>(&each - all.data()) + 1;
    }
    return all;
}

} // namespace

TEST_CASE("merge_ranks makes of blocks the record that probed makes of messages, with the same options")
{
    constexpr double floor = 50'000;
    const probe_options ways[] = {
        {.lateness_floor_ns = floor},
        {.lateness_floor_ns = floor, .false_alarms_per_step = 0.02, .false_alarms_per_run = 0.1, .tolerance = 0.05},
        {.times = false, .tolerance = 2},
        {.lateness_floor_ns = 1e6, .false_alarms_per_run = 0},
        {.results = false},
        {.statistics = false},
    };
    std::vector<step_record> all;
    std::uint64_t turn = 0;
    for (const int ranks : {1, 2, 3, 8}) {
        for (const probe_options& way : ways) {
            job of{ranks, COLLPROBE_TEST_UNLESS_BRIEF(64, 48), way, {}, faults_on_the_way(0.01)};
            if (++turn % 2 == 1) {
                for (int r = 0; r < ranks; ++r) of.options.groups.push_back(r == 1 ? 7 : r % 2);
                of.audited.conservation = {.sketch = {.bins = 128}, .order = rounding_order::tree};
                of.audited.sums = turn % 4 == 1;
            }
            CAPTURE(ranks);
            CAPTURE(turn);
            judged_twice judged = judge_twice(of);
            for (std::size_t step = 0; step < of.steps; ++step) {
                CAPTURE(step);
                CHECK(testing::difference(judged.together[step], judged.apart[step]) == "");
            }
            for (step_record& each : judged.apart) all.push_back(std::move(each));
        }
        ++turn;
    }
    for (const finding_kind each : {finding_kind::non_finite, finding_kind::duplicate, finding_kind::stale,
             finding_kind::result_differs, finding_kind::sum_differs, finding_kind::shard_differs,
             finding_kind::overflow, finding_kind::gradient_norm, finding_kind::unlike, finding_kind::norm_differs,
             finding_kind::call_missing}) {
        CAPTURE(name(each));
        CHECK(steps_with(all, each) > 0);
    }
}

namespace {

/// Steps of all-reduces that are made here, one rank after the other, and judged.
class own_steps {
public:
    own_steps(int ranks, const probe_options& options = {}) : judge(ranks, options), ranks_(ranks) {}

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

} // namespace

TEST_CASE("without digests of its shards an all-gather is judged by the whole result")
{
    constexpr int ranks = 4;
    own_steps steps(ranks);
    for (std::uint64_t step = 0; step < 3; ++step) {
        std::vector<std::vector<float>> shards = gradients<float>(ranks, step, 0, 600);
        if (step == 2) shards[3] = gradients<float>(ranks, 1, 0, 600)[3];
        std::vector<std::vector<float>> got(ranks);
        for (std::vector<float>& whole : got)
            for (const std::vector<float>& shard : shards) whole.insert(whole.end(), shard.begin(), shard.end());
        if (step == 1) got[2][700] += 1;
        steps.move(collective::all_gather, shards, got);
        const step_record& record = steps.end();
        CHECK(record.calls[0].has_result_digest); // which an audit by shards does not take
        CHECK(record.calls[0].audit.checked);
        CHECK(record.calls[0].audit.culprits == (step == 1 ? std::vector<int>{2} : std::vector<int>()));
        CHECK(told(record) == (step == 0 ? "" : step == 1 ? "result_differs 2 in 0" : "stale 3 in 0"));
    }
}

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
    CHECK(told(record) == "non_finite 1 in 0; result_differs 3 in 0");
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
    CHECK(told(record) == "non_finite 0 in 1; result_differs 1 in 2"); // what another rank sent is known
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
    REQUIRE(told(stale) == "stale 2 in 0");
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
            CHECK(told(record) == (damaged ? "shard_differs in 0" : ""));
            CHECK((record.calls[0].excess > 1) == damaged);
        }
    }
}

TEST_CASE("adjacent steps tell the time between them, others do not, and their clocks may have wrapped around")
{
    for (const bool follows : {true, false}) {
        own_steps steps(2);
        for (clock_stamp step = 0; step < 2; ++step) {
            steps.all_reduce(gradients<float>(2, step, 0, 64));
            for (int r = 0; r < 2; ++r) {
                // Rank 1 works longer before the second step, by 2000 ticks.
                const clock_stamp begin = (follows ? 10'000u : 0x90000000u) * step + (r == 1 ? 2000 * step : 0);
                steps.measurement(0, r).input_done = begin;
                steps.measurement(0, r).result_begun = (follows ? 10'000u : 0x90000000u) * step + 5000;
            }
            steps.end({.follows = follows});
        }
        const call_lateness& told = steps.record.calls[0].lateness;
        CHECK(told.last == 1);
        CHECK(told.spread == 2000 * 256.0);
        if (follows) CHECK(told.gain_before == 2000 * 256.0);
        else CHECK(is_nan(told.gain_before)); // nobody knows when the call before ended
    }
}

TEST_CASE("merge_ranks refuses what it cannot judge")
{
    step_record record;
    merge_ranks judge(2);
    const merged_call call{.count = 1, .result_count = 1};
    const rank_block block;
    const step_observation lone;
    const auto refuses = [](const auto& make, const char* part) {
        testing::check_error(testing::error_of(make), status::invalid_argument, std::vector<std::string>{part});
    };
    refuses([&] { judge.judge({.calls = {&call, 1}, .blocks = {&block, 1}}, record); }, "one block for each call and rank");
    refuses([] { merge_ranks(0); }, "at least 1 rank");
    refuses([&] { judge.judge({.observations = {&lone, 1}}, record); }, "an observation of each rank, or none");
    refuses([] { merge_ranks(2, {.false_alarms_per_step = 0}); }, "false_alarms_per_step");
    refuses([] { merge_ranks(2, {.false_alarms_per_run = 1}); }, "false_alarms_per_run");
    refuses([] { merge_ranks(2, {.tolerance = -1}); }, "tolerance");
    refuses([] { merge_ranks(2, {.groups = {0, 0, 1}}); }, "groups");
    refuses([] { merge_ranks(2, {.lateness_floor_ns = -1}); }, "lateness_floor_ns");
}

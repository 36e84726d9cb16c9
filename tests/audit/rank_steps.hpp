// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/merge_ranks.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/step/probed.hpp>

#include "rank_blocks.hpp"
#include "support/run_ranks.hpp"

/// Steps of all kinds of calls with all faults, judged by `probed`, and what each rank measured of them apart.
namespace collprobe::testing {

inline double uniform(std::uint64_t seed, std::uint64_t index)
{
    return static_cast<double>(detail::mix64(seed + (index + 1) * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}
/// Roughly a standard normal number: of four 16-bit numbers, since tests are not optimised.
inline double normal(std::uint64_t seed, std::uint64_t index)
{
    std::uint64_t bits = detail::mix64(seed + (index + 1) * 0x9e3779b97f4a7c15u), sum = 0;
    for (int i = 0; i < 4; ++i, bits >>= 16) sum += bits & 0xffff;
    return (static_cast<double>(sum) / 65536 - 2) * 1.7320508;
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
struct ranked_job {
    int ranks = 1;
    std::uint64_t steps = 1;
    probe_options options = {};
    audit_options audited = {};
    std::vector<fault> faults = {}; ///< on the way
    std::uint64_t calls_with_fault = 60; ///< in one of so many, from step 20 on, a rank's data have one
    bool names_differ = false; ///< at times on a rank; then nothing is known apart
    std::uint64_t other_step = ~std::uint64_t{0}; ///< whose calls are those of no step before, apart
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
    caller(Comm& comm, const ranked_job& of, std::uint64_t step, rank_step& out)
        : comm_(comm), job_(of), out_(out), step_(step), turns_(step > 36 && draw(7, 15) == 0)
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
        call.bins = bins_of<T>(call, job_.audited.conservation);
        if (job_.names_differ && draw(300 + out_.calls.size(), 300) == 0) call.site = call_site::named("other");
        std::vector<T> input = input_of<T>(call.count);
        std::vector<T> apart(in_place ? 0 : call.result_count);
        std::vector<T>& result = in_place ? input : apart;
        const bool is_sent = what != collective::broadcast || comm_.rank() == 0;
        const view<const T> sent = is_sent ? view<const T>(input) : view<const T>();
        rank_reader<T> reader(call, sent, what == collective::all_reduce && !in_place);
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
        const double ranks_loss = draw(1, job_.calls_with_fault / 5) == 0 ? std::numeric_limits<double>::infinity()
            : draw(1, job_.calls_with_fault / 5) == 1 ? detail::not_given()
            : step_ > 36 && draw(1, 90) == 2          ? 50
                                                   : 2 + 0.1 * normal(step_, static_cast<std::uint64_t>(comm_.rank()));
        double weight = draw(2, 3) == 0 ? 1 : static_cast<double>(draw(3, 5) + (job_.calls_with_fault > 60 ? 1 : 0));
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
        const std::uint64_t kind = step_ < 20 ? 99 : draw(100 + call, job_.calls_with_fault);
        const int from = kind == 0 ? (comm_.rank() + 1) % comm_.size() : comm_.rank();
        std::vector<T> data = gradient<T>(from, kind == 1 ? step_ - 1 : step_, call, count);
        if constexpr (floating_element<T>) {
            if (kind == 2) data[7] = static_cast<T>(detail::not_a_number());
            if (kind == 3) data[9] = data[11] = static_cast<T>(0x1.8p127 * (sizeof(T) == 8 ? 0x1p896 : 1));
            const double factor = kind == 4 ? 20 : kind == 5 ? 0 : turns_ ? -1 : comm_.rank() == 1 ? 1.5 : 1;
            for (T& each : data) each = static_cast<T>(factor * detail::widen(each));
        }
        return data;
    }

    Comm& comm_;
    const ranked_job& job_;
    rank_step& out_;
    host::stream stream_;
    std::uint64_t step_;
    bool turns_; ///< the rank's gradient has the other sign
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

/// What the ranks have of each step.
using rank_steps = std::vector<std::vector<rank_step>>;

/// The records that rank 0 has of the job.
inline std::vector<step_record> judge_together(const ranked_job& of, rank_steps& seen)
{
    std::vector<step_record> judged;
    seen.assign(of.steps, std::vector<rank_step>(static_cast<std::size_t>(of.ranks)));
    local_provider{of.ranks}.run([&](local::communicator& world) {
        probed comm{faulty{world, of.faults}, of.options, audit(of.audited)};
        step_record record;
        for (std::uint64_t step = 0; step < of.steps; ++step) {
            caller on(comm, of, step, seen[step][static_cast<std::size_t>(comm.rank())]);
            make_calls(on, step);
            on.end();
            while (comm.poll(record))
                if (comm.rank() == 0) judged.push_back(record);
        }
        while (comm.wait(record))
            if (comm.rank() == 0) judged.push_back(record);
    });
    REQUIRE(judged.size() == of.steps);
    return judged;
}

/// Those that `merge_ranks` makes of what the ranks have. `timed`: records with the times of the calls.
inline std::vector<step_record> judge_apart(const ranked_job& of, rank_steps& seen, const std::vector<step_record>& timed)
{
    std::vector<step_record> judged;
    const auto n = static_cast<std::size_t>(of.ranks);
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
                const std::vector<call_interval>& times = timed[step].calls[c].intervals;
                if (!times.empty()) { // the clock's
                    rank_measurement& to = rank_call_layout::measurement(reinterpret_cast<unsigned char*>(words.data()));
                    to.input_done = times[r].entered;
                    to.result_begun = times[r].left;
                }
                // An audit reads the shards of an all-gather, and the step then not its result.
                blocks.push_back({bytes_of(words), true, !calls[c].has_shards, 1});
            }
        }
        for (const rank_step& each : seen[step]) observations.push_back(each.observation);
        apart.judge({.step = step, .first_call = first_call, .calls = calls, .blocks = blocks,
                        .observations = observations, .repeats = step != of.other_step, .follows = true},
            record);
        first_call += calls.size();
        judged.push_back(record);
    }
    return judged;
}
inline std::uint64_t steps_with(const std::vector<step_record>& all, finding_kind what)
{
    std::uint64_t steps = 0;
    for (const step_record& record : all)
        steps += std::any_of(record.findings.begin(), record.findings.end(),
            [what](const finding& each) { return each.what == what; });
    return steps;
}

/// Each strikes in one of some calls, on a rank by chance.
inline std::vector<fault> faults_on_the_way(double probability)
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

} // namespace collprobe::testing

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a step remembers of a call: by what the call is, not by its place in the step; and the same on all ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/step/detail/call_series.hpp>

#include "support/failing_part.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::call_series_test {
namespace {

detail::probed_call call_of(std::uint64_t place, std::uint64_t count, collective what = collective::all_reduce)
{
    return {.call = what, .count = count, .place = place};
}

/// Elements that no other rank, step or call has.
void fill(std::vector<float>& send, int rank, std::uint64_t step, std::uint64_t call)
{
    std::mt19937 random(static_cast<unsigned>((step * 64 + call) * 64 + static_cast<std::uint64_t>(rank)));
    std::normal_distribution<float> normal;
    for (float& x : send) x = normal(random);
}

/// While it `loses`, a report of a step comes to this rank as zeros.
class losing : public adaptor<losing, local::communicator> {
public:
    losing(const local::communicator& of, const bool& loses) : adaptor(of), loses_(&loses) {}

    losing& innermost() noexcept { return *this; }
    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        adaptor::make<T>(call, on);
        const view<T> received(static_cast<T*>(call.receive), call.receive_count);
        if (*loses_ && (call.what == collective::all_gather || call.operation == reduction::max))
            on.enqueue([received] { std::fill(received.begin(), received.end(), T{}); });
    }

private:
    const bool* loses_;
};

int stale_of(const step_record& record, int rank, const std::string& name)
{
    int found = 0;
    for (const finding& each : record.findings) {
        if (each.what != finding_kind::stale) continue;
        CHECK(each.rank() == rank);
        CHECK(std::string(each.site.name) == name);
        ++found;
    }
    return found;
}

} // namespace

TEST_CASE("calls are known again as an oracle knows them, with bounded memory")
{
    std::mt19937 random(7);
    detail::call_series series;
    // By place, count and order: the series and the last step with it.
    std::map<std::vector<std::uint64_t>, std::pair<std::uint64_t, std::uint64_t>> known;
    std::size_t largest = 0;
    std::uint64_t forgotten = 0;
    for (std::uint64_t step = 1; step <= 3000; ++step) {
        const bool changes = step % 7 == 0; // counts of this step's own
        std::vector<detail::probed_call> calls;
        const std::size_t many = random() % 12;
        for (std::size_t c = 0; c < many; ++c)
            calls.push_back(call_of(random() % 4, changes ? 1000 * step + c : random() % 7));
        largest = std::max(largest, calls.size());
        const view<const detail::series_place> found = series.find({calls.data(), calls.size()}, true);
        REQUIRE(found.size() == calls.size());
        std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> order;
        std::vector<std::uint32_t> slots;
        for (std::size_t c = 0; c < calls.size(); ++c) {
            const std::uint64_t own = order[{calls[c].place, calls[c].count}]++;
            auto& [number, last] = known[{calls[c].place, calls[c].count, own}];
            if (number == found[c].number) CHECK(last < step);
            else {
                CHECK(found[c].number > number); // a new one, or one that was forgotten
                if (number != 0) CHECK(step - last >= 4); // of the last steps all are known
                forgotten += number != 0 ? 1 : 0;
            }
            number = found[c].number;
            last = step;
            slots.push_back(found[c].slot);
        }
        std::sort(slots.begin(), slots.end());
        CHECK(std::adjacent_find(slots.begin(), slots.end()) == slots.end());
        CHECK(series.slots() <= 4 * largest + 32);
    }
    CHECK(forgotten > 0);
}

TEST_CASE("a repeated gradient is named in each step, whatever calls come and go around it")
{
    enum class around { nothing, one_more_each_step, at_times_before, at_times_alike, names_of_ranks };
    for (const around what : {around::nothing, around::one_more_each_step, around::at_times_before,
             around::at_times_alike, around::names_of_ranks}) {
        CAPTURE(static_cast<int>(what));
        const char* const own_names[] = {"a", "b", "c", "d"};
        int found = 0;
        for (const step_record& record : testing::records_of({.steps = 20, .has_own_names = true}, [&](auto& comm, auto& stream, int s, auto&) {
                 const auto step = static_cast<std::uint64_t>(s);
                 const auto reduce = [&](std::size_t count, std::uint64_t version, std::uint64_t call, const char* name) {
                     std::vector<float> send(count), receive(count);
                     fill(send, comm.rank(), version, call);
                     comm.all_reduce(send, view(receive), reduction::average, stream, call_site::named(name));
                     stream.synchronize();
                 };
                 const bool is_at_times = what == around::at_times_before || what == around::at_times_alike;
                 const std::uint64_t calls = what == around::one_more_each_step ? step : is_at_times && step % 3 == 0 ? 1 : 0;
                 for (std::uint64_t c = 0; c < calls; ++c) reduce(what == around::at_times_alike ? 512 : 500, step, 1 + c, "extra");
                 reduce(512, comm.rank() == 1 && step > 2 ? 2 : step, 0,
                     what == around::names_of_ranks ? own_names[comm.rank()] : "gradient");
             }))
            found += stale_of(record, 1, what == around::names_of_ranks ? own_names[3] : "gradient"); // as the last rank has it
        CHECK(found == 17);
    }
}

TEST_CASE("saved evidence goes on with the call that it is of, whatever its index")
{
    local::run(8, [](local::communicator& world) {
        host::stream stream;
        std::vector<float> send(256), receive(256), other(255), result(255);
        const auto step_of = [&](auto& probe, std::uint64_t step, bool turned, step_record& record) {
            fill(send, world.rank(), step, 0);
            if (world.rank() == 3)
                for (float& x : send) x *= 1.3f;
            fill(other, world.rank(), step, 1);
            for (int i = 0; i < 2; ++i) {
                if ((i == 0) != turned)
                    probe.all_reduce(send, view(receive), reduction::average, stream, call_site::named("a"));
                else probe.all_reduce(other, view(result), reduction::average, stream, call_site::named("b"));
            }
            probe.end_step(step, stream);
            REQUIRE(probe.wait(record));
        };
        step_record record;
        step_record straight;
        probed through{world};
        probed before{world};
        for (std::uint64_t step = 0; step < 12; ++step) {
            step_of(before, step, false, record);
            step_of(through, step, false, straight);
        }
        const std::vector<std::uint64_t> state = before.evidence_state();
        probed after{world};
        after.restore_evidence({state.data(), state.size()});
        CHECK(after.evidence_state() == state);
        for (std::uint64_t step = 12; step < 40; ++step) {
            step_of(after, step, true, record);
            step_of(through, step, false, straight);
            for (int r = 0; r < world.size(); ++r) {
                const rank_evidence& a = record.evidence_by_rank[static_cast<std::size_t>(r)];
                const rank_evidence& b = straight.evidence_by_rank[static_cast<std::size_t>(r)];
                CHECK(a.odds == b.odds);
                CHECK(a.since == b.since);
                CHECK(a.call == (b.call < 0 ? -1 : 1 - b.call));
            }
        }
        std::vector<std::uint64_t> damaged = state;
        damaged[2] ^= 1;
        CHECK_THROWS_AS(after.restore_evidence({damaged.data(), damaged.size()}), error);
    });
}

TEST_CASE("steps that are lost on one rank make all forget, so that their records are the same again")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        CAPTURE(name(mode));
        std::vector<std::vector<step_record>> seen(4, std::vector<step_record>(32));
        std::vector<std::vector<std::uint64_t>> state(4);
        local::run(4, [&](local::communicator& world) {
            host::stream stream;
            const auto own = static_cast<std::size_t>(world.rank());
            bool loses = false;
            probed probe{losing(world, loses), {.mode = mode}, failing_part{world.rank() == 1}}; // which fails in step 5
            std::vector<float> common(256), send(256), receive(256);
            std::mt19937 shared(1);
            std::normal_distribution<float> normal;
            for (float& x : common) x = normal(shared);
            step_record record;
            for (std::uint64_t step = 0; step < 32; ++step) {
                const std::uint64_t made = step == 8 && world.rank() == 0 ? 7 : step; // a repeat of what is forgotten
                fill(send, world.rank(), made, 0);
                // From step 8 on the ranks have less in common: who remembers step 7 predicts another cosine.
                for (std::size_t i = 0; i < send.size(); ++i) send[i] += (made < 8 ? 2.0f : 0.5f) * common[i];
                // In the last lost step zeros, another value and bad losses of most ranks begin; then calls are made no more.
                if (step >= 7 && world.rank() == 3) send.assign(256, 0.0f);
                probe.all_reduce(send, view(receive), reduction::average, stream);
                for (std::uint64_t more = step == 7 ? 20 : step < 8 ? 1 : 0; more > 0; --more)
                    probe.all_reduce(view(send).part(0, 12 * more), view(receive).part(0, 12 * more), reduction::average, stream);
                probe.expect_equal("seed", step >= 7 && world.rank() == 2 ? 8 : 7);
                // A bad loss of another rank must not hide that the step was lost.
                double loss = 2 + 0.1 * send[0];
                if (step == 30 && world.rank() == 0) loss = 1000;
                if ((step == 7 || step == 8) && world.rank() != 0) loss = std::numeric_limits<double>::infinity();
                loses = (step == 6 || step == 7) && world.rank() == 1;
                probe.end_step(step, {.loss = loss}, stream);
                if (loses || (step == 5 && world.rank() == 1)) {
                    CHECK_THROWS_AS(probe.wait(record), error);
                    continue;
                }
                REQUIRE(probe.wait(record));
                CHECK(record.step == step);
                CHECK(record.forgot == (step >= 6 && step <= 8));
                seen[own][step] = record;
            }
            state[own] = probe.evidence_state();
        });
        for (std::size_t r = 1; r < 4; ++r) {
            CHECK(state[r] == state[0]);
            for (std::size_t step = 8; step < 32; ++step) CHECK(testing::difference(seen[r][step], seen[0][step]) == "");
        }
        CHECK(seen[0][8].expectations[0].since == 8);
        for (const finding_kind past : {finding_kind::call_missing, finding_kind::stale})
            CHECK(testing::findings_of(seen[0][8], past).empty());
        CHECK(testing::findings_of(seen[0][23], finding_kind::zeros).size() == 1); // since step 8
        CHECK(testing::findings_of(seen[0][30], finding_kind::loss).size() == 1);
    }
}

TEST_CASE("evidence that is restored after a lost step stays")
{
    local::run(4, [](local::communicator& world) {
        host::stream stream;
        probed probe{world, {.times = false}, failing_part{world.rank() == 1}};
        std::vector<float> send(64), receive(64);
        std::vector<std::uint64_t> saved;
        step_record record;
        for (std::uint64_t step = 0; step < 30; ++step) {
            fill(send, world.rank(), step, 0);
            if (world.rank() == 2)
                for (float& x : send) x *= 1.6f;
            probe.all_reduce(send, view(receive), reduction::sum, stream);
            if (step < 6) probe.all_reduce(send, view(receive), reduction::sum, stream);
            probe.end_step(step, stream);
            if (step == 5 && world.rank() == 1) CHECK_THROWS_AS(probe.wait(record), error);
            else REQUIRE(probe.wait(record));
            if (step == 4) saved = probe.evidence_state();
            if (step == 5) probe.restore_evidence({saved.data(), saved.size()}); // back to the checkpoint
            if (step > 5) CHECK_FALSE(record.forgot);
            CHECK(testing::findings_of(record, finding_kind::call_missing).empty()); // what was before is another run's
        }
        // Odds of 24 steps and the five saved ones.
        CHECK(record.evidence_by_rank[2].odds > 1000);
    });
}

} // namespace collprobe::testing::call_series_test

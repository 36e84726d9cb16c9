// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/quant/quantisation_probe.hpp>

#include "quant/quantised_ranks.hpp"

using namespace collprobe;
using namespace collprobe::testing;
using std::uint64_t;

namespace {

using state_bytes = std::vector<std::uint8_t>;
view<const std::uint8_t> bytes_of_state(const state_bytes& state) { return {state.data(), state.size()}; }

/// The largest error of one rounding to int4 of elements up to `magnitude`, to which an error of its own is
/// added.
double largest_residual(double magnitude)
{
    const double up = 1 + 0x1p-7;
    return magnitude * up / 7 / (1 - up / 14) / 2;
}

/// Elements in -1 to 1 of a rank and step.
void draw(std::vector<float>& x, int rank, uint64_t step)
{
    std::mt19937 random(static_cast<unsigned>(step * 64) + static_cast<unsigned>(rank) + 1);
    for (float& v : x) v = static_cast<float>(random() >> 8) * 0x1p-23f - 1;
}

/// Averages of random gradients of the steps from `first` on, one after the other; two calls a step.
template <class Comm>
std::vector<float> train(Comm& comm, uint64_t first, uint64_t steps, const host::stream& stream)
{
    std::vector<float> x(1000);
    std::vector<float> part(x.size() / static_cast<std::size_t>(comm.size()));
    std::vector<float> all;
    for (uint64_t step = first; step < first + steps; ++step) {
        draw(x, comm.rank(), step);
        view<const float> send
            = view<const float>(x).part(0, part.size() * static_cast<std::size_t>(comm.size()));
        comm.reduce_scatter(send, view<float>(part), reduction::average, stream);
        comm.all_reduce(view<const float>(x), view<float>(x), reduction::average, stream);
        comm.next_step(stream);
        stream.synchronize(soon_ms);
        all.insert(all.end(), part.begin(), part.end());
        all.insert(all.end(), x.begin(), x.end());
    }
    return all;
}

bool same_bits(const std::vector<float>& a, const float* b, std::size_t count)
{
    return a.size() == count && std::memcmp(a.data(), b, count * sizeof(float)) == 0;
}

} // namespace

TEST_CASE("the accumulated error stays below one residual of each rounding, over 1000 steps")
{
    for (const error_feedback kept : {error_feedback::all, error_feedback::owner, error_feedback::none}) {
        for (const bool constant : {true, false}) {
            CAPTURE(name(kept));
            CAPTURE(constant);
            double drift = 0;
            const quantisation how{.format = code_format::int4, .block = 32, .feedback = kept};
            on_ranks({0, 2}, how, how, {.least_bytes = 1}, [&](auto& comm) {
                const host::stream stream;
                quantised decoder(
                    comm.base(), {.format = code_format::int4, .block = 32}, {.least_bytes = 1});
                std::vector<float> x(70), result(70), decoded(140);
                std::vector<double> difference(70);
                for (uint64_t step = 0; step < 1000; ++step) {
                    if (step == 0 || !constant) draw(x, comm.rank(), step);
                    comm.all_reduce(view<const float>(x), view<float>(result), reduction::average, stream);
                    comm.next_step(stream);
                    // What goes into the sum: the elements, or without feedback of the ranks what they decode
                    // to.
                    if (kept == error_feedback::all)
                        comm.base().all_gather(view<const float>(x), view<float>(decoded), stream);
                    else decoder.all_gather(view<const float>(x), view<float>(decoded), stream);
                    stream.synchronize(soon_ms);
                    for (std::size_t i = 0; i < 70; ++i)
                        difference[i]
                            += double{result[i]} - (double{decoded[i]} + double{decoded[70 + i]}) / 2;
                }
                if (comm.rank() != 0) return;
                for (const double each : difference) drift = std::max(drift, std::abs(each));
            });
            const double own = largest_residual(1);
            const double bound = kept == error_feedback::all ? own + largest_residual(1 + own) : own;
            if (kept == error_feedback::none) CHECK(drift > 3 * bound);
            else CHECK(drift <= bound);
        }
    }
}

TEST_CASE("the errors of blocks that became zero vanish, and do no harm")
{
    const quantisation how{.format = code_format::int4, .block = 32, .feedback = error_feedback::all};
    on_ranks({0, 2}, how, how, {.least_bytes = 1}, [&](auto& comm) {
        const host::stream stream;
        std::vector<float> x(64), result(64);
        std::vector<double> total(64);
        draw(x, comm.rank(), 0);
        for (const float size : {1.0f, 0x1p-120f}) {
            std::vector<float> sent(x);
            for (float& v : sent) v *= size;
            for (int step = 0; step < 500; ++step) {
                comm.all_reduce(view<const float>(sent), view<float>(result), reduction::average, stream);
                comm.next_step(stream);
                stream.synchronize(soon_ms);
                for (const float v : result) require(is_finite(v), "a result is not finite");
                std::fill(sent.begin(), sent.end(), 0.0f);
            }
            for (const float v : result)
                require(std::abs(v) < 0x1p-120f, "an error stayed: " + std::to_string(v));
        }
        for (int step = 0; step < 50; ++step) {
            comm.all_reduce(view<const float>(x), view<float>(result), reduction::average, stream);
            comm.next_step(stream);
            stream.synchronize(soon_ms);
            for (std::size_t i = 0; i < 64; ++i) total[i] += double{result[i]};
        }
        std::vector<float> both(128);
        comm.base().all_gather(view<const float>(x), view<float>(both), stream);
        stream.synchronize(soon_ms);
        for (std::size_t i = 0; i < 64; ++i) {
            const double wanted = 25 * (double{both[i]} + double{both[64 + i]});
            require(std::abs(total[i] - wanted) < 0.4,
                "after the zeros: off by " + std::to_string(total[i] - wanted));
        }
    });
}

TEST_CASE("training goes on with the same bits from a saved state")
{
    const auto all = error_feedback::all;
    const quantisation kinds[] = {{.format = code_format::int4, .feedback = all},
        {.format = code_format::int4, .rotate = true, .feedback = error_feedback::owner},
        {.format = code_format::int4, .rounding = code_rounding::stochastic}};
    for (const shape of : {shape{0, 3}, shape{2, 2}}) {
        for (const quantisation& how : kinds) {
            std::vector<std::string> problems(static_cast<std::size_t>(of.ranks()));
            local::run(of.ranks(), {.timeout_ms = soon_ms}, [&](local::communicator& world) {
                std::string& problem = problems[static_cast<std::size_t>(world.rank())];
                const auto test = [&](auto& whole, auto& before, auto& after, auto& without) {
                    const host::stream stream;
                    const std::vector<float> wanted = train(whole, 0, 8, stream);
                    const std::size_t half = wanted.size() / 2;
                    (void)train(before, 0, 4, stream);
                    const state_bytes state = before.save(stream);
                    const restored_feedback did = after.restore(bytes_of_state(state), stream);
                    if (!did.why.empty() || did.dropped != 0) problem = "dropped: " + did.why;
                    if ((did.calls != 0) != (how.feedback != error_feedback::none)) problem = "calls";
                    if (after.save(stream) != state) problem = "another state";
                    if (!same_bits(train(after, 4, 4, stream), wanted.data() + half, half))
                        problem = "other bits";
                    if (same_bits(train(without, 4, 4, stream), wanted.data() + half, half))
                        problem = "the state makes no difference";
                    // Once more, into the memory of a run that is under way.
                    (void)before.restore(bytes_of_state(state), stream);
                    if (!same_bits(train(before, 4, 4, stream), wanted.data() + half, half))
                        problem = "not again";
                    if (after.feedback_dropped() + before.feedback_dropped() != 0)
                        problem = "counted as dropped";
                };
                if (of.nodes == 0) {
                    quantised a(world, how, tiny), b(world, how, tiny), c(world, how, tiny),
                        d(world, how, tiny);
                    test(a, b, c, d);
                } else {
                    node_groups nodes(world, of.per_node);
                    quantised a(world, nodes, how, how, tiny), b(world, nodes, how, how, tiny);
                    quantised c(world, nodes, how, how, tiny), d(world, nodes, how, how, tiny);
                    test(a, b, c, d);
                }
            });
            for (const std::string& problem : problems) CHECK(problem == "");
        }
    }
}

TEST_CASE("a state of another layout is dropped, counted, and said to be in the record")
{
    const quantisation how{.format = code_format::int4, .feedback = error_feedback::all};
    state_bytes state;
    on_ranks({0, 2}, how, how, {.least_bytes = 1}, [&](auto& comm) {
        const host::stream stream;
        (void)train(comm, 0, 2, stream);
        state_bytes mine = comm.save(stream);
        if (comm.rank() == 0) state = mine;
    });
    const auto restored_by = [&](int ranks, const quantisation& other, const std::string& why) {
        std::string table;
        on_ranks({0, ranks}, other, other, {.least_bytes = 1}, [&](auto& comm) {
            const host::stream stream;
            probed probe(std::move(comm), {}, quantisation_probe());
            const restored_feedback did = probe.base().restore(bytes_of_state(state), stream);
            if (probe.rank() == 0) require(did.why == why && did.dropped == 2 && did.calls == 0, did.why);
            std::vector<float> x(1000, 0.3f);
            for (uint64_t step = 0; step < 2; ++step) {
                probe.all_reduce(view<const float>(x), view<float>(x), reduction::average, stream);
                probe.end_step(step, stream);
                step_record record;
                require(probe.wait(record), "no record");
                const feedback_state said = record.calls[0].quantisation.outcome.feedback;
                require(
                    said == (step == 0 ? feedback_state::dropped : feedback_state::continued), name(said));
                if (probe.rank() == 0 && step == 0) table = report::step_table(record);
            }
            require(probe.base().feedback_dropped() == 1, "the count");
        });
        CHECK(table.find("the errors kept for this call were dropped") != std::string::npos);
    };
    quantisation other = how;
    other.block = 64;
    restored_by(2, other, "block is 64, and 128 in the saved state");
    other = how;
    other.format = code_format::int8;
    restored_by(2, other, "within.format is 0, and 1 in the saved state");
    restored_by(3, how, "size is 3, and 2 in the saved state");

    // Calls and pieces of another size are noticed when the calls are made.
    for (const bool pieces : {false, true}) {
        const quantised_options memory{.least_bytes = 1, .scratch_bytes = pieces ? 2048u : 1u << 20};
        on_ranks({0, 2}, how, how, memory, [&](auto& comm) {
            const host::stream stream;
            state_bytes mine = state;
            mine[sizeof(uint64_t) * 4] = static_cast<std::uint8_t>(comm.rank()); // of this rank
            const restored_feedback restored = comm.restore(bytes_of_state(mine), stream);
            require(restored.calls == 2 && restored.dropped == 0, restored.why);
            std::vector<float> x(pieces ? 1000 : 998, 0.3f), part(x.size() / 2);
            const auto did
                = comm.reduce_scatter(view<const float>(x), view<float>(part), reduction::average, stream);
            stream.synchronize(soon_ms);
            require(
                did.feedback == feedback_state::dropped && comm.feedback_dropped() == 1, name(did.feedback));
        });
    }
}

TEST_CASE("bytes that are no state, and calls within a step, are refused")
{
    on_ranks({0, 2}, {.feedback = error_feedback::owner}, {}, tiny, [&](auto& comm) {
        const host::stream stream;
        (void)train(comm, 0, 1, stream);
        const state_bytes state = comm.save(stream);
        const auto refusal = [&](const state_bytes& bytes) -> std::string {
            try {
                (void)comm.restore(bytes_of_state(bytes), stream);
            } catch (const error& e) {
                return e.what();
            }
            return "";
        };
        const auto says = [](const std::string& text, const char* part) {
            require(text.find(part) != std::string::npos, text + " does not say: " + part);
        };
        says(refusal({}), "shorter than its header");
        state_bytes other = state;
        other[0] ^= 1;
        says(refusal(other), "no state that save has returned");
        for (const std::size_t size : {state.size() - 1, state.size() / 2 + 60, std::size_t{140}})
            says(refusal(state_bytes(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(size))),
                "ends in its middle");
        other = state;
        other.push_back(0);
        says(refusal(other), "bytes behind its end");
        require(comm.save(stream) == state, "a refused state has changed something");

        std::vector<float> x(1000, 1.0f);
        comm.all_reduce(view<const float>(x), view<float>(x), reduction::sum, stream);
        says(refusal(state), "the step has calls already");
        comm.next_step(stream);
        require(refusal(state).empty(), "refused between the steps");
        stream.synchronize(soon_ms);
    });
}

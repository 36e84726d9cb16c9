// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/guard/quantised_all_gather.hpp>
#include <collprobe/guard/shard.hpp>

#include "guard/quantised_weights.hpp"
#include "support/checks.hpp"
#include "support/count_allocations.hpp"
#include "support/host_gate.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
using namespace collprobe::testing;

using std::uint64_t;

namespace {

using device = host::device;
template <class T>
using quantised_weights = quantised_all_gather<local::communicator, T>;
using bytes = std::vector<std::uint8_t>;

/// Runs `body(comm, compute, on, consumer)` on every rank.
template <class Body>
void run(int ranks, Body body)
{
    local_provider{ranks}.run([&](local::communicator& comm) {
        const host::stream compute, on, consumer;
        body(comm, compute.get(), on.get(), consumer.get());
    });
}

template <class T, class Weights>
std::vector<T> shard_for(const Weights& weights, uint64_t generation)
{
    return weights_of<T>(weights.shard_range().first, weights.shard_range().count, generation);
}

template <class T, class Source>
void check_all(const quantisation& how)
{
    for (const int ranks : {1, 2, 3}) {
        run(ranks, [&](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref) {
            for (const uint64_t count : {0u, 1u, 2u, 5u, 31u, 129u, 384u, 1001u}) {
                quantised_weights<T> weights(comm, count, how);
                std::vector<T> full(count, T(-77.0f));
                const auto shard = shard_for<Source>(weights, 3);
                weights.encode(shard, 3, compute, {}, {});
                weights.gather(full, 3, on, {}, {}).synchronize(soon_ms);
                require(same_bits(full, coded_weights<T, Source>(count, static_cast<uint64_t>(ranks), 3, how)),
                    "other weights: " + std::to_string(count) + " on " + std::to_string(ranks) + " ranks");
            }
        });
    }
}

} // namespace

TEST_CASE("every rank gets what every shard's codes decode to, the owner too, whatever the types and the sizes")
{
    check_all<bfloat16, float>({});
    check_all<float, float>({.block = 32});
    check_all<float16, float>({.format = code_format::int4, .block = 64});
    check_all<bfloat16, bfloat16>({.format = code_format::int4});
    check_all<float, float16>({.block = 256});
}

TEST_CASE("rotated, asymmetric and floating-point codes are the same bits on all ranks, within their errors")
{
    for (const quantisation how : {quantisation{.rotate = true}, quantisation{.rule = scaling::asymmetric},
             quantisation{.rule = scaling::signed_maximum}, quantisation{.format = code_format::e4m3}}) {
        std::vector<std::vector<float>> results(3);
        run(3, [&](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref) {
            quantised_weights<float> weights(comm, 1000, how); // slots of 334, the last of 332
            std::vector<float> full(1000);
            const auto shard = shard_for<float>(weights, 1);
            weights.encode(shard, 1, compute, {}, {});
            weights.gather(full, 1, on, {}, {}).synchronize(soon_ms);
            results[static_cast<std::size_t>(comm.rank())] = full;
        });
        CHECK(same_bits(results[0], results[1]));
        CHECK(same_bits(results[0], results[2]));
        double signal = 0, noise = 0;
        for (uint64_t i = 0; i < 1000; ++i) {
            const double x = static_cast<double>(weight(i, 1));
            signal += x * x;
            noise += (static_cast<double>(results[0][i]) - x) * (static_cast<double>(results[0][i]) - x);
        }
        CHECK(10 * std::log10(signal / noise) > 25); // e4m3 has the least
        CHECK(noise > 0);
    }
}

TEST_CASE("a repeated gather reads no shard, and the master copy is not touched")
{
    run(3, [](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref consumer) {
        quantised_weights<bfloat16> weights(comm, 1000);
        auto shard = shard_for<float>(weights, 1);
        const auto before = shard;
        const auto expected = coded_weights<bfloat16, float>(1000, 3, 1, {});
        weights.encode(shard, 1, compute, {}, {on});
        on.synchronize(soon_ms);
        require(same_bits(shard, before), "the shard was written");
        for (float& each : shard) each = std::numeric_limits<float>::quiet_NaN();
        for (int repeat = 0; repeat < 4; ++repeat) {
            std::vector<bfloat16> full(1000);
            weights.gather(full, 1, repeat % 2 == 0 ? on : consumer, {}, {}).synchronize(soon_ms);
            require(same_bits(full, expected), "other weights");
        }
        require(weights.encodings() == 1 && weights.gathers() == 4, "counts");
        // 334 elements are three blocks of 128 codes, with a scale each.
        require(weights.gather_bytes() == 2 * (3 * 128 + 16) && weights.plain_bytes() == 2 * 334 * 2, "bytes");
        require(quantised_weights<bfloat16>::arrival_bytes(comm, 1000) == 3 * (3 * 128 + 16), "bytes on arrival");
    });
}

TEST_CASE("a number that the weights' type cannot hold is NaN on every rank, and nothing beside it")
{
    run(2, [](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref) {
        quantised_weights<float16> weights(comm, 600);
        auto shard = shard_for<float>(weights, 1);
        if (comm.rank() == 1) {
            shard[7] = 1e6f;
            shard[200] = -std::numeric_limits<float>::infinity();
        }
        std::vector<float16> full(600);
        quantisation_errors errors;
        weights.encode(shard, 1, compute, {}, {}, &errors);
        weights.gather(full, 1, on, {}, {}).synchronize(soon_ms);
        for (uint64_t i = 0; i < 600; ++i) require(is_finite(full[i]) == (i != 307 && i != 500), "not finite elsewhere");
        require(errors.nonfinite == (comm.rank() == 1 ? 2 : 0), "not counted");
    });
}

TEST_CASE("the errors of a generation are those of its codes")
{
    run(2, [](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref) {
        const quantisation how{.format = code_format::int4};
        quantised_weights<float> weights(comm, 5000, how);
        for (const uint64_t generation : {uint64_t{1}, uint64_t{2}}) {
            const auto shard = shard_for<float>(weights, generation);
            std::vector<float> full(5000);
            quantisation_errors errors;
            weights.encode(shard, generation, compute, {}, {}, &errors);
            weights.gather(full, generation, on, {}, {}).synchronize(soon_ms);
            double squares = 0, noise = 0;
            for (uint64_t i = 0; i < 2500; ++i) {
                const double x = static_cast<double>(shard[i]);
                const double error = static_cast<double>(full[weights.shard_range().first + i]) - x;
                squares += x * x;
                noise += error * error;
            }
            require(errors.count == 2500, "count");
            require(std::abs(errors.squares / squares - 1) < 1e-5, "squares");
            require(std::abs(errors.error_squares / noise - 1) < 1e-4, "squares of errors");
        }
    });
}

TEST_CASE("a gather waits for a gated encoding, and reads old codes without the guard")
{
    run(2, [](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref consumer) {
        { // the control: an encoding by hand, and no event
            bytes codes(16, 0), all(32, 0xff);
            const host_gate closed;
            closed.close(compute);
            compute.enqueue([&] { codes.assign(16, 1); });
            comm.all_gather(view<const std::uint8_t>(codes), view<std::uint8_t>(all), on);
            on.synchronize(soon_ms); // it does not wait for the gate
            require(all == bytes(32, 0), "the control did not read old codes");
            closed.open();
            compute.synchronize(soon_ms);
        }
        quantised_weights<bfloat16> weights(comm, 500);
        const auto old = shard_for<float>(weights, 1), fresh = shard_for<float>(weights, 2);
        weights.encode(old, 1, compute, {}, {});
        const host_gate closed;
        closed.close(compute);
        weights.encode(fresh, 2, compute, {}, {});
        std::vector<bfloat16> full(500), seen;
        weights.gather(full, 2, on, {}, {consumer});
        consumer.enqueue([&] { seen = full; });
        require(!on.query() && !consumer.query(), "it did not wait");
        closed.open();
        consumer.synchronize(soon_ms);
        require(same_bits(seen, coded_weights<bfloat16, float>(500, 2, 2, {})), "other weights");
    });
}

TEST_CASE("the next encoding does not overwrite codes that a gather still reads")
{
    run(2, [](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref) {
        { // the control: codes by hand, and no back edge
            bytes codes(16, 1), all(32, 0xff);
            const host_gate closed;
            closed.close(on);
            comm.all_gather(view<const std::uint8_t>(codes), view<std::uint8_t>(all), on);
            compute.enqueue([&] { codes.assign(16, 2); });
            compute.synchronize(soon_ms);
            closed.open();
            on.synchronize(soon_ms);
            require(all == bytes(32, 2), "the control did not read new codes");
        }
        quantised_weights<bfloat16> weights(comm, 500);
        const auto old = shard_for<float>(weights, 1), fresh = shard_for<float>(weights, 2);
        weights.encode(old, 1, compute, {}, {});
        compute.synchronize(soon_ms);
        const host_gate closed;
        closed.close(on);
        std::vector<bfloat16> first(500), second(500);
        weights.gather(first, 1, on, {}, {});
        weights.encode(fresh, 2, compute, {}, {});
        require(!compute.query(), "the encoding did not wait");
        closed.open();
        weights.gather(second, 2, on, {}, {}).synchronize(soon_ms);
        require(same_bits(first, coded_weights<bfloat16, float>(500, 2, 1, {})), "the gather read later codes");
        require(same_bits(second, coded_weights<bfloat16, float>(500, 2, 2, {})), "the second gather is wrong");
    });
}

TEST_CASE("producers are waited for, consumers wait: of the encoding and of the gather")
{
    run(2, [](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref consumer) {
        const host::stream encoder;
        quantised_weights<bfloat16> weights(comm, 500);
        std::vector<float> shard(weights.shard_range().count);
        const auto write = [&](uint64_t generation) {
            compute.enqueue([&, generation] {
                const auto values = shard_for<float>(weights, generation);
                std::memcpy(shard.data(), values.data(), values.size() * sizeof(float));
            });
        };
        for (const uint64_t generation : {uint64_t{1}, uint64_t{2}, uint64_t{3}}) {
            const host_gate closed;
            closed.close(compute);
            write(generation);
            weights.encode(shard, generation, encoder, {compute}, {compute});
            write(99); // a consumer of the encoding: it overwrites the shard afterwards
            std::vector<bfloat16> full(500), seen, also;
            const host_gate reader;
            reader.close(consumer);
            consumer.enqueue([&] { seen = full; }); // reads before the gather, a producer of it
            weights.gather(full, generation, on, {consumer}, {consumer, compute});
            consumer.enqueue([&] { seen = full; });
            compute.enqueue([&] { also = full; });
            require(!encoder.query(), "the encoding did not wait");
            closed.open();
            encoder.synchronize(soon_ms);
            require(!on.query(), "the gather did not wait for the reader");
            reader.open();
            consumer.synchronize(soon_ms);
            compute.synchronize(soon_ms);
            const auto expected = coded_weights<bfloat16, float>(500, 2, generation, {});
            require(same_bits(seen, expected) && same_bits(also, expected), "other weights");
        }
    });
}

TEST_CASE("a guarded shard and destination close the edges by themselves, and pass the generation on")
{
    run(2, [](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref consumer) {
        const host::stream encoder;
        quantised_weights<bfloat16> weights(comm, 500);
        guarded<device, float> master(weights.shard_range().count);
        guarded<device, bfloat16> full(500);
        std::vector<bfloat16> seen;
        for (const uint64_t generation : {uint64_t{1}, uint64_t{2}, uint64_t{3}}) {
            const host_gate closed;
            closed.close(compute);
            master.write(compute, [&](view<float> data) {
                compute.enqueue([&weights, data, generation] {
                    const auto values = shard_for<float>(weights, generation);
                    std::memcpy(data.data(), values.data(), values.size() * sizeof(float));
                });
            });
            weights.encode(master, generation, encoder, {}, {});
            weights.gather(full, generation, on, {}, {});
            require(full.generation() == generation, "another generation");
            full.read(consumer, [&](view<const bfloat16> data) {
                consumer.enqueue([&seen, data] { seen.assign(data.begin(), data.end()); });
            });
            require(!encoder.query() && !on.query() && !consumer.query(), "it did not wait");
            closed.open();
            consumer.synchronize(soon_ms);
            require(same_bits(seen, coded_weights<bfloat16, float>(500, 2, generation, {})), "other weights");
        }
        require(mentions(error_of([&] { weights.encode(master, 4, encoder, {}, {}); }),
                    "the source holds generation 3, and 4 is to be encoded"),
            "a stale master was encoded");
    });
}

TEST_CASE("objects that share arrivals gather one after the other")
{
    run(2, [](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref consumer) {
        guarded<device, std::uint8_t> arrivals(quantised_weights<bfloat16>::arrival_bytes(comm, 900));
        // Another communicator: the order of one's calls must not hide a missing edge.
        auto apart = comm.split(0, comm.rank());
        quantised_weights<bfloat16> large(comm, 900, {}, &arrivals), small(*apart, 100, {}, &arrivals);
        const auto a = shard_for<float>(large, 1), b = shard_for<float>(small, 1);
        large.encode(a, 1, compute, {}, {});
        small.encode(b, 1, compute, {}, {});
        std::vector<bfloat16> first(900), second(100);
        const host_gate closed;
        closed.close(on);
        large.gather(first, 1, on, {}, {});
        auto done = small.gather(second, 1, consumer, {}, {});
        const auto late = error_of([&] { done.synchronize(50); });
        require(late && late->code() == status::timeout, "it did not wait for the memory");
        closed.open();
        done.synchronize(soon_ms);
        on.synchronize(soon_ms);
        require(same_bits(first, coded_weights<bfloat16, float>(900, 2, 1, {})), "the first is wrong");
        require(same_bits(second, coded_weights<bfloat16, float>(100, 2, 1, {})), "the second is wrong");
    });
}

TEST_CASE("the host waits for nothing and allocates nothing")
{
    run(1, [](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref consumer) {
        quantised_weights<bfloat16> weights(comm, 300);
        const auto shard = shard_for<float>(weights, 1);
        guarded<device, bfloat16> full(300);
        quantisation_errors errors;
        uint64_t generation = 0;
        const auto step = [&] {
            weights.encode(shard, ++generation, compute, {on}, {compute}, &errors);
            weights.gather(full, generation, on, {compute}, {consumer});
            full.read(consumer, [](view<const bfloat16>) {});
            weights.gather(full, generation, consumer, {}, {compute});
        };
        // Streams keep memory for as many tasks as were ever queued.
        for (int i = 0; i < 200; ++i) step();
        for (const host::stream_ref each : {compute, on, consumer}) each.synchronize(soon_ms);
        const auto waits = [&] { return compute.synchronizations() + on.synchronizations() + consumer.synchronizations(); };
        const uint64_t waited = waits();
        const long before = allocations.load();
        for (int i = 0; i < 20; ++i) step();
        CHECK(allocations.load() == before);
        CHECK(waits() == waited);
        for (const host::stream_ref each : {compute, on, consumer}) each.synchronize(soon_ms);
    });
}

TEST_CASE("a generation that was never encoded is refused, also at the peers")
{
    local::group ranks(2, {.timeout_ms = 60'000});
    const auto outcomes = run_each(ranks, [](local::communicator& comm) {
        const host::stream on;
        const auto shard = weights_of<float>(static_cast<uint64_t>(comm.rank()) * 32, 32, 1);
        std::vector<bfloat16> full(64);
        quantised_weights<bfloat16> weights(comm, 64); // destroyed first, because it waits for the work
        CHECK(weights.generation() == 0);
        weights.encode(shard, 1, on, {}, {});
        weights.gather(full, 1, on, {}, {});
        if (comm.rank() == 0) weights.encode(shard, 2, on, {}, {}); // and rank 1 forgets
        CHECK(weights.generation() == (comm.rank() == 0 ? 2 : 1));
        weights.gather(full, 2, on, {}, {}).synchronize(soon_ms);
    });
    check_error(outcomes[1], 1, status::invalid_argument, {}, {"gather", "of generation 1, and 2 is asked for"});
    REQUIRE(outcomes[0].failure());
    CHECK(outcomes[0].failure()->culprits() == std::vector<int>{1});
    CHECK(mentions(outcomes[0].failure(), "gave a bad argument")); // at once, not by its deadline
}

TEST_CASE("wrong arguments are refused with what is wrong")
{
    const host::stream on;
    const auto refused = [&](auto call) {
        auto comm = local::group(1).communicator(0);
        return refusal([&] {
            quantised_weights<bfloat16> weights(comm, 64);
            call(weights);
            on.synchronize(soon_ms);
        });
    };
    const std::vector<float> shard(64, 1.0f);
    std::vector<bfloat16> full(64), small(63);
    CHECK(contains(refused([&](auto& w) { w.gather(full, 1, on, {}, {}); }), "nothing was encoded yet"));
    CHECK(contains(refused([&](auto& w) { w.encode(shard, 0, on, {}, {}); }), "generation is 0"));
    CHECK(contains(refused([&](auto& w) { w.encode(view<const float>(shard).part(0, 63), 1, on, {}, {}); }),
        "source.count() is 63, and this rank's shard has 64"));
    CHECK(contains(refused([&](auto& w) { w.encode(view<const float>(nullptr, 64), 1, on, {}, {}); }), "source is null"));
    const auto after_encoding = [&](auto call) {
        return refused([&](auto& w) {
            w.encode(shard, 5, on, {}, {});
            call(w);
        });
    };
    CHECK(contains(after_encoding([&](auto& w) { w.gather(full, 4, on, {}, {}); }), "of generation 5, and 4 is asked for"));
    CHECK(contains(after_encoding([&](auto& w) { w.gather(small, 5, on, {}, {}); }), "destination.count() is 63, and"));
    CHECK(contains(after_encoding([&](auto& w) { w.gather(view<bfloat16>(nullptr, 64), 5, on, {}, {}); }),
        "destination is null"));
    CHECK(contains(after_encoding([&](auto& w) {
        std::uint8_t* const at = w.arrivals().memory().data();
        w.gather(view<bfloat16>(reinterpret_cast<bfloat16*>(at), 64), 5, on, {}, {});
    }), "destination overlaps the arrivals"));
    CHECK(after_encoding([&](auto& w) { w.gather(full, 5, on, {}, {}); }) == "accepted"); // the control

    const auto construction = [&](const quantisation& how, guarded<device, std::uint8_t>* arrivals, uint64_t count = 64) {
        auto comm = local::group(1).communicator(0);
        return refusal([&] { quantised_weights<bfloat16>(comm, count, how, arrivals); });
    };
    guarded<device, std::uint8_t> too_small(143), enough(160);
    guarded<device, std::uint8_t> askew(enough.memory().part(1, 159));
    CHECK(contains(construction({.block = 48}, nullptr), "block is 48"));
    CHECK(contains(construction({.feedback = error_feedback::all}, nullptr), "feedback is not none"));
    CHECK(contains(construction({}, nullptr, UINT64_MAX / 2), "impossibly large"));
    CHECK(contains(construction({}, &too_small), "arrivals has 143 bytes, and the ranks' codes need 144"));
    CHECK(contains(construction({}, &askew), "multiple of 16"));
    CHECK(construction({}, &enough) == "accepted");
}

TEST_CASE("an encoding that was refused leaves the codes, one that failed leaves none")
{
    run(1, [](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref) {
        quantised_weights<bfloat16> weights(comm, 100);
        const auto shard = shard_for<float>(weights, 1);
        std::vector<bfloat16> full(100);
        weights.encode(shard, 1, compute, {}, {});
        CHECK(error_of([&] { weights.encode(full, 0, compute, {}, {}); }));
        weights.gather(full, 1, on, {}, {}).synchronize(soon_ms);
        CHECK(same_bits(full, coded_weights<bfloat16, float>(100, 1, 1, {})));
        // Going back is no error: a checkpoint was loaded.
        weights.encode(shard, 9, compute, {}, {});
        weights.encode(shard, 2, compute, {}, {});
        CHECK(weights.generation() == 2);
        compute.synchronize(soon_ms);
        weights.codes().set_generation(0); // forbids gathers, as after a failure
        CHECK(mentions(error_of([&] { weights.gather(full, 2, on, {}, {}); }), "no codes"));
    });
}

TEST_CASE("stochastic codes are a function of seed, generation and rank")
{
    std::vector<float> results[4];
    run(2, [&](local::communicator& comm, host::stream_ref compute, host::stream_ref on, host::stream_ref) {
        // Both ranks have the same shard.
        const auto shard = weights_of<float>(0, 500, 1);
        int at = 0;
        for (const auto& [seed, generation] : std::vector<std::pair<uint64_t, uint64_t>>{{1, 1}, {1, 1}, {1, 2}, {2, 1}}) {
            quantised_weights<float> weights(comm, 1000, {.rounding = code_rounding::stochastic, .seed = seed});
            std::vector<float> full(1000);
            weights.encode(shard, generation, compute, {}, {});
            weights.gather(full, generation, on, {}, {}).synchronize(soon_ms);
            if (comm.rank() == 0) results[at] = full;
            ++at;
        }
    });
    CHECK(same_bits(results[0], results[1]));
    CHECK(!same_bits(results[0], results[2]));
    CHECK(!same_bits(results[0], results[3]));
    const std::vector<float> first(results[0].begin(), results[0].begin() + 500);
    const std::vector<float> second(results[0].begin() + 500, results[0].end());
    CHECK(!same_bits(first, second));
}

TEST_CASE("codes that cross the nodes fill a secondary shard")
{
    local_provider{4}.run([](local::communicator& world) {
        const host::stream compute, on;
        node_groups nodes(world, 2);
        using groups = decltype(nodes);
        secondary_shard<local::communicator, bfloat16> shard(nodes, 400);
        const shard_layout& layout = shard.layout();
        quantised_all_gather<groups::part, bfloat16> codes(nodes.across_nodes(), layout.secondary_count());
        const auto master = weights_of<float>(shard.primary_range().first, layout.slot(), 6);
        std::vector<bfloat16> full(400);
        codes.encode(master, 6, compute, {}, {});
        codes.gather(shard.secondary(), 6, on, {}, {});
        shard.gather(full, on, {}, {}, 6).synchronize(soon_ms);
        require(same_bits(full, coded_weights<bfloat16, float>(400, 4, 6, {})), "other weights");
    });
}

TEST_CASE("the object moves, and its destructor waits for the work or gives the memory up")
{
    const watchdog guard("the test", 60);
    const host::stream on;
    auto comm = local::group(1).communicator(0);
    const auto shard = weights_of<float>(0, 100, 1);
    std::vector<bfloat16> full(100);
    const host_gate closed;
    {
        quantised_weights<bfloat16> given_up(comm, 100, {}, nullptr, 10);
        closed.close(on);
        given_up.encode(shard, 1, on, {}, {});
        quantised_weights<bfloat16> moved(std::move(given_up));
        moved.gather(full, 1, on, {}, {});
        CHECK(mentions(error_of([&] { given_up.encode(shard, 2, on, {}, {}); }), "moved from"));
    }
    closed.open(); // what is read and written then must still be there: a sanitizer would tell
    on.synchronize(soon_ms);
    CHECK(same_bits(full, coded_weights<bfloat16, float>(100, 1, 1, {})));
}

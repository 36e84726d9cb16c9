// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/replica/replica_averaging.hpp>

#include "tests/support/errors.hpp"
#include "tests/support/host_gate.hpp"
#include "tests/support/run_ranks.hpp"

namespace collprobe::testing::averaging_when_worth_it_test {
namespace {

constexpr float rate = 0.125F;

/// The gradient of rank `rank` in step `step`, noise included: any rank can compute any other's.
std::vector<float> gradient_of(int rank, std::uint64_t step, std::size_t count, double common, double sigma)
{
    std::mt19937_64 random(step * 1000 + static_cast<std::uint64_t>(rank) + 1);
    std::normal_distribution<double> normal(0, 1);
    std::vector<float> gradient(count);
    for (std::size_t i = 0; i < count; ++i) {
        gradient[i] = static_cast<float>(common * std::cos(static_cast<double>(i + step)) + sigma * normal(random));
    }
    return gradient;
}

/// PAFT-Dyn for all ranks at once, in double, with an average started at the beginning of the steps in `rounds`.
struct reference {
    reference(int ranks, std::size_t count) : theta(static_cast<std::size_t>(ranks), std::vector<double>(count, 1)) {}

    /// theta_(t+1) = thetabar_t - eta g~_t where an average ran, else theta_t - eta g~_t. Returns the mean over the
    /// ranks of ||thetabar_t - theta_t^m||^2 and of ||g~|| / ||thetabar - theta^m||.
    void step(std::uint64_t number, bool averages, double common, double sigma)
    {
        const std::size_t count = theta[0].size();
        const auto ranks = static_cast<double>(theta.size());
        std::vector<std::vector<float>> gradients;
        for (std::size_t m = 0; m < theta.size(); ++m)
            gradients.push_back(gradient_of(static_cast<int>(m), number, count, common, sigma));
        if (averages) {
            distance = ratio = squared_weights = 0;
            std::vector<double> mean(count, 0);
            for (std::size_t i = 0; i < count; ++i)
                for (const auto& each : theta) mean[i] += each[i] / ranks;
            for (const double each : mean) squared_weights += each * each;
            for (std::size_t m = 0; m < theta.size(); ++m) {
                double own = 0;
                double norm = 0;
                for (std::size_t i = 0; i < count; ++i) {
                    own += (theta[m][i] - mean[i]) * (theta[m][i] - mean[i]);
                    norm += static_cast<double>(gradients[m][i]) * static_cast<double>(gradients[m][i]);
                }
                distance += own / ranks;
                ratio += std::sqrt(norm / own) / ranks;
                theta[m] = mean;
            }
        }
        for (std::size_t m = 0; m < theta.size(); ++m)
            for (std::size_t i = 0; i < count; ++i) theta[m][i] -= static_cast<double>(rate * gradients[m][i]);
    }

    std::vector<std::vector<double>> theta;
    double distance = 0;
    double squared_weights = 0;
    double ratio = 0;
};

struct rounds_of_a_run {
    std::string when; ///< a 1 for each step that began with an average under way
    std::vector<float> weights;
    std::uint64_t rounds = 0;
    std::uint64_t bytes = 0;

    /// Steps from the first average, ten steps after the start, to the next.
    std::uint64_t interval() const { return when.find('1', 11) - 10; }
};

/// Plain SGD on two buffers.
rounds_of_a_run train(local::communicator& comm, std::size_t count, std::uint64_t steps, double common, double sigma,
    const when_worth_it& schedule, bool finish)
{
    rounds_of_a_run result;
    std::vector<float> weights(count, 1.0F);
    std::vector<float> gradient(count);
    const std::size_t cut = count / 3;
    const auto two = [cut, count](std::vector<float>& of) {
        return std::vector<replica>{view<float>(of.data(), cut), view<float>(of.data() + cut, count - cut)};
    };
    const host::stream stream;
    replica_averaging repair(comm, two(weights), schedule);
    bool started = false;
    for (std::uint64_t step = 0; step < steps; ++step) {
        result.when += started ? '1' : '0';
        gradient = gradient_of(comm.rank(), step, count, common, sigma);
        repair.before_update(two(gradient), rate, stream);
        stream.synchronize();
        for (std::size_t i = 0; i < count; ++i) weights[i] -= rate * gradient[i];
        started = repair.step(stream);
    }
    if (finish) repair.finish(stream);
    stream.synchronize();
    result.weights = weights;
    result.rounds = repair.rounds();
    result.bytes = repair.bytes();
    return result;
}

std::vector<rounds_of_a_run> train_all(int ranks, std::size_t count, std::uint64_t steps, double common, double sigma,
    const when_worth_it& schedule, bool finish = false)
{
    std::vector<rounds_of_a_run> all(static_cast<std::size_t>(ranks));
    const testing::watchdog guard("train_all", 60);
    local::run(ranks, [&](local::communicator& comm) {
        all[static_cast<std::size_t>(comm.rank())] = train(comm, count, steps, common, sigma, schedule, finish);
    });
    return all;
}

/// Rank 1 receives another distance, from which the interval follows.
class with_other_sums : public adaptor<with_other_sums, local::communicator> {
public:
    explicit with_other_sums(const local::communicator& of) : adaptor(of) {}
    with_other_sums& innermost() noexcept { return *this; }
    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        adaptor::make<T>(call, on);
        if (std::is_same_v<T, double> && rank() == 1) on.enqueue([to = call.received<double>()] { to.data()[0] *= 1e-6; });
    }
};

} // namespace

TEST_CASE("a rank that receives other sums averages in another step, and all ranks get an error")
{
    const local::group own(2, {.timeout_ms = 500}), of_steps(2, {.timeout_ms = 500});
    for (const rank_outcome& each : run_each(own, [&](local::communicator& comm) {
             local::communicator steps = of_steps.communicator(comm.rank());
             std::vector<float> weights(700, 1.0F), one(1);
             const host::stream stream;
             replica_averaging repair(with_other_sums(comm), std::vector<replica>{view(weights)}, when_worth_it{.gain = 0.1});
             for (std::uint64_t step = 0; step < 60; ++step) {
                 std::vector<float> gradient = gradient_of(comm.rank(), step, weights.size(), 0.2, 0.05);
                 repair.before_update(std::vector<replica>{view(gradient)}, rate, stream);
                 steps.all_reduce(view(one), reduction::sum, stream); // the step's own
                 stream.synchronize(60'000);
                 for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= rate * gradient[i];
                 repair.step(stream);
             }
         })) CHECK(each.failure().has_value());
}

TEST_CASE("a step behind an average starts from the average, and intervals follow the rule, on all ranks alike")
{
    constexpr std::size_t count = 700;
    constexpr std::uint64_t steps = 60;
    constexpr double common = 0.2;
    constexpr double sigma = 0.05;
    for (const interval_rule rule : {interval_rule::published, interval_rule::corrected}) {
        for (const int ranks : {2, 3, 4}) {
            const when_worth_it schedule{.rule = rule, .gain = 0.1};
            const auto all = train_all(ranks, count, steps, common, sigma, schedule);
            reference expected(ranks, count);
            std::uint64_t next = 10;
            std::uint64_t rounds = 0;
            std::uint64_t since = 0;
            for (std::uint64_t step = 0; step < steps; ++step) {
                const bool averages = step == next;
                expected.step(step, averages, common, sigma);
                for (const rounds_of_a_run& each : all) CHECK((each.when[step] == '1') == averages);
                if (averages) {
                    const double gain = static_cast<double>(since) * static_cast<double>(rate) * static_cast<double>(rate);
                    const double variance = expected.distance / (count * gain * (ranks - 1) / ranks);
                    const double wanted = rule == interval_rule::published
                        ? expected.ratio
                        : schedule.gain * std::sqrt(expected.squared_weights / count / variance) / static_cast<double>(rate);
                    const auto interval = static_cast<std::uint64_t>(wanted + 0.5);
                    ++rounds;
                    next = step + (interval < 2 ? 2 : interval > 100 ? 100 : interval);
                    since = 0;
                }
                ++since;
            }
            CHECK(rounds >= 3);
            if (next == steps) ++rounds; // the last step has started one
            for (int m = 0; m < ranks; ++m) {
                const auto at = static_cast<std::size_t>(m);
                CHECK(all[at].rounds == rounds);
                for (std::size_t i = 0; i < count; ++i) CHECK(std::fabs(static_cast<double>(all[at].weights[i]) - expected.theta[at][i]) < 1e-5);
            }
        }
    }
}

TEST_CASE("the interval is that of the noise where only a sample of the coordinates is looked at")
{
    constexpr std::size_t count = 200'001; // every third is
    constexpr float sigma = 0.25F;
    local::run(2, [](local::communicator& comm) {
        std::vector<float> weights(count, 1.0F), gradient(count);
        std::mt19937_64 random(static_cast<std::uint64_t>(comm.rank()) + 1);
        const host::stream stream;
        replica_averaging repair(
            comm, std::vector<replica>{view(weights)}, when_worth_it{.gain = 40 * double{sigma} * double{rate}});
        std::string when;
        for (int step = 0; step < 52; ++step) {
            for (std::size_t i = 0; i < count; i += 64) { // either sign at random: as much noise as sigma has
                std::uint64_t bits = random();
                for (std::size_t k = i; k < count && k < i + 64; ++k, bits >>= 1) gradient[k] = bits % 2 != 0 ? sigma : -sigma;
            }
            repair.before_update(std::vector<replica>{view(gradient)}, rate, stream);
            stream.synchronize();
            for (std::size_t i = 0; i < count; ++i) weights[i] -= rate * gradient[i];
            when += repair.step(stream) ? '1' : '0';
        }
        const std::size_t second = when.find('1', 10);
        CHECK(second >= 9 + 40);
        CHECK(second <= 9 + 41); // rms(thetabar) is a little above 1
    });
}

TEST_CASE("clean ranks keep their bits and average as rarely as allowed")
{
    constexpr std::uint64_t steps = 115;
    const auto all = train_all(4, 300, steps, 0.25, 0, {}, true);
    std::vector<float> alone(300, 1.0F);
    for (std::uint64_t step = 0; step < steps; ++step) {
        const std::vector<float> gradient = gradient_of(0, step, 300, 0.25, 0);
        for (std::size_t i = 0; i < 300; ++i) alone[i] -= rate * gradient[i];
    }
    std::string when(steps, '0');
    when[10] = when[110] = '1';
    for (const rounds_of_a_run& each : all) {
        CHECK(each.when == when);
        CHECK(each.weights == alone);
    }
}

TEST_CASE("after finish all ranks hold the same bits, and bytes are counted")
{
    const auto all = train_all(3, 300, 20, 0.25, 0.5, {}, true);
    const auto without = train_all(3, 300, 20, 0.25, 0.5, {}, false);
    for (const rounds_of_a_run& each : all) CHECK(each.weights == all[0].weights);
    CHECK(without[0].weights != without[1].weights); // control
    CHECK(all[0].rounds == without[0].rounds + 1);
    CHECK(all[0].bytes == all[0].rounds * 300 * 4 + without[0].rounds * 32);
    // An average that is under way then is put in place, and there is no other.
    const auto started = train_all(3, 300, 10, 0.25, 0.5, {}, true);
    for (const rounds_of_a_run& each : started) CHECK(each.weights == started[0].weights);
    CHECK(started[0].rounds == 1);
}

TEST_CASE("one rank alone has nobody to differ from")
{
    const auto all = train_all(1, 30, 115, 0.25, 0.5, {}, true);
    CHECK(all[0].interval() == 100);
}

TEST_CASE("what is not finite shortens the interval")
{
    local::run(2, [](local::communicator& comm) {
        std::vector<float> weights(10, 1.0F);
        std::vector<float> gradient(10, 0.5F);
        if (comm.rank() == 1) weights[3] = detail::bit_cast<float>(0x7fc00000u);
        const host::stream stream;
        replica_averaging repair(comm, std::vector<replica>{view(weights)}, when_worth_it());
        std::string when;
        for (int step = 0; step < 15; ++step) {
            repair.before_update(std::vector<replica>{view(gradient)}, 0.1, stream);
            when += repair.step(stream) ? '1' : '0';
        }
        stream.synchronize();
        CHECK(when == "000000000101010");
    });
}

TEST_CASE_TEMPLATE("state is averaged with the weights, of types that are averaged in float and in their own", T, bfloat16, double)
{
    local::run(2, [](local::communicator& comm) {
        std::vector<T> weights(10, static_cast<T>(1.0F + static_cast<float>(comm.rank())));
        std::vector<T> state(4, static_cast<T>(2.0F * static_cast<float>(comm.rank())));
        std::vector<bfloat16> gradient(10, static_cast<bfloat16>(0.5F));
        const host::stream stream;
        const std::vector<replica> list_of_state{view(state)}, gradients{view(gradient)};
        replica_averaging repair(comm, std::vector<replica>{view(weights)}, when_worth_it(), list_of_state);
        for (int step = 0; step < 10; ++step) {
            repair.before_update(gradients, 0.1, stream);
            CHECK(repair.step(stream) == (step == 9));
            stream.synchronize();
            CHECK(static_cast<float>(weights[9]) == 1.0F + static_cast<float>(comm.rank()));
        }
        repair.before_update(gradients, 0.1, stream);
        stream.synchronize();
        CHECK(static_cast<float>(weights[9]) == 1.5F);
        CHECK(static_cast<float>(state[3]) == 1.0F);
        CHECK(repair.bytes() == 14 * (sizeof(T) == 8 ? 8 : 4) + 32);
    });
}

TEST_CASE("an average runs beside the work of the step")
{
    const testing::watchdog guard("overlap", 60);
    local::run(2, [](local::communicator& comm) {
        std::vector<float> weights(10, static_cast<float>(comm.rank()));
        std::vector<float> gradient(10, 0.5F);
        std::vector<float> other(1, 1.0F);
        const host::stream stream;
        const host::stream elsewhere;
        replica_averaging repair(comm, std::vector<replica>{view(weights)}, when_worth_it());
        for (int step = 0; step < 10; ++step) {
            repair.before_update(std::vector<replica>{view(gradient)}, 0.1, stream);
            REQUIRE(repair.step(stream) == (step == 9));
        }
        testing::host_gate gate;
        gate.close(stream); // the step computes
        // Collectives of a communicator run in the order of their calls: this one behind the average.
        comm.all_reduce(view<const float>(other), view(other), reduction::sum, elsewhere);
        elsewhere.synchronize(30'000);
        CHECK(other[0] == 2.0F);
        CHECK(!stream.query());
        CHECK(weights[0] == static_cast<float>(comm.rank())); // not in place yet
        gate.open();
        repair.before_update(std::vector<replica>{view(gradient)}, 0.1, stream);
        stream.synchronize();
        CHECK(weights[0] == 0.5F);
    });
}

TEST_CASE("bad arguments are refused by name, and good ones are not")
{
    std::vector<float> weights(4), gradient(4), shorter(3);
    std::vector<std::int64_t> steps(1);
    std::vector<std::int32_t> integers(4);
    std::vector<unsigned char> bytes(64);
    const std::vector<replica> good{view(weights)}, gradients{view(gradient)};
    std::vector<replica> odd = good;
    odd[0].data = bytes.data() + 1;
    const host::stream stream;
    struct given {
        std::vector<replica> weights, gradients, state = {};
        when_worth_it schedule = {};
        double rate = 0.1;
    };
    const auto refused = [&](const given& with) {
        return testing::refusal([&] { // refusing fails the communicator: each has one of its own
            local::group alone(1);
            replica_averaging repair(alone.communicator(0), with.weights, with.schedule, with.state);
            repair.before_update(with.gradients, with.rate, stream);
        });
    };
    const std::pair<given, const char*> rows[] = {
        {{good, gradients, {view(steps)}}, "state[0] holds int64"},
        {{.weights = good, .gradients = gradients, .schedule = {.gain = 0}}, "gain"},
        {{.weights = good, .gradients = gradients, .schedule = {.gain = HUGE_VAL}}, "gain"},
        {{.weights = good, .gradients = gradients, .schedule = {.momentum = 1}}, "momentum"},
        {{good, {view(shorter)}}, "gradients[0] differs from the weights in its count"},
        {{good, {view(integers)}}, "gradients[0] holds int32"},
        {{good, {}}, "gradients must be as many buffers"},
        {{odd, gradients}, "weights[0] is not aligned to 4 bytes"},
        {{good, odd}, "gradients[0] is not aligned to 4 bytes"},
    };
    for (const auto& row : rows) CHECK_MESSAGE(testing::contains(refused(row.first), row.second), row.second);
    for (const double wrong : {-0.1, detail::not_a_number(), detail::infinity(), -detail::infinity()}) {
        const given with{.weights = good, .gradients = gradients, .rate = wrong};
        CHECK(testing::contains(refused(with), "rate must be finite and not negative"));
    }
    CHECK(refused({good, gradients}) == "accepted");
    CHECK(refused({.weights = good, .gradients = gradients, .rate = 0}) == "accepted");
}

} // namespace collprobe::testing::averaging_when_worth_it_test

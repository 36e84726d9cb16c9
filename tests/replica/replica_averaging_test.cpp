// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/replica/replica_averaging.hpp>

#include "support/element_types.hpp"
#include "tests/support/run_ranks.hpp"

namespace collprobe::testing::replica_averaging_test {
namespace {

/// What rank `rank` holds at `index` before the average: any two ranks differ.
template <class T>
T before(int rank, std::size_t index)
{
    return static_cast<T>(static_cast<float>(rank * 3 + 1) * 0.37F + static_cast<float>(index % 11));
}

/// The exact average of what the ranks hold.
template <class T>
double mean(int ranks, std::size_t index)
{
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += static_cast<double>(before<T>(rank, index));
    return sum / ranks;
}

/// Disturbs what its rank receives in an all-reduce. Can be moved, not copied.
template <communicator Comm>
class disturbing : public adaptor<disturbing<Comm>, Comm> {
public:
    using adaptor<disturbing, Comm>::adaptor;
    disturbing(disturbing&&) = default;
    template <element T>
    void make(const collective_call& call, stream_ref_of<Comm> stream)
    {
        this->comm_.template make<T>(call, stream);
        if (call.what != collective::all_reduce) return;
        const int rank = this->rank();
        stream.enqueue([receive = call.received<T>(), rank] {
            receive[0] = static_cast<T>(static_cast<float>(rank));
        });
    }
};

template <class T>
double unit_roundoff()
{
    return std::ldexp(1.0, -element_traits<T>::digits);
}

} // namespace

TEST_CASE_TEMPLATE("replicas of any floating-point type become their average, on all ranks with the same bits",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    for (const int ranks : {1, 2, 3, 4, 7}) {
        // The second is averaged in pieces if its elements are narrower than float.
        for (const std::size_t count : {std::size_t{100}, (std::size_t{1} << 20) + 7}) {
            if (count > 100 && (ranks != 2 || sizeof(T) > 2)) continue;
            std::vector<std::vector<T>> result(static_cast<std::size_t>(ranks));
            local::run(ranks, [&](local::communicator& comm) {
                std::vector<T> weights(count);
                std::vector<T> state(1, T{});
                for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = before<T>(comm.rank(), i);
                {
                    const host::stream stream;
                    const std::vector<replica> all{view(weights), replica(), view(state)};
                    replica_averaging repair(comm, all, every{.steps = 1});
                    CHECK(repair.step(stream));
                    stream.synchronize();
                }
                result[static_cast<std::size_t>(comm.rank())] = weights;
            });
            std::size_t unlike = 0, wrong = 0;
            for (std::size_t i = 0; i < count; ++i) {
                for (const std::vector<T>& each : result) unlike += to_bits(each[i]) != to_bits(result[0][i]);
                // One rounding of a result of 8 or 16 bits; as many as there are ranks, and of the products, otherwise.
                const double expected = mean<T>(ranks, i);
                const double roundings = sizeof(T) <= 2 ? 1.001 : 2.0 * ranks + 1;
                const double error = std::fabs(static_cast<double>(result[0][i]) - expected);
                wrong += !(error <= roundings * unit_roundoff<T>() * std::fabs(expected));
            }
            CHECK(unlike == 0);
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("averages come every H steps, and bytes and rounds are counted")
{
    local::run(2, [](local::communicator& comm) {
        std::vector<float> weights(10, static_cast<float>(comm.rank()));
        std::vector<bfloat16> more(3);
        std::vector<double> most(5);
        const host::stream stream;
        const std::vector<replica> state{view(most)};
        replica_averaging repair(comm, std::vector<replica>{view(weights), view(more)}, every{.steps = 3}, state);
        CHECK(repair.bytes() == 0);
        std::string when;
        for (int step = 0; step < 7; ++step) when += repair.step(stream) ? '1' : '0';
        stream.synchronize();
        CHECK(when == "0010010");
        CHECK(repair.rounds() == 2);
        CHECK(repair.bytes() == 2 * (10 * 4 + 3 * 4 + 5 * 8));
        CHECK(weights[9] == 0.5F);
        repair.finish(stream); // the seventh step has had no average
        CHECK(repair.rounds() == 3);
        repair.finish(stream);
        CHECK(repair.rounds() == 3);
        stream.synchronize();
    });
}

TEST_CASE("equal replicas keep their bits on 4 ranks")
{
    local::run(4, [](local::communicator& comm) {
        std::vector<float> weights(1000);
        std::vector<float16> small(1000);
        for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.001F * static_cast<float>(i * i) - 3.3F;
        for (std::size_t i = 0; i < small.size(); ++i) small[i] = static_cast<float16>(weights[i]);
        const std::vector<float> was = weights;
        const std::vector<float16> was_small = small;
        const host::stream stream;
        replica_averaging repair(comm, std::vector<replica>{view(weights), view(small)}, every{.steps = 1});
        repair.step(stream);
        stream.synchronize();
        CHECK(weights == was);
        for (std::size_t i = 0; i < small.size(); ++i) CHECK(small[i].bits == was_small[i].bits);
    });
}

TEST_CASE("an average travels by the innermost communicator, or through the adaptors if asked")
{
    for (const bool through : {false, true}) {
        local::run(2, [through](local::communicator& comm) {
            std::vector<float> weights(4, static_cast<float>(comm.rank()) + 7);
            const host::stream stream;
            replica_averaging repair(disturbing<local::communicator>(comm), std::vector<replica>{view(weights)},
                every{.steps = 1, .through_adaptors = through});
            CHECK(repair.communicator().rank() == comm.rank());
            repair.step(stream);
            stream.synchronize();
            CHECK(weights[0] == (through ? static_cast<float>(comm.rank()) : 7.5F));
            CHECK(weights[1] == 7.5F);
        });
    }
}

TEST_CASE("what cannot be averaged is refused by name")
{
    local::group group(1);
    local::communicator comm = group.communicator(0);
    std::vector<float> weights(4);
    std::vector<std::int32_t> steps(1);
    const auto refusal = [&](const std::vector<replica>& buffers, every schedule = {}) {
        try {
            replica_averaging repair(comm, buffers, schedule);
        } catch (const error& why) {
            CHECK(why.code() == status::invalid_argument);
            CHECK(why.rank() == 0);
            return std::string(why.what());
        }
        return std::string();
    };
    CHECK(refusal({view(weights), view(steps)}).find("weights[1] holds int32") != std::string::npos);
    CHECK(refusal({view(weights), view(steps)}).find("replica_averaging_test.cpp") != std::string::npos);
    replica nothing(view<float>(nullptr, 3));
    CHECK(refusal({nothing}).find("weights[0] is null") != std::string::npos);
    std::vector<unsigned char> bytes(64);
    replica odd = view(weights);
    odd.data = bytes.data() + 1;
    CHECK(refusal({view(weights), odd}).find("weights[1] is not aligned to 4 bytes") != std::string::npos);
    odd.type = element_type::bfloat16;
    CHECK(refusal({odd}).find("weights[0] is not aligned to 2 bytes") != std::string::npos);
    odd.count = 0;
    CHECK(refusal({odd}).empty()); // nobody reads it
    CHECK(refusal({view(weights)}, {.steps = 0}).find("steps must not be 0") != std::string::npos);
    CHECK(refusal({view(weights)}).empty());
}

TEST_CASE("a list of replicas is taken from what holds replicas, and not from a buffer")
{
    using averaging = replica_averaging<local::communicator, every>;
    static_assert(std::is_constructible_v<averaging, local::communicator&, std::vector<replica>&, every>);
    static_assert(std::is_constructible_v<averaging, local::communicator&, std::array<replica, 2>, every>);
    static_assert(std::is_constructible_v<averaging, local::communicator&, view<replica>, every, view<replica>>);
    static_assert(!std::is_constructible_v<averaging, local::communicator&, std::vector<float>&, every>);
    static_assert(!std::is_constructible_v<averaging, local::communicator&, view<float>, every, view<replica>>);
    static_assert(!std::is_constructible_v<averaging, local::communicator&, replica, every>);
}

} // namespace collprobe::testing::replica_averaging_test

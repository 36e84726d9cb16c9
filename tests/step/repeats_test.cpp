// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What differs or repeats on some ranks and is healthy: a frozen shard, an expert with the same data, a type of a number.
// And whose result is sampled.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "support/steps.hpp"

namespace collprobe::testing::repeats_test {
namespace {

constexpr int ranks = 4;
constexpr std::size_t n = 64;

/// Elements that are equal where rank and version are.
std::vector<float> data_of(int rank, std::uint64_t version)
{
    std::vector<float> data(n);
    for (std::size_t i = 0; i < n; ++i)
        data[i] = static_cast<float>(1 + i % 7) * static_cast<float>(1 + rank) + static_cast<float>(version) / 8;
    return data;
}

/// The records of steps whose one call `make` makes.
template <class Make>
std::vector<step_record> run(int steps, const probe_options& options, const Make& make)
{
    return testing::records_of({.ranks = ranks, .steps = steps, .options = options, .has_own_names = true}, [&](auto& comm, auto& stream, int s, auto&) {
        make(comm, static_cast<std::uint64_t>(s), stream);
    });
}

std::vector<std::vector<int>> stale_in(const std::vector<step_record>& records)
{
    std::vector<std::vector<int>> found;
    for (const step_record& record : records) {
        found.emplace_back();
        for (const finding& each : record.findings)
            if (each.what == finding_kind::stale) found.back() = each.ranks;
    }
    return found;
}

} // namespace

TEST_CASE("a shard that a rank has frozen is told in the first step that repeats what had changed")
{
    const auto records = run(8, {.times = false}, [](auto& comm, std::uint64_t s, host::stream& stream) {
        // Rank 1 from the first step on, rank 2 from step 3 on, but for step 6.
        const std::uint64_t version = comm.rank() == 1 ? 0 : comm.rank() != 2 || s < 3 ? s : s < 6 ? 2 : s == 6 ? 6 : 6;
        const std::vector<float> shard = data_of(comm.rank(), version);
        std::vector<float> whole(ranks * n);
        comm.all_gather(shard, view(whole), stream);
        stream.synchronize();
    });
    const std::vector<std::vector<int>> expected{{}, {}, {}, {2}, {}, {}, {}, {2}};
    CHECK(stale_in(records) == expected);
    CHECK(records[4].calls[0].repeating_ranks == 2);
    CHECK(records[4].repeated_calls() == 0);
}

TEST_CASE("a shard that stops to change is told, also where all ranks repeat theirs in between")
{
    const auto records = run(8, {.times = false}, [](auto& comm, std::uint64_t s, host::stream& stream) {
        const std::vector<float> shard = data_of(comm.rank(), comm.rank() == 3 && s >= 4 ? 1 : s / 2);
        std::vector<float> whole(ranks * n);
        comm.all_gather(shard, view(whole), stream);
        stream.synchronize();
    });
    CHECK(stale_in(records) == std::vector<std::vector<int>>{{}, {}, {}, {}, {3}, {}, {}, {}});
}

TEST_CASE("of a call that some ranks have, what more than half of these repeat is the program's doing")
{
    const auto of_senders = [](int senders, int repeating) {
        return run(3, {.times = false}, [=](auto& comm, std::uint64_t s, host::stream& stream) {
            const bool sends = comm.rank() < senders;
            const std::vector<float> gradient = data_of(comm.rank(), comm.rank() < repeating ? 0 : s);
            auto call = sends ? comm.observe(view<const float>(gradient), stream)
                              : comm.template observe_no_input<float>(n, stream);
            call.no_result(stream);
            stream.synchronize();
        });
    };
    for (const auto& pair : {std::pair{1, 1}, {2, 2}, {3, 2}}) {
        CAPTURE(pair.first);
        const auto records = of_senders(pair.first, pair.second);
        CHECK(stale_in(records) == std::vector<std::vector<int>>(3));
        CHECK(records[2].repeated_calls() == 1);
    }
    CHECK(stale_in(of_senders(3, 1))[2] == std::vector<int>{0});
    CHECK(stale_in(of_senders(2, 1))[2] == std::vector<int>{0});
}

TEST_CASE("ranks with the same data are copies in a sum of gradients, and healthy in other calls")
{
    const auto told_of = [](auto make) {
        const auto records = run(2, {.times = false}, [&](auto& comm, std::uint64_t s, host::stream& stream) {
            const std::vector<float> send = data_of(comm.rank() / 2, s);
            std::vector<float> receive(ranks * n);
            make(comm, view<const float>(send), view(receive), stream);
            stream.synchronize();
        });
        return testing::told(records[1]);
    };
    CHECK(told_of([](auto& comm, auto send, auto receive, auto& stream) { comm.all_gather(send, receive, stream); }) == "");
    CHECK(told_of([](auto& comm, auto send, auto receive, auto& stream) {
        comm.all_reduce(send, receive.part(0, n), reduction::max, stream);
    }) == "");
    CHECK(told_of([](auto& comm, auto send, auto receive, auto& stream) {
        comm.all_reduce(send, receive.part(0, n), reduction::sum, stream);
    }) == "duplicate 0,1 in 0; duplicate 2,3 in 0");
}

TEST_CASE("the sampled result is one that most ranks have")
{
    const auto error_of = [](int damaged) {
        const auto records = run(1, {.order_sample = 16, .times = false}, [=](auto& comm, std::uint64_t, auto& stream) {
            const std::vector<float> gradient = data_of(comm.rank(), 3);
            std::vector<float> sum(n);
            auto call = comm.observe(view<const float>(gradient), stream);
            comm.base().all_reduce(gradient, view(sum), reduction::sum, stream);
            stream.synchronize();
            if (comm.rank() == damaged)
                for (float& each : sum) each *= 2;
            call.result(view<const float>(sum), stream);
            stream.synchronize();
        });
        REQUIRE(records[0].calls[0].result_sample.size() == 16);
        return records[0].order().rms_ulp_error;
    };
    const double healthy = error_of(-1);
    for (int rank = 0; rank < ranks; ++rank) CHECK(error_of(rank) == healthy);
}

TEST_CASE("numbers of one value are equal whatever their types, and by their bits")
{
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto tells = [](const auto& first, const auto& others) {
        const auto records = run(1, {.times = false}, [&](auto& comm, std::uint64_t, host::stream&) {
            if (comm.rank() == 0) comm.expect_equal("value", first);
            else comm.expect_equal("value", others);
        });
        return records[0].findings.empty();
    };
    CHECK(tells(1, 1.0));
    CHECK(tells(1.0f, std::uint64_t{1}));
    CHECK(tells(-3, -3.0));
    CHECK(tells(0, 0.0));
    CHECK(tells(std::int64_t{1} << 60, 0x1p60));
    CHECK_FALSE(tells(std::int64_t{1} << 60, (std::int64_t{1} << 60) + 1));
    CHECK(tells(1e300, 1e300));
    CHECK_FALSE(tells(0, -0.0));
    CHECK_FALSE(tells(-1, ~std::uint64_t{0}));
    CHECK_FALSE(tells(1, 1.5));
    CHECK_FALSE(tells(0.1f, 0.1));
    CHECK(tells(nan, nan));
    CHECK(tells(report_mode::gather, report_mode::gather));
    CHECK_FALSE(tells(false, true));
    CHECK_FALSE(tells(std::uint64_t{1} << 63, (std::uint64_t{1} << 63) + 1));
}

} // namespace collprobe::testing::repeats_test

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/detail/gram.hpp>

using namespace collprobe;

namespace {

std::vector<float> values_of(int rank, std::size_t count)
{
    std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 7);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& x : values) x = normal(random);
    return values;
}

} // namespace

TEST_CASE("the parts of all ranks add up to the Gram matrix, whatever the count and the scratch")
{
    for (const int n : {1, 2, 3, 8}) {
        for (const std::size_t count : {0u, 1u, 5u, 64u, 1003u}) {
            for (const std::uint64_t scratch_bytes : {std::uint64_t{64}, std::uint64_t{4096}, std::uint64_t{1} << 20}) {
                CAPTURE(n);
                CAPTURE(count);
                CAPTURE(scratch_bytes);
                const auto ranks = static_cast<std::size_t>(n);
                std::vector<std::vector<double>> partial(ranks, std::vector<double>(ranks * ranks));
                local::run(n, [&](local::communicator& comm) {
                    std::vector<float> own = values_of(comm.rank(), count);
                    host::buffer<unsigned char> scratch(scratch_bytes);
                    host::stream stream;
                    std::vector<double>& mine = partial[static_cast<std::size_t>(comm.rank())];
                    collprobe::detail::accumulate_gram<float>(comm, own, mine, view<unsigned char>(scratch), stream);
                    collprobe::detail::accumulate_gram<float>(comm, own, mine, view<unsigned char>(scratch), stream); // adds
                    stream.synchronize(20'000);
                });
                for (std::size_t i = 0; i < ranks; ++i) {
                    for (std::size_t j = i; j < ranks; ++j) {
                        const auto x = values_of(static_cast<int>(i), count);
                        const auto y = values_of(static_cast<int>(j), count);
                        long double expected = 0, scale = 0;
                        for (std::size_t k = 0; k < count; ++k) {
                            expected += static_cast<long double>(x[k]) * y[k];
                            scale += std::abs(static_cast<long double>(x[k]) * y[k]);
                        }
                        double sum = 0;
                        for (const auto& part : partial) sum += part[i * ranks + j];
                        CHECK(std::abs(sum - 2 * expected) <= 1e-14L * scale);
                    }
                }
            }
        }
    }
}

TEST_CASE("a matrix or a scratch of the wrong size is refused by name")
{
    local::run(1, [](local::communicator& comm) {
        host::stream stream;
        std::vector<float> own(4);
        std::vector<double> matrix(1), wrong(2);
        std::vector<unsigned char> scratch(64), tiny(7);
        const auto refused = [&](view<double> partial, view<unsigned char> room, const char* word) {
            try {
                collprobe::detail::accumulate_gram<float>(comm, own, partial, room, stream);
                FAIL_CHECK("accepted");
            } catch (const error& failure) {
                CHECK(failure.code() == status::invalid_argument);
                CHECK(std::string(failure.what()).find(word) != std::string::npos);
            }
        };
        refused(wrong, scratch, "partial");
        refused(matrix, tiny, "scratch");
    });
}

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <collprobe/scan/statistics.hpp>
#include <collprobe/step/detail/message.hpp>

#include "adversarial.hpp"
#include "cuda_schedule.hpp"
#include "support/element_types.hpp"

using namespace collprobe;
using adversarial::check_same_statistics;

namespace {

template <class T>
void check_schedule(const std::vector<T>& data)
{
    CAPTURE(std::string(element_traits<T>::name));
    CAPTURE(data.size());
    const detail::gradual_underflow as_on_a_gpu;
    const statistics expected = compute_statistics(view<const T>(data));
    const statistics found = cuda_schedule::compute_statistics<T, true>(data.data(), data.size());
    check_same_statistics(found, expected);
    statistics plain = cuda_schedule::compute_statistics<T, false>(data.data(), data.size());
    CHECK(plain.digest == 0);
    plain.digest = found.digest;
    plain.has_digest = 1;
    CHECK(std::memcmp(&plain, &found, sizeof plain) == 0);
}

} // namespace

TEST_CASE("slots - a function of the count, even numbers of rounds, at most 4096, all elements once")
{
    for (const std::uint64_t bytes : {1u, 2u, 4u, 8u}) {
        for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{8193},
                 std::uint64_t{1} << 20, (std::uint64_t{1} << 27) + 1, std::uint64_t{1} << 33, std::uint64_t{1} << 40,
                 ~std::uint64_t{0}}) {
            const detail::slot_plan plan = detail::plan_slots(count, bytes);
            CAPTURE(bytes);
            CAPTURE(count);
            CHECK(plan.slots <= 4096);
            CHECK(plan.length * bytes % (2 * detail::round_bytes) == 0);
            if (count == 0) {
                CHECK(plan.slots == 0);
                continue;
            }
            CHECK((count - 1) / plan.length == plan.slots - 1);
        }
    }
}

TEST_CASE("slots - no more elements than 32 bits count, or they are told apart")
{
    constexpr std::uint64_t limit = std::uint64_t{1} << 44;
    for (const std::uint64_t bytes : {1u, 2u, 4u, 8u}) {
        const std::uint64_t per_round = detail::round_bytes / bytes;
        // The longest slots that are whole multiples of four rounds and still fit.
        const std::uint64_t longest = 0xffffffffu / (4 * per_round) * (4 * per_round);
        CHECK(longest * 4096 < limit);
        for (const std::uint64_t count : {std::uint64_t{1}, limit / 2, longest * 4096 - 1, longest * 4096}) {
            const detail::slot_plan plan = detail::plan_slots(count, bytes);
            CAPTURE(count);
            CHECK(detail::has_countable_slots(plan));
            CHECK(plan.slots <= 4096);
            CHECK((plan.slots - 1) * plan.length < count);
            CHECK(count - (plan.slots - 1) * plan.length <= plan.length);
        }
        for (const std::uint64_t count : {longest * 4096 + 1, limit, limit + 1, ~std::uint64_t{0}}) {
            const detail::slot_plan plan = detail::plan_slots(count, bytes);
            CAPTURE(count);
            CHECK_FALSE(detail::has_countable_slots(plan));
            CHECK(plan.slots <= 4096);
        }
    }
}

TEST_CASE("the schedule of the kernels gives the statistics of the host - sizes around every boundary")
{
    testing::for_each_element_type([](auto sample) {
        using T = decltype(sample);
        const std::size_t round = 4096 / sizeof(T);
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{15}, std::size_t{17},
                 round - 1, round, round + 1, 2 * round, 2 * round + 3, 4 * round, 7 * round + 11, 40 * round + 5})
            check_schedule(adversarial::random_elements<T>(count, 0.1, 2.0, static_cast<unsigned>(count) + 1));
    });
}

TEST_CASE("the schedule of the kernels gives the statistics of the host - slots of many rounds")
{
    // 2048 rounds and more: slots grow beyond two rounds, with whole batches and single rounds.
    check_schedule(adversarial::random_elements<float>(3000 * 1024 + 777, 0, 1, 3));
    check_schedule(adversarial::random_elements<std::int8_t>(6000 * 4096 + 777, 0, 1, 3));
}

TEST_CASE("the schedule of the kernels gives the statistics of the host - a slot of more rounds than have factors")
{
    const std::vector<float16> data = adversarial::random_elements<float16>(700 * 2048 + 99, 0, 1, 5);
    using namespace collprobe::cuda_schedule;
    slot_result slot = reduce_slot<float16, scan::scan_features{true, true, false, false}>(
        input_of(data.data(), data.size()), 0, static_cast<std::uint32_t>(data.size()));
    const statistics expected = compute_statistics(view<const float16>(data));
    slot.value.digest = slot.digest.finish();
    check_same_statistics(slot.value, expected);
}

TEST_CASE("the schedule of the kernels gives the statistics of the host - NaN, infinities, zeros, subnormals, extremes")
{
    adversarial::for_each_input([](const auto& data) { check_schedule(data); });
}

TEST_CASE("the schedule of the kernels gives the same bits for every alignment")
{
    testing::for_each_element_type([](auto sample) {
        using T = decltype(sample);
        const std::vector<T> data = adversarial::random_elements<T>(5 * 4096 / sizeof(T) + 33, 3, 0.01, 9);
        const statistics expected = cuda_schedule::compute_statistics<T, true>(data.data(), data.size());
        std::vector<unsigned char> room(data.size() * sizeof(T) + 64);
        const std::size_t base = 64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64;
        for (std::size_t offset = 0; offset < 16; ++offset) {
            unsigned char* const at = room.data() + base % 64 + offset % 16;
            if (base % 64 + offset + data.size() * sizeof(T) > room.size()) break;
            std::memcpy(at, data.data(), data.size() * sizeof(T));
            const statistics found
                = cuda_schedule::compute_statistics<T, true>(reinterpret_cast<const T*>(at), data.size());
            CAPTURE(offset);
            CHECK(std::memcmp(&found, &expected, sizeof found) == 0);
        }
    });
}

TEST_CASE("the schedule of the kernels copies every byte to any alignment, with the same statistics")
{
    using namespace collprobe::cuda_schedule;
    const std::vector<bfloat16> data = adversarial::random_elements<bfloat16>(9 * 2048 + 501, 0, 1, 2);
    const statistics expected = cuda_schedule::compute_statistics<bfloat16, true>(data.data(), data.size());
    for (const std::size_t offset : {0u, 1u, 2u, 5u}) {
        std::vector<bfloat16> to(data.size() + 8);
        scan::scan_input<bfloat16> input = input_of(data.data(), data.size());
        input.destination = reinterpret_cast<unsigned char*>(to.data() + offset);
        slot_result all = reduce<bfloat16, scan::scan_features{true, true, true, false}>(input, data.size());
        all.value.digest = all.digest.finish();
        CHECK(std::memcmp(&all.value, &expected, sizeof expected) == 0);
        CHECK(std::memcmp(to.data() + offset, data.data(), data.size() * 2) == 0);
        CHECK(to[offset + data.size()].bits == 0);
    }
}

TEST_CASE("the schedule of the kernels gives digest, norm and dot of a result")
{
    testing::for_each_floating_type([](auto sample) {
        using namespace collprobe::cuda_schedule;
        using T = decltype(sample);
        const std::size_t count = 11 * 4096 / sizeof(T) + 77;
        const auto x = adversarial::random_elements<T>(count, 0.2, 1, 21);
        std::vector<T> y = adversarial::random_elements<T>(count, 0.1, 3, 22);
        for (const std::size_t shift : {0u, 1u}) {
            scan::scan_input<T> input = input_of(x.data(), count - shift);
            input.other = {reinterpret_cast<const unsigned char*>(y.data() + shift), (count - shift) * sizeof(T)};
            const slot_result all
                = reduce<T, scan::scan_features{false, true, false, true}>(input, count - shift);
            const scan::result_reducer<T> reducer{view<const T>(x.data(), count - shift), y.data() + shift};
            const scan::result_record expected
                = reducer.finish(detail::reduce_blocks(reducer, std::uint64_t{count - shift}));
            CHECK(all.digest.finish() == expected.digest);
            CHECK(all.value.scale == expected.scale);
            CHECK(all.value.nonfinite() == expected.nonfinite);
            CHECK(all.value.first_nonfinite == expected.first_nonfinite);
            CHECK(all.value.sum_of_squares == doctest::Approx(expected.sum_of_squares).epsilon(1e-12));
            CHECK(all.dot == doctest::Approx(expected.dot).epsilon(1e-10));
        }
    });
}

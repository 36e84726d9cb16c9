// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A reduction of finite inputs whose result is not finite: the step names call, element and number, and makes no norm
// and no direction of the rest. And how far other sums are from it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/report/table.hpp>

#include "support/element_types.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::overflow_test {
namespace {

constexpr int ranks = 4;

/// The records of audited steps with faults on the way. `make_calls(comm, stream, step, seen)`.
template <class MakeCalls>
std::vector<step_record> records_of(
    report_mode mode, int steps, const MakeCalls& make_calls, const std::vector<fault>& faults = {})
{
    const auto wrap = [&](local::communicator& world) { return faulty(world, faults); };
    return testing::records_over({ranks, steps, {.mode = mode, .times = false}}, wrap, make_calls, audit());
}
/// The record of a step. `make_calls(comm, rank, stream)`.
template <class MakeCalls>
step_record record_of(report_mode mode, const MakeCalls& make_calls, const std::vector<fault>& faults = {})
{
    return records_of(mode, 1, [&](auto& comm, auto& stream, int, auto&) { make_calls(comm, comm.rank(), stream); }, faults)[0];
}

/// 4096 elements of a rank, between -1 and 1.
template <floating_element T>
std::vector<T> gradient(int rank, std::uint64_t step, std::size_t count = 4096)
{
    std::vector<T> data(count);
    const std::uint64_t seed = detail::mix64(1000 * step + static_cast<std::uint64_t>(rank) + 1);
    for (std::size_t i = 0; i < count; ++i)
        data[i] = T(static_cast<float>(static_cast<double>(detail::mix64(seed + i) >> 11) * 0x1p-52 - 1));
    return data;
}

template <floating_element T>
double largest_of()
{
    using traits = element_traits<T>;
    return detail::widen(detail::bit_cast<T>(static_cast<typename traits::bits_type>(traits::smallest_nonfinite - 1)));
}

/// One for each rank, by call and rank.
std::vector<finding> all_of(const step_record& record, finding_kind what)
{
    std::vector<finding> found;
    for (const finding& each : record.findings) {
        if (each.what != what) continue;
        if (!each.is_named()) found.push_back(each);
        for (const int rank : each.ranks) {
            found.push_back(each);
            found.back().ranks = {rank};
        }
    }
    std::sort(found.begin(), found.end(),
        [](const finding& a, const finding& b) { return a.call != b.call ? a.call < b.call : a.rank() < b.rank(); });
    return found;
}

/// What a reader of the buffer finds.
struct counted_nonfinite {
    std::uint64_t count = 0;
    std::uint64_t first = no_index;

    template <floating_element T>
    static counted_nonfinite of(const std::vector<T>& data)
    {
        counted_nonfinite found;
        for (std::size_t i = 0; i < data.size(); ++i) {
            if (is_finite(data[i])) continue;
            if (found.count++ == 0) found.first = i;
        }
        return found;
    }
};

} // namespace

TEST_CASE("a sum of finite float16 gradients that is infinite is an overflow, with its element")
{
    for (const report_mode mode : testing::both_modes) {
        for (const bool in_place : {false, true}) {
            CAPTURE(name(mode));
            CAPTURE(in_place);
            const bool is_gather = mode == report_mode::gather;
            const step_record record = record_of(mode, [&](auto& comm, int rank, host::stream& stream) {
                std::vector<float16> send = gradient<float16>(rank, 1);
                send[100] = float16(20'000.f);
                std::vector<float16> apart(send.size());
                comm.all_reduce(send, view(in_place ? send : apart), reduction::sum, stream, call_site::named("wte"));
                stream.synchronize();
            });
            REQUIRE(testing::told(record) == "overflow in 0");
            const finding& found = record.findings[0];
            CHECK(found.statistic == 1);
            CHECK(found.threshold == 0);
            CHECK(found.index == (is_gather ? 100 : no_index));
            CHECK(std::string(found.site.name) == "wte");
            const call_record& call = record.calls.at(0);
            if (is_gather) CHECK(call.headroom == doctest::Approx(65504 / 80'000.0).epsilon(1e-12));
            else CHECK(is_nan(call.headroom));
            CHECK(call.nonfinite == 0);
            CHECK(call.result_nonfinite == 1);
            for (const double undefined : {call.result_norm, call.pooled_cosine, call.excess, record.cosine.pooled,
                     record.cosine.noise_scale, record.cosine.predicted_cosine}) // nothing was learnt
                CHECK(is_nan(undefined));
            CHECK(call.audit.checked);
            CHECK_FALSE(call.audit.sum_checked);
            CHECK_FALSE(call.audit.conserved);
            CHECK(call.audit.where == damage::reduce);
            const std::string text = report::step_table(record);
            CHECK(text.find("NaN or infinity as the result of finite inputs (overflow): 1 element") != text.npos);
            CHECK((text.find("the first at index 100") != text.npos) == is_gather);
            CHECK(text.find("scale the inputs down") != text.npos);
        }
    }
}

TEST_CASE_TEMPLATE("number and first index of an overflow are those of the buffer that the ranks receive", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    constexpr std::size_t block = detail::result_reducer<T>::block;
    // Of these values alone every rank has 3/4 of the largest.
    for (const std::size_t count : {std::size_t{4}, std::size_t{92}, block, 2 * block + 36}) {
        for (const std::size_t faults : {std::size_t{0}, std::size_t{1}, std::size_t{7}, count / 2, count}) {
            CAPTURE(count);
            CAPTURE(faults);
            std::vector<std::size_t> places;
            for (std::size_t i = 0; i < faults; ++i) {
                const std::uint64_t random = detail::mix64(count + 13 * i + faults) % count;
                places.push_back(faults == count ? i : i == 1 || faults == 1 ? count - 1 : static_cast<std::size_t>(random));
            }
            counted_nonfinite of_sum;
            std::vector<counted_nonfinite> of_parts(ranks);
            for (const report_mode mode : testing::both_modes) {
                CAPTURE(name(mode));
                const step_record record = record_of(mode, [&](auto& comm, int rank, host::stream& stream) {
                    std::vector<T> send = gradient<T>(rank, 3, count);
                    for (const std::size_t at : places) send[at] = T(0.75 * largest_of<T>());
                    std::vector<T> sum(count), part(count / ranks), same(count);
                    comm.all_reduce(send, view(sum), reduction::sum, stream);
                    comm.reduce_scatter(send, view(part), reduction::sum, stream);
                    comm.all_reduce(send, view(same), reduction::max, stream); // no maximum overflows
                    stream.synchronize();
                    if (rank == 0) of_sum = counted_nonfinite::of(sum);
                    of_parts[static_cast<std::size_t>(rank)] = counted_nonfinite::of(part);
                });
                const std::vector<finding> found = all_of(record, finding_kind::overflow);
                CHECK((of_sum.count == 0) == (faults == 0));
                std::size_t at = 0;
                std::uint64_t most = 0;
                std::uint64_t in_all = 0;
                for (const counted_nonfinite& part : of_parts) {
                    most = std::max(most, part.count);
                    in_all += part.count;
                }
                if (faults == 0) {
                    CHECK(record.findings.empty());
                    continue;
                }
                REQUIRE(found.size() >= 2);
                CHECK(found[at].rank() == -1);
                CHECK(found[at].call == 0);
                CHECK(found[at].statistic == static_cast<double>(of_sum.count));
                CHECK(found[at++].index == (mode == report_mode::gather ? of_sum.first : no_index));
                CHECK(record.calls[0].result_nonfinite == of_sum.count);
                CHECK(record.calls[1].result_nonfinite == (mode == report_mode::gather ? in_all : most));
                CHECK(record.calls[2].result_nonfinite == 0);
                CHECK(is_nan(record.calls[1].result_norm));
                CHECK(is_nan(record.calls[1].pooled_cosine));
                CHECK_FALSE(is_nan(record.calls[2].result_norm)); // infinite where squares of doubles are
                for (std::size_t r = 0; r < of_parts.size(); ++r) {
                    const counted_nonfinite& part = of_parts[r];
                    if (mode == report_mode::summary && (part.count != most || at == 2)) continue; // the worst part
                    if (part.count == 0) continue;
                    REQUIRE(at < found.size());
                    CHECK(found[at].rank() == static_cast<int>(r));
                    CHECK(found[at].call == 1);
                    CHECK(found[at].statistic == static_cast<double>(part.count));
                    CHECK(found[at++].index == (mode == report_mode::gather ? part.first : no_index));
                }
                CHECK(at == found.size());
                CHECK(all_of(record, finding_kind::sum_differs).empty());
                CHECK(all_of(record, finding_kind::result_differs).empty());
            }
        }
    }
}

TEST_CASE("where an input is not finite nothing overflows, and norm and direction of the result are undefined")
{
    for (const report_mode mode : testing::both_modes) {
        CAPTURE(name(mode));
        const step_record record = record_of(mode, [&](auto& comm, int rank, host::stream& stream) {
            std::vector<float> send = gradient<float>(rank, 1), sum(send.size());
            if (rank == 2) send[5] = static_cast<float>(detail::not_a_number());
            comm.all_reduce(send, view(sum), reduction::average, stream);
            stream.synchronize();
        });
        REQUIRE(testing::told(record) == "non_finite 2 in 0");
        CHECK(record.findings[0].statistic == 1);
        CHECK(record.left_out == std::vector{2});
        if (mode == report_mode::gather) CHECK(record.findings[0].index == 5);
        CHECK(record.calls[0].nonfinite == 1);
        CHECK(record.calls[0].gradient_norm.finite == 4);
        CHECK(is_nan(record.calls[0].result_norm));
        CHECK(is_nan(record.calls[0].pooled_cosine));
        CHECK(is_nan(record.cosine.pooled));
        CHECK(is_nan(record.calls[0].headroom));
        CHECK_FALSE(record.calls[0].audit.sum_checked);
    }
}

TEST_CASE("an infinity in a result whose inputs cannot overflow is damage, and the finding says so")
{
    const std::vector<fault> faults{{.kind = fault_kind::infinity, .phase = fault_phase::during, .rank = 1}};
    for (const report_mode mode : testing::both_modes) {
        CAPTURE(name(mode));
        for (const reduction how : {reduction::sum, reduction::average, reduction::max}) {
            CAPTURE(name(how));
            const step_record record = record_of(mode,
                [&](auto& comm, int rank, host::stream& stream) {
                    std::vector<float> send = gradient<float>(rank, 1), result(send.size());
                    comm.all_reduce(send, view(result), how, stream);
                    stream.synchronize();
                },
                faults);
            const std::vector<finding> found = all_of(record, finding_kind::overflow);
            REQUIRE(found.size() == 1);
            CHECK(found[0].rank() == -1);
            const bool is_known = mode == report_mode::gather || how == reduction::max;
            CHECK((found[0].threshold > 1) == is_known);
            CHECK((report::describe(found[0]).find("cannot overflow") != std::string::npos) == is_known);
            CHECK_FALSE(record.calls[0].audit.conserved);
        }
        // What only moves data has a shard that differs, and the same undefined norm.
        const step_record moved = record_of(mode,
            [&](auto& comm, int rank, host::stream& stream) {
                std::vector<float> send = gradient<float>(rank, 1), result(ranks * send.size());
                comm.all_gather(send, view(result), stream);
                stream.synchronize();
            },
            faults);
        CHECK(all_of(moved, finding_kind::overflow).empty());
        CHECK(all_of(moved, finding_kind::shard_differs).size() == 1);
        CHECK((mode == report_mode::gather || is_nan(moved.calls[0].result_norm)));
        CHECK(is_finite(moved.calls[0].excess) == (mode == report_mode::summary)); // the audit's shards have no norm
    }
}

TEST_CASE("the headroom of sums and averages, and where there is none")
{
    const step_record record = record_of(report_mode::gather, [](auto& comm, int rank, host::stream& stream) {
        std::vector<float16> near(64, float16(1.f)), sum(64);
        near[3] = float16(-1000.f * static_cast<float>(rank + 1));
        std::vector<double> wide(64, 0x1p1021), wide_sum(64);
        std::vector<float8_e4m3> narrow(64, float8_e4m3(8.f)), narrow_sum(64);
        std::vector<float16> zeros(64);
        std::vector<std::int32_t> ints(64, 1), ints_sum(64);
        comm.all_reduce(near, view(sum), reduction::sum, stream, call_site::named("wte"));
        comm.all_reduce(near, view(sum), reduction::average, stream);
        comm.all_reduce(wide, view(wide_sum), reduction::sum, stream);
        comm.all_reduce(narrow, view(narrow_sum), reduction::sum, stream);
        comm.all_reduce(near, view(sum), reduction::max, stream);
        comm.all_reduce(zeros, view(sum), reduction::sum, stream);
        comm.broadcast(near, view(sum), 0, stream);
        comm.all_reduce(ints, view(ints_sum), reduction::sum, stream);
        stream.synchronize();
    });
    CHECK(all_of(record, finding_kind::overflow).empty());
    CHECK(record.calls[0].headroom == doctest::Approx(6.5504).epsilon(1e-12));
    CHECK(record.calls[1].headroom == doctest::Approx(4 * 6.5504).epsilon(1e-12));
    CHECK(record.calls[2].headroom == doctest::Approx(2).epsilon(1e-12));
    CHECK(record.calls[3].headroom == doctest::Approx(14).epsilon(1e-12));
    for (std::size_t c = 4; c < record.calls.size(); ++c) CHECK(is_nan(record.calls[c].headroom));

    step_record near = record;
    near.calls[0].headroom = 2.6;
    const std::string text = report::step_table(near);
    INFO(text);
    CHECK(text.find("note: bucket 0 'wte'") != text.npos);
    CHECK(text.find(": its result may be 2.6 times larger before half overflows\n") != text.npos);
    CHECK(text.find("may be 2 times larger before double overflows\n") != text.npos);
    near.calls[0].headroom = 0.9;
    CHECK(report::step_table(near).find("is finite, but its largest terms together would overflow half\n")
        != std::string::npos);
    CHECK(report::json_line("run", near).find("\"headroom\":0.9,") != std::string::npos);
}

TEST_CASE("sums that come near the range of their type, and stay in it, are silent")
{
    constexpr int steps = COLLPROBE_TEST_UNLESS_BRIEF(10'000, COLLPROBE_TEST_UNLESS_SANITIZED(1'000, 100));
    for (const report_mode mode : testing::both_modes) {
        int near = 0;
        for (const step_record& record : records_of(mode, steps, [](auto& comm, auto& stream, int step, auto&) {
                 std::vector<float16> send = gradient<float16>(comm.rank(), static_cast<std::uint64_t>(step), 256), sum(256), part(64);
                 for (float16& each : send) each = float16(static_cast<float>(16'000 * detail::widen(each)));
                 comm.all_reduce(send, view(sum), reduction::sum, stream);
                 comm.reduce_scatter(send, view(part), reduction::average, stream);
                 stream.synchronize();
             })) {
            for (const finding& each : record.findings) CHECK_FALSE(each.exact);
            for (const call_record& call : record.calls) CHECK((is_finite(call.excess) && call.audit.sum_checked && call.audit.conserved));
            CHECK(is_finite(record.cosine.pooled));
            near += is_finite(record.calls[0].headroom) && record.calls[0].headroom < 1.2 ? 1 : 0;
        }
        CHECK(near == (mode == report_mode::gather ? steps : 0));
    }
}

TEST_CASE("neither a step with an overflow, nor a damaged sum or a healthy spike spoils what is learnt over the steps")
{
    enum class in_step_50 { nothing, overflow, spike, damage };
    for (const report_mode mode : testing::both_modes) {
        double undisturbed = 0; // in the last step
        for (const in_step_50 what : {in_step_50::nothing, in_step_50::overflow, in_step_50::spike, in_step_50::damage}) {
            CAPTURE(name(mode));
            CAPTURE(static_cast<int>(what));
            std::vector<fault> faults;
            if (what == in_step_50::damage)
                faults = {{.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 2, .call = 50, .magnitude = 1e4}};
            const auto records = records_of(mode, 120, [&](auto& comm, auto& stream, int step, auto&) {
                // Half of the ranks' mean is common to them.
                const std::vector<float> own = gradient<float>(comm.rank(), static_cast<std::uint64_t>(step));
                const std::vector<float> common = gradient<float>(77, 0);
                std::vector<float16> send(own.size()), sum(own.size());
                const float scale = step == 50 && what == in_step_50::spike ? 100.f : 1.f;
                for (std::size_t i = 0; i < own.size(); ++i) send[i] = float16(scale * (0.5f * common[i] + own[i]));
                if (step == 50 && what == in_step_50::overflow) send[9] = float16(30'000.f);
                comm.all_reduce(send, view(sum), reduction::sum, stream);
                stream.synchronize();
            }, faults);
            CHECK(all_of(records[50], finding_kind::overflow).size() == (what == in_step_50::overflow ? 1 : 0));
            const double before = records[49].cosine.predicted_cosine;
            CHECK(before > 0.15);
            for (std::size_t step = 51; step < 120; ++step)
                CHECK(records[step].cosine.predicted_cosine == doctest::Approx(before).epsilon(0.1));
            if (what == in_step_50::nothing) undisturbed = records[119].cosine.predicted_cosine;
            else CHECK(records[119].cosine.predicted_cosine == doctest::Approx(undisturbed).epsilon(0.02));
        }
    }
}

} // namespace collprobe::testing::overflow_test

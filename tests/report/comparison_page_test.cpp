// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/detail/math.hpp>
#include <collprobe/report/comparison_page.hpp>

#include "support/checks.hpp"

using namespace collprobe;
using testing::contains;

namespace {

report::run_log log_of(const std::string& run, std::uint64_t digest, double sample, bool alarm = false)
{
    report::run_log log(run);
    for (std::uint64_t step = 0; step < 50; ++step) {
        step_record record;
        record.step = step;
        record.first_call = step;
        record.ranks = 4;
        record.loss.mean = 1;
        record.calls.resize(1);
        call_record& call = record.calls[0];
        call.site.name = "</script><b>\xff";
        call.count = call.result_count = 8;
        call.has_result_digest = true;
        call.result_digest = step < 7 ? step : step + digest;
        call.result_norm = 1;
        call.result_sample = {1, step < 7 ? 2 : 2 + sample};
        log.add(record);
        if (!alarm || step != 9) continue;
        finding raised;
        raised.step = step;
        raised.call = 0;
        raised.ranks = {2};
        raised.what = finding_kind::stale;
        log.add(raised);
    }
    return log;
}

std::string page_of(const report::run_log& a, const report::run_log& b)
{
    const std::vector<report::run_comparison> all{report::compare(a, b)};
    return report::comparison_page(view<const report::run_comparison>(all));
}

} // namespace

TEST_CASE("the page of equal runs says so, and draws nothing")
{
    const std::string page = page_of(log_of("a", 1, 0), log_of("b", 1, 0));
    CHECK(contains(page, "identical: 50 steps, 50 calls with equal digests, 4 ranks"));
    CHECK(contains(page, "verdict fine"));
    CHECK_FALSE(contains(page, "<svg"));
}

TEST_CASE("the page of runs that part names the call, draws the growth and lists the alarms")
{
    const std::string page = page_of(log_of("a", 1, 0), log_of("b<i>", 2, 1e-6, true));
    CHECK(contains(page, "the runs differ: first in step 7, bucket 0 "));
    CHECK(contains(page, "verdict look"));
    CHECK(contains(page, "<svg"));
    CHECK(contains(page, "Alarms only in B"));
    CHECK(contains(page, "rank 2"));
    CHECK(contains(page, "sent the same data as in the last such call"));
    CHECK(contains(page, "b&lt;i&gt;"));
    CHECK_FALSE(contains(page, "<i>"));
    CHECK_FALSE(contains(page, "<b>\xff"));
    CHECK_FALSE(contains(page, "http"));
    CHECK(page.find("</script>") == page.rfind("</script>"));
}

TEST_CASE("differences that cannot be drawn leave the page whole")
{
    for (const double sample : {0.0, detail::infinity(), detail::not_a_number(), 1e308, 5e-324}) {
        const std::string page = page_of(log_of("a", 1, 0), log_of("b", 2, sample));
        CHECK(contains(page, "the runs differ: first in step 7"));
        CHECK(page.ends_with("</body></html>\n"));
    }
    CHECK(report::comparison_page({}).ends_with("</body></html>\n"));
}

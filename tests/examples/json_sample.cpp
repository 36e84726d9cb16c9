// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Prints JSON lines with everything that is hard to write: names to escape, undefined and infinite
// numbers, the largest and the smallest. check_json.py reads them back.
#include <cstdio>

#include <collprobe/report/json.hpp>

int main()
{
    using namespace collprobe;
    const char* const run = "quote \" backslash \\ newline \n tab \t bell \a gr\xc3\xbc\xc3\x9f";
    step_record record;
    record.step = ~std::uint64_t{0};
    record.ranks = 2;
    record.loss.mean = 0.1;
    record.loss.std = 5e-324;
    record.loss.range = 1.7976931348623157e308;
    record.gradient_norm.mean = 1.0 / 3.0;
    record.cosine.noise_scale = detail::infinity();
    record.cosine.leave_one_out = {-0.0, detail::not_a_number()};
    record.findings = {{.ranks = {1}, .call = 2, .what = finding_kind::non_finite, .statistic = -detail::infinity(), .index = 7}};
    record.settle_findings();
    std::fputs(report::json_line(run, record).c_str(), stdout);
}

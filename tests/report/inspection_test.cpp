// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <string>

#include <collprobe/report/inspection.hpp>
#include <collprobe/report/json.hpp>

namespace collprobe::testing::inspection_test {
namespace {

inspection sample()
{
    inspection found;
    found.communicator = "nccl";
    found.element = element_type::bfloat16;
    found.count = 1024;
    found.ranks = 8;
    found.order = order_class::ring;
    found.orders = {{"((1+2)+3)+0", 0, 1000}, {"", 1000, 24}};
    found.partial_sum_bits = 24;
    found.roundings_per_element = 1;
    found.size_stable = false;
    found.max_ulp = 0.75;
    found.rms_ulp = 0.25;
    found.reproduced = 0.99999;
    found.time_us = 8;
    found.algbw_gbs = 0.256;
    found.busbw_gbs = 0.448;
    return found;
}

} // namespace

TEST_CASE("a table has a row per inspection, with what is not known left open")
{
    inspection bare;
    bare.count = 1;
    bare.ranks = 2;
    bare.ranks_agree = false;
    CHECK(report::inspection_table({sample(), bare})
        == "size (B)  count      type  ranks  order  partial sums  roundings  stable  max ulp  rms ulp  reproduced"
           "  time (us)  algbw (GB/s)  busbw (GB/s)\n"
            + std::string(141, '-') + "\n"
           "2048       1024  bfloat16      8   ring    24 (float)          1     r-p     0.75     0.25     99.99 %"
           "          8         0.256         0.448\n"
           "4             1     float      2  other             -          -    rsp!        0        0           -"
           "          0             0             0\n");
}

TEST_CASE("precision has the name of the type that keeps it, unless there may be more")
{
    inspection found;
    const auto text = [&](int bits, bool or_more = false) {
        found.partial_sum_bits = bits;
        found.partial_sum_bits_or_more = or_more;
        return report::detail::partial_sum_precision(found);
    };
    CHECK(text(0) == "-");
    CHECK(text(8) == "8 (bfloat16)");
    CHECK(text(11) == "11 (half)");
    CHECK(text(53) == "53 (double)");
    CHECK(text(59) == "59");
    CHECK(text(25, true) == ">=25");
}

TEST_CASE("an inspection is a JSON line, null where it has no number")
{
    CHECK(report::json_line("a run", sample())
        == "{\"schema\":1,\"kind\":\"inspection\",\"run\":\"a run\",\"communicator\":\"nccl\",\"element\":\"bfloat16\","
           "\"count\":1024,\"ranks\":8,\"roundings_per_element\":1,\"partial_sum_precision\":24,"
           "\"partial_sum_precision_or_more\":false,\"order_class\":\"ring\",\"orders\":2,"
           "\"order_list\":[{\"brackets\":\"((1+2)+3)+0\",\"first\":0,\"elements\":1000},"
           "{\"brackets\":\"\",\"first\":1000,\"elements\":24}],\"run_stable\":true,"
           "\"size_stable\":false,\"permutation_stable\":true,\"ranks_agree\":true,\"max_ulp\":0.75,\"rms_ulp\":0.25,"
           "\"reproduced\":0.99999,\"median_us\":8,\"algbw_gbs\":0.256,"
           "\"busbw_gbs\":0.448}\n");
    const std::string line = report::json_line("", inspection{});
    CHECK(line.find("\"roundings_per_element\":null,\"partial_sum_precision\":null,") != std::string::npos);
    CHECK(line.find("\"reproduced\":\"nan\"") != std::string::npos);
}

TEST_CASE("orders are listed by where they begin")
{
    CHECK(report::order_list(sample())
        == "from element 0, 1000 of them: ((1+2)+3)+0\nfrom element 1000, 24 of them: ring\n");
}

TEST_CASE("orders that only some ranks see name these ranks")
{
    inspection found = sample();
    found.orders = {{"(0+1)+2", 0, 8, {0, 1}}, {"(1+2)+0", 0, 8, {2}}};
    CHECK(report::order_list(found)
        == "from element 0, 8 of them, on rank 0 1: (0+1)+2\nfrom element 0, 8 of them, on rank 2: (1+2)+0\n");
}

} // namespace collprobe::testing::inspection_test

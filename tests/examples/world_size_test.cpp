// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../../examples/studies/world_size/options.hpp"
#include "../../examples/studies/world_size/report.hpp"

using namespace world_size;

namespace {

std::string refusal(const std::vector<std::string>& arguments)
{
    try {
        parse_options(arguments);
        return "accepted";
    } catch (const usage_error& problem) {
        return problem.what();
    }
}

run_result run_of(averaging how, int ranks, std::vector<float> weights)
{
    run_result run;
    run.reduction = how;
    run.ranks = ranks;
    run.leaves = 16 / ranks;
    run.digest = collprobe::digest(collprobe::view<const float>(weights));
    run.weights = std::move(weights);
    run.test_accuracy = 0.5;
    run.ranks_agree = true;
    return run;
}

} // namespace

TEST_CASE("numbers of ranks are those that deal out the micro-batches evenly")
{
    CHECK(default_ranks(16, 256) == std::vector<int>{2, 4, 8, 16});
    CHECK(default_ranks(16, 5) == std::vector<int>{2, 4});
    CHECK(default_ranks(12, 256) == std::vector<int>{2, 4});
    CHECK(default_ranks(9, 256) == std::vector<int>{1});
    CHECK(default_ranks(16, 1) == std::vector<int>{1});
    CHECK(refusal({"--ranks", "1,16"}) == "accepted");
    CHECK(refusal({"--ranks", "2,3"}) == "--ranks: 16 micro-batches cannot be dealt out evenly to 3 ranks");
    CHECK(refusal({"--ranks=3", "--micro-batches=9"}) == "accepted");
}

TEST_CASE("what cannot be followed is refused by name")
{
    CHECK(refusal({"--steps"}) == "--steps needs a value");
    CHECK(refusal({"--jsonl="}) == "--jsonl needs a value");
    CHECK(refusal({"--jsonl", ""}) == "--jsonl needs a path");
    CHECK(refusal({"--jsonl", "-"}) == "--jsonl: '-' is no path here: the standard output has the report");
    CHECK(refusal({"--bogus=1"}) == "unknown option '--bogus'");
    CHECK(refusal({"--order", "star"}) == "--order: 'star' is none of ring, tree, linear");
    CHECK(refusal({"--reductions", "native,none"})
        == "--reductions: 'none' is none of native, order_invariant, correctly_rounded");
    CHECK(refusal({"--communicator", "mpi", "--order", "ring"}) == "--order: with --communicator mpi the order is MPI's");
    CHECK_THROWS_AS(parse_options({"--help", "--bogus"}), trainer::help_request);
}

TEST_CASE("two runs are compared bit by bit, and by ulp")
{
    const std::vector<float> a = {1, 0, 2, -1};
    CHECK(compare(a, a).elements == 0);
    const difference apart = compare(a, {1, -0.0F, 2 + 0x1p-22F, -1 - 3 * 0x1p-23F});
    CHECK(apart.elements == 3); // the sign of a zero counts, at a distance of 0
    CHECK(apart.median_ulp == 1);
    CHECK(apart.largest_ulp == 3);
}

TEST_CASE("one bit, or one rank, that differs breaks a contract")
{
    std::vector<run_result> runs = {run_of(averaging::correctly_rounded, 2, {1, 2}),
        run_of(averaging::native, 2, {1, 2}), run_of(averaging::correctly_rounded, 4, {1, 2}),
        run_of(averaging::native, 4, {1, 2 + 0x1p-22F})};
    CHECK(identical(runs, averaging::correctly_rounded));
    CHECK_FALSE(identical(runs, averaging::native));
    CHECK(conclusion(runs).find("correctly_rounded: the number of ranks leaves no trace: 2 runs, one digest.\n") == 0);
    CHECK(conclusion(runs).find("native: the same gradients, added in another order") != std::string::npos);
    CHECK(table(runs).find("1 of 2") != std::string::npos);
    runs[2].ranks_agree = false;
    CHECK_FALSE(identical(runs, averaging::correctly_rounded));
    runs[2].ranks_agree = true;
    runs[2].weights[0] = 1 + 0x1p-23F;
    CHECK_FALSE(identical(runs, averaging::correctly_rounded));
}

TEST_CASE("a summary is one line of JSON with a digest of 16 digits")
{
    run_result run = run_of(averaging::order_invariant, 4, {1});
    run.digest = 0xab;
    CHECK(json_line(run, wire_element::bfloat16)
        == "{\"schema\":1,\"kind\":\"summary\",\"reduction\":\"order_invariant\",\"element\":\"bfloat16\",\"ranks\":4,"
           "\"leaves\":4,\"weights_digest\":\"00000000000000ab\",\"test_accuracy\":0.5}\n");
}

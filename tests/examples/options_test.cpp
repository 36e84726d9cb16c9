// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../../examples/studies/silent_inconsistency/parse_options.hpp"

using namespace trainer;

namespace {

std::string refusal(const std::vector<std::string>& arguments)
{
    try {
        parse_options(arguments);
    } catch (const usage_error& problem) {
        return problem.what();
    }
    return "accepted";
}

} // namespace

TEST_CASE("without options the defaults of the help text hold")
{
    const options given = parse_options({});
    CHECK(given.ranks == 8);
    CHECK(given.steps == 300);
    CHECK(given.batch == 32);
    CHECK(given.hidden == 64);
    CHECK(given.seed == 1);
    CHECK(given.device == device_kind::host);
    CHECK(given.settings.size() == 3);
    CHECK_FALSE(given.injected.has_value());
}

TEST_CASE("every option is understood, with a space or an equals sign")
{
    const options given = parse_options(
        {"--ranks=3", "--steps", "70", "--batch=9", "--settings", "significant,strict", "--sampler", "iid",
            "--seed", "18446744073709551615", "--element=half", "--dump", "d", "--dump-steps", "0,69",
            "--jsonl", "a=b.jsonl", "--learning-rate", "0.5", "--momentum=0", "--dropout", "0", "--hidden",
            "5", "--device=cuda", "--data", "x", "--fault", "rank=2,kind=noise,at=69,factor=0.5,bucket=1"});
    CHECK(given.ranks == 3);
    CHECK(given.steps == 70);
    CHECK(given.batch == 9);
    CHECK(given.settings == std::vector<setting>{setting::strict, setting::significant});
    CHECK(given.device == device_kind::cuda);
    CHECK(given.sampler == sampler_kind::iid);
    CHECK(given.seed == ~std::uint64_t{0});
    CHECK(given.element == wire_element::float16);
    CHECK(given.dump_steps == std::vector<std::uint64_t>{0, 69});
    CHECK(given.files.jsonl == "a=b.jsonl");
    REQUIRE(given.injected.has_value());
    CHECK(given.injected->rank == 2);
    CHECK(given.injected->kind == fault_kind::noise);
    CHECK(given.injected->factor == 0.5);
    CHECK(given.injected->hits(2, 69, 1));
    CHECK_FALSE(given.injected->hits(2, 69, 0));
    CHECK_FALSE(given.injected->hits(1, 69, 1));
    CHECK_FALSE(given.injected->hits(2, 68, 1));
}

TEST_CASE("a fault alone runs the strict setting, and a dump alone step 0")
{
    const options given = parse_options({"--fault", "rank=0,kind=scale,at=1", "--dump", "d"});
    CHECK(given.settings == std::vector<setting>{setting::strict});
    CHECK(given.injected->factor == 100);
    CHECK(given.dump_steps == std::vector<std::uint64_t>{0});
}

TEST_CASE("what cannot be followed is refused with the option's name")
{
    const std::vector<std::vector<std::string>> bad
        = {{"--ranks", "0"}, {"--ranks", "257"}, {"--ranks", "8x"}, {"--ranks", ""}, {"--ranks"},
            {"--steps", "0"}, {"--steps", "-1"}, {"--batch", "0"}, {"--settings", "wild"}, {"--settings", ""},
            {"--settings", "strict,strict"}, {"--sampler", "random"}, {"--seed", "1.5"},
            {"--element", "double"}, {"--learning-rate", "nan"}, {"--dropout", "1"}, {"--momentum", "-0.1"},
            {"--dump-steps", "1"}, {"--data", ""}, {"--nonsense"}, {"--jsonl="}};
    for (const auto& arguments : bad) {
        const std::string message = refusal(arguments);
        CAPTURE(message);
        CHECK(message.find(arguments[0].substr(0, arguments[0].find('='))) != std::string::npos);
        CHECK(message != "accepted");
    }
    CHECK(refusal({"--dump", "d", "--dump-steps", "300"}).find("before step 300") != std::string::npos);
    CHECK(refusal({"word"}) == "unknown option 'word'");
}

TEST_CASE("a fault that cannot be is refused")
{
    for (const char* text :
        {"", "rank=1", "rank=1,kind=scale", "rank=1,at=1", "kind=nan,at=1", "rank=8,kind=nan,at=1",
            "rank=1,kind=nan,at=300", "rank=1,kind=odd,at=1", "rank=1,kind=nan,at=1,bucket=3",
            "rank=1,kind=nan,at=1,factor=2", "rank=1,kind=duplicate,at=1,bucket=0", "rank=1,kind=stale,at=0",
            "rank=1,kind=nan,at=1,color=red", "rank=1,kind=scale,at=1,factor=inf"}) {
        CAPTURE(text);
        CHECK(refusal({"--fault", text}).find("--fault") != std::string::npos);
    }
    CHECK(refusal({"--ranks", "1", "--fault", "rank=0,kind=duplicate,at=1"}).find("--fault")
        != std::string::npos);
}

TEST_CASE("a part of a fault that is given twice is refused by its name")
{
    CHECK(refusal({"--fault", "rank=1,kind=nan,at=1,rank=2"}) == "--fault: rank is given twice");
    CHECK(refusal({"--fault", "kind=nan,rank=1,kind=nan,at=1"}) == "--fault: kind is given twice");
    CHECK(refusal({"--fault", "at=1,rank=1,kind=nan,at=2"}) == "--fault: at is given twice");
    CHECK(refusal({"--fault", "rank=1,kind=scale,at=1,factor=2,factor=3"}) == "--fault: factor is given twice");
    CHECK(refusal({"--fault", "rank=1,kind=nan,at=1,bucket=1,bucket=1"}) == "--fault: bucket is given twice");
    CHECK(refusal({"--fault", "rank=1,kind=scale,at=1,factor=2,bucket=1"}) == "accepted");
}

TEST_CASE("limits are shown as short as they can be")
{
    CHECK(refusal({"--fault", "rank=1,kind=scale,at=1,factor=x"})
        == "--fault: factor: 'x' is not a number from -1e+30 to 1e+30");
    CHECK(refusal({"--momentum", "1"}) == "--momentum: '1' is not a number from 0 to 0.9999");
    CHECK(refusal({"--learning-rate", "-1"}) == "--learning-rate: '-1' is not a number from 0 to 1000");
    CHECK(refusal({"--batch", "0"}) == "--batch: '0' is not a number from 1 to 100000");
}

TEST_CASE("help wins over everything behind it")
{
    CHECK_THROWS_AS(parse_options({"--help", "--nonsense"}), help_request);
    CHECK_THROWS_AS(parse_options({"--help", "--ranks", "0"}), help_request);
    CHECK_THROWS_AS(parse_options({"-h"}), help_request);
}

TEST_CASE("a path that is a hyphen is refused by name, for no file of that name is meant")
{
    CHECK(refusal({"--jsonl", "-"}) == "--jsonl: '-' is no path here: the standard output has the report");
    CHECK(refusal({"--jsonl=-"}) == "--jsonl: '-' is no path here: the standard output has the report");
    CHECK(refusal({"--dump", "-"}) == "--dump: '-' is no path here: the standard output has the report");
    CHECK(refusal({"--jsonl", "./-"}) == "accepted");
}

TEST_CASE("of an option given twice the last holds")
{
    CHECK(parse_options({"--ranks", "3", "--ranks=4"}).ranks == 4);
    CHECK(parse_options({"--dump", "d", "--dump-steps", "1", "--dump-steps", "2,3"}).dump_steps
        == std::vector<std::uint64_t>{2, 3});
}

TEST_CASE("on GPUs there are at most 64 ranks")
{
    CHECK(refusal({"--device", "cuda", "--ranks", "64"}) == "accepted");
    CHECK(refusal({"--device", "cuda", "--ranks", "65"}) == "--ranks: at most 64 with --device cuda");
    CHECK(refusal({"--device", "gpu"}) == "--device: 'gpu' is none of host, cuda");
}

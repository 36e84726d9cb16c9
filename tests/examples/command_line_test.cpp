// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../../examples/support/command_line.hpp"

namespace collprobe::testing::command_line_test {

using namespace support;

namespace {

struct parsed {
    std::string first, name, problem;
    std::vector<std::string> rest, several;
    int number = 7;
    bool flag = false, has_number = false;
};

parsed parse(const std::vector<std::string>& arguments)
{
    parsed all;
    command_line line("what it does", "0 always.");
    line.position("FIRST", all.first, "needed");
    line.positions("REST", all.rest, "not needed");
    line.text("--name", "NAME", all.name, "a name");
    line.collect("--each,--every", "TEXT", all.several, "each of them");
    line.number("-n,--number", all.number, 0, 9, "one line\nand another");
    line.flag("--flag", all.flag, "on");
    try {
        line.parse(arguments);
    } catch (const std::runtime_error& problem) { // help, too
        all.problem = problem.what();
    }
    all.has_number = line.given("-n") && line.given("--number");
    return all;
}

} // namespace

TEST_CASE("an option has its value behind it, behind an equals sign, or joined to a short name")
{
    for (const std::vector<std::string>& number : std::vector<std::vector<std::string>>{
             {"--number", "3"}, {"--number=3"}, {"-n", "3"}, {"-n3"}, {"-n=3"}, {"-n", "1", "--number=3"}}) {
        std::vector<std::string> arguments = number;
        arguments.push_back("a");
        const parsed all = parse(arguments);
        CHECK(all.problem == "");
        CHECK(all.number == 3);
        CHECK(all.has_number);
        CHECK(all.first == "a");
    }
    CHECK_FALSE(parse({"a"}).has_number);
    CHECK(parse({"--name", "--flag", "a"}).name == "--flag"); // a value that looks like an option
    CHECK(parse({"--name", "", "a"}).name == "");
    CHECK(parse({"--name=x=y", "a"}).name == "x=y");
}

TEST_CASE("what stands alone goes to the positions in their order, before, between and behind options")
{
    const parsed all = parse({"a", "--flag", "b", "--every", "x", "-", "--each=y", "--", "--name", "-n"});
    CHECK(all.problem == "");
    CHECK(all.first == "a");
    CHECK(all.rest == std::vector<std::string>{"b", "-", "--name", "-n"});
    CHECK(all.several == std::vector<std::string>{"x", "y"});
    CHECK(all.flag);
    CHECK(all.name == "");
}

TEST_CASE("what cannot be followed is refused by the option's long name")
{
    CHECK(parse({}).problem == "FIRST is required");
    CHECK(parse({"a", "--number"}).problem == "--number needs a value");
    CHECK(parse({"a", "-n"}).problem == "--number needs a value");
    CHECK(parse({"a", "--number="}).problem == "--number needs a value");
    CHECK(parse({"a", "-n10"}).problem == "--number: '10' is not a number from 0 to 9");
    CHECK(parse({"a", "--every="}).problem == "--each needs a value");
    CHECK(parse({"a", "--flag=1"}).problem == "--flag takes no value");
    CHECK(parse({"a", "--numb=1"}).problem == "unknown option '--numb'");
    CHECK(parse({"a", "-x1"}).problem == "unknown option '-x1'");
    CHECK(parse({"a", "-help"}).problem == "unknown option '-help'");
}

TEST_CASE("the help text has all options, with their defaults, and one column for all lines of help")
{
    const std::string help = parse({"--help", "--nonsense"}).problem;
    CHECK(help == parse({"a", "-h"}).problem);
    CHECK(help.substr(0, 13) == "what it does\n");
    CHECK(help.find(" [OPTIONS] FIRST [REST...]\n") != help.npos);
    CHECK(help.find("\n  -n,--number N=7           one line\n                            and another\n") != help.npos);
    CHECK(help.find("\n  --each,--every TEXT ...   each of them\n") != help.npos);
    CHECK(help.find("Exit status: 0 always.\n") != help.npos);
}

} // namespace collprobe::testing::command_line_test

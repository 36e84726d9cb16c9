// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "examples/preload/engine/settings.hpp"

namespace collprobe::testing::settings_test {

using collprobe_preload::settings;

namespace {

/// What these variables alone make of the settings.
settings read(const std::vector<std::pair<const char*, const char*>>& variables)
{
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    settings result = settings::from_environment();
    for (const auto& [name, value] : variables) ::unsetenv(name);
    return result;
}

bool warns(const settings& of, const std::string& text)
{
    for (const std::string& each : of.warnings) {
        if (each.find(text) != each.npos) return true;
    }
    return false;
}

} // namespace

TEST_CASE("the variables of the environment become settings")
{
    const settings plain = read({});
    CHECK(plain.warnings.empty());
    CHECK(plain.every == 0);
    CHECK(plain.budget == doctest::Approx(0.01));
    CHECK(plain.jsonl);
    CHECK(plain.probed_kinds[collprobe_all_reduce]);
    CHECK(plain.probed_kinds[collprobe_all_gather]);
    CHECK_FALSE(plain.probed_kinds[collprobe_broadcast]);
    CHECK_FALSE(plain.probed_kinds[collprobe_send]);
    CHECK(plain.wants("any", 17));

    const settings set = read({{"COLLPROBE_DIR", "run.%r"}, {"RANK", "3"}, {"COLLPROBE_SINKS", "prometheus, nvtx"},
        {"COLLPROBE_EVERY", "8"}, {"COLLPROBE_OPS", "broadcast,all_to_all"}, {"COLLPROBE_COMMS", "dp,0x1f"},
        {"COLLPROBE_AUDIT", "0"}, {"COLLPROBE_CHANNEL", "inband"}, {"COLLPROBE_STEP", "calls"}});
    CHECK(set.warnings.empty());
    CHECK(set.directory == "run.3");
    CHECK(set.global_rank == 3);
    CHECK_FALSE(set.jsonl);
    CHECK(set.prometheus);
    CHECK(set.nvtx);
    CHECK(set.every == 8);
    CHECK(set.probed_kinds[collprobe_broadcast]);
    CHECK_FALSE(set.probed_kinds[collprobe_all_reduce]);
    CHECK(set.wants("dp", 1));
    CHECK(set.wants("tp", 31));
    CHECK_FALSE(set.wants("tp", 1));
    CHECK_FALSE(set.audit);
    CHECK(set.channel == settings::channel_kind::inband);
    CHECK(set.step == settings::step_kind::calls);
}

TEST_CASE("a value that cannot be used is told with what is expected, and the default stays")
{
    const settings wrong = read({{"COLLPROBE_EVERY", "often"}, {"COLLPROBE_BUDGET", "7"}, {"COLLPROBE_CHANNEL", "tcp"},
        {"COLLPROBE_SINKS", "jsonl,xml"}, {"COLLPROBE_OPS", "all_reduce,reduce"}, {"COLLPROBE_AUDIT", "yes"},
        {"COLLPROBE_EVRY", "3"}, {"COLLPROBE_SOMETHING", "x"}});
    CHECK(wrong.every == 0);
    CHECK(wrong.budget == doctest::Approx(0.01));
    CHECK(wrong.channel == settings::channel_kind::files);
    CHECK(wrong.jsonl);
    CHECK(wrong.audit);
    CHECK(warns(wrong, "COLLPROBE_EVERY=often is not used: expected a number from 0 to"));
    CHECK(warns(wrong, "COLLPROBE_BUDGET=7 is not used: expected a number from 0 to 1"));
    CHECK(warns(wrong, "expected one of files, inband"));
    CHECK(warns(wrong, "there is no sink 'xml'"));
    CHECK(warns(wrong, "'reduce' is none of"));
    CHECK(warns(wrong, "COLLPROBE_AUDIT=yes is not used"));
    CHECK(warns(wrong, "there is no variable COLLPROBE_EVRY: is COLLPROBE_EVERY meant?"));
    CHECK(warns(wrong, "there is no variable COLLPROBE_SOMETHING"));
    CHECK(wrong.warnings.size() == 8);
    CHECK(warns(read({{"COLLPROBE_SINKS", "prometheus"}}), "is written with COLLPROBE_CHANNEL=inband, or by collprobe_merge"));
    for (const char* const sink : {"html", "trace", "inspector"}) {
        const settings refused = read({{"COLLPROBE_SINKS", sink}});
        CHECK(refused.jsonl);
        CHECK(warns(refused, "` makes it of JSON lines, which are written"));
        CHECK(warns(refused, std::string("`collprobe ") + (std::string(sink) == "html" ? "page" : sink)));
    }
}

TEST_CASE("an operator's order is a number from 1 to 1e9, auto or off, and nothing else")
{
    CHECK(collprobe_preload::operators_order("every=8") == 8);
    CHECK(collprobe_preload::operators_order("every=1000000000") == 1'000'000'000);
    CHECK(collprobe_preload::operators_order("every=auto") == 0);
    CHECK(collprobe_preload::operators_order("off") == collprobe_preload::probe_never);
    for (const char* const wrong : {"", "every=", "every=0", "every=-1", "every=+1", "every= 8", "every=1junk", "every=1 junk",
             "every=1000000001", "every=18446744073709551617", "every=99999999999999999999999", "every=0x8", "Off", "on"}) {
        CAPTURE(wrong);
        CHECK(!collprobe_preload::operators_order(wrong));
    }
}

} // namespace collprobe::testing::settings_test

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <random>
#include <string>

#include <doctest/doctest.h>

#include <collprobe/report/json.hpp>
#include <collprobe/simd/gradual_underflow.hpp>

#if __has_include(<nlohmann/json.hpp>)
#include "examples/tools/read_record.hpp"
#include "support/difference.hpp"

namespace collprobe::testing::fields_test {

using namespace collprobe::report::detail;

namespace {

/// Records with random values in all members of the tables.
class random_records {
public:
    explicit random_records(std::uint64_t seed) : bits_(seed) {}

    step_record step()
    {
        step_record made;
        fill(type_of<step_record>::is, &made, unit::none, 0);
        // What the lines of a step are put together by.
        made.ranks = 1 + static_cast<int>(bits_() % 4);
        made.evidence_by_rank.resize(bits_() % 2 == 0 ? 0 : static_cast<std::size_t>(made.ranks));
        for (finding& each : made.findings) each = with_its_call(each);
        for (call_record& call : made.calls) {
            if (!call.has_result_digest) call.result_digest = 0;
            if (!call.audit.checked) call.audit = {};
            if (!call.weights.seen) call.weights = {};
            if (!call.quantisation.seen) call.quantisation = {};
        }
        return made;
    }

    finding alarm()
    {
        finding made;
        fill(type_of<finding>::is, &made, unit::none, 0);
        for (int& rank : made.ranks) rank = static_cast<int>(&rank - made.ranks.data());
        return with_its_call(made);
    }
    /// `finding::other` is a call of two kinds alone, and of the program's own checks a name.
    static finding with_its_call(finding of)
    {
        const call_site site = of.other.site;
        if (of.what != finding_kind::call_missing && of.what != finding_kind::other_call) of.other = {};
        if (of.what == finding_kind::of_part) of.other.site = site;
        return of;
    }

    void fill(const member_type& type, void* at, unit in, int depth)
    {
        switch (type.how) {
        case form::boolean: *static_cast<bool*>(at) = bits_() % 2 == 0; return;
        case form::int32:
            *static_cast<int*>(at) = static_cast<int>(bits_() % 10) - (in == unit::positive ? 0 : 1);
            return;
        case form::uint32: *static_cast<std::uint32_t*>(at) = static_cast<std::uint32_t>(bits_() >> bits_() % 64); return;
        case form::uint64: *static_cast<std::uint64_t*>(at) = bits_() % 8 == 0 ? no_index : bits_() >> bits_() % 64; return;
        case form::real: *static_cast<double*>(at) = number(); return;
        case form::enumeration: {
            int count = 1; // the first name may be "unknown", and any that is behind the last one is
            while (std::string(type.name_of(static_cast<std::uint8_t>(count))) != "unknown") ++count;
            *static_cast<std::uint8_t*>(at) = static_cast<std::uint8_t>(bits_() % static_cast<unsigned>(count));
            return;
        }
        case form::text: *static_cast<std::string*>(at) = text(); return;
        case form::site: *static_cast<call_site*>(at) = {"src/tr\"ain.cpp", "", static_cast<unsigned>(bits_() % 3), text()}; return;
        case form::object:
            for (const field& each : type.fields()) {
                if (each.flag >= 0) *(static_cast<bool*>(at) + each.flag) = bits_() % 2 == 0;
                if (each.type != nullptr && bits_() % 4 != 0) fill(*each.type, const_cast<void*>(each.of(at)), each.in, depth);
            }
            return;
        case form::list: {
            const std::size_t count = depth > 3 ? 0 : bits_() % 4;
            tools::record_reader::resize_list(type, at, count);
            const list_items items = type.items(at);
            for (std::size_t i = 0; i < count; ++i) fill(*type.element, const_cast<void*>(items.at(i)), unit::none, depth + 1);
        }
        }
    }

private:
    double number()
    {
        switch (bits_() % 8) {
        case 0: return detail::not_a_number();
        case 1: return detail::infinity();
        case 2: return -detail::infinity();
        case 3: return detail::bit_cast<double>(bits_() | 1u); // any, and no zero
        default: return std::ldexp(static_cast<double>(bits_() % 1000000), static_cast<int>(bits_() % 40) - 20);
        }
    }
    const char* text()
    {
        constexpr const char* all[] = {"", "wte", "q\"uo\\te", "gr\xc3\xbc\xc3\x9f", "</script>", "a: b"};
        return all[bits_() % 6];
    }

    std::mt19937_64 bits_;
};

} // namespace

TEST_CASE("what is read from the JSON line of a step is the step")
{
    const collprobe::detail::gradual_underflow keeps; // of subnormal numbers, under -ffast-math
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
        const step_record record = random_records(seed).step();
        tools::record_reader reader;
        step_record read;
        reader.step_of(tools::parsed(report::json_line("run", record)), read);
        REQUIRE(difference(record, read) == "");
    }
}

TEST_CASE("what is read from the JSON lines of alarms and inspections is what was written")
{
    const collprobe::detail::gradual_underflow keeps;
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
        random_records random(seed);
        tools::record_reader reader;
        const finding raised = random.alarm();
        const finding again = reader.alarm_of(tools::parsed(report::json_line("run", raised)));
        REQUIRE(difference(raised, again) == "");
        inspection found;
        random.fill(type_of<inspection>::is, &found, unit::none, 0);
        found.partial_sum_bits = found.partial_sum_bits < 0 ? 0 : found.partial_sum_bits;
        inspection read;
        reader.read(tools::parsed(report::json_line("run", found)), read);
        REQUIRE(difference(found, read) == "");
    }
}

TEST_CASE("a step that begins has nothing of what its record held, but the memory of its lists")
{
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        step_record record = random_records(seed).step(), fresh;
        const double* const memory = record.losses.data();
        const std::size_t held = record.losses.size();
        for (step_record* each : {&record, &fresh}) each->begin(7, 2, report_mode::summary, 2, 1);
        REQUIRE(difference(record, fresh) == "");
        record.losses.resize(held);
        CHECK(record.losses.data() == memory);
    }
}

TEST_CASE("only a finding of a call that was made, or is missing, has one in its line")
{
    for (int kind = 0; kind <= static_cast<int>(finding_kind::of_part); ++kind) {
        const finding raised{.ranks = {2}, .what = static_cast<finding_kind>(kind), .other = {.site = {"own_part.cpp", "", 7, "clip"}}};
        const auto line = tools::parsed(report::json_line("run", raised));
        const bool has_call = raised.what == finding_kind::call_missing || raised.what == finding_kind::other_call;
        CAPTURE(name(raised.what));
        CHECK(line.contains("other_call") == has_call);
        CHECK(line.contains("own_check") == (raised.what == finding_kind::of_part));
        if (line.contains("own_check")) CHECK(line["own_check"].dump() == R"({"line":"own_part.cpp:7","name":"clip"})");
    }
    // As lines were before: the name was that of a call.
    const auto old = tools::parsed(R"({"step":1,"check":"of_part","damage":"unknown","ranks":[2],"advice":"none","other_call":{"name":"clip"}})");
    CHECK(std::string(tools::record_reader().alarm_of(old).other.site.name) == "clip");
}

TEST_CASE("a member that changes is a difference, and named")
{
    std::size_t members = 0;
    const auto differs = [&]<class Record>(Record record) { // the control, for each member
        random_records random(7);
        for (const field& each : type_of<Record>::is.fields()) {
            if (each.type == nullptr) continue;
            Record other = record;
            for (int attempt = 0; attempt < 64 && is_same(*each.type, each.of(&other), each.of(&record)); ++attempt)
                random.fill(*each.type, const_cast<void*>(each.of(&other)), each.in, 0);
            CAPTURE(each.name);
            CHECK_FALSE(is_same(type_of<Record>::is, &record, &other));
            CHECK(difference(record, other).rfind("differs: " + std::string(each.name) + '.', 0) == 0);
            ++members;
        }
    };
    differs(step_record());
    differs(call_record());
    differs(call_weights());
    differs(call_quantisation());
    CHECK(members > 80);
}

} // namespace collprobe::testing::fields_test
#else
TEST_CASE("what is read from JSON lines is what was written" * doctest::skip()) {}
#endif

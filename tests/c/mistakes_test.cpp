// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the C entry says to mistakes: of a call, between the ranks, of the caller's all-gather.
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "c_ranks.hpp"

namespace collprobe::testing::mistakes_test {
namespace {

constexpr std::size_t count = 16;

/// A probe of one rank.
struct lone_probe {
    lone_probe()
    {
        const collprobeOptions_t options = own.options();
        ok(collprobeCreate(&probe, 0, 1, &options));
    }
    ~lone_probe() { collprobeDestroy(probe); }

    meeting at{1};
    c_rank own{&at, 0, 1};
    collprobeProbe_t probe = nullptr;
    std::array<float, count> data{};
};

std::uint64_t show_input(const c_rank& own, const char* name, collprobeCall_t call = collprobeAllReduceCall,
    std::uint64_t elements = count, std::uint64_t step = 0)
{
    std::uint64_t token = 0;
    const auto input = numbers_of(own.rank, step, static_cast<std::size_t>(elements));
    ok(collprobeObserveInput(
        own.probe, call, collprobeFloat32, collprobeSum, input.data(), elements, name, nullptr, &token));
    return token;
}
void show(const c_rank& own, const char* name, collprobeCall_t call = collprobeAllReduceCall,
    std::uint64_t elements = count)
{
    ok(collprobeObserveResult(
        own.probe, show_input(own, name, call, elements), COLLPROBE_NO_BUFFER, 0, nullptr));
}
void end_step(const c_rank& own, std::uint64_t step)
{
    ok(collprobeEndStep(own.probe, step, nullptr, nullptr));
}

/// The ranks' probes with a change to the options of rank 1 by `change`.
template <class Change, class Body>
void run_unlike(int ranks, const Change& change, const Body& body)
{
    run_c_ranks(ranks, [&](c_rank& own) {
        collprobeOptions_t options = own.options();
        int rank = own.rank;
        int size = own.ranks;
        if (own.rank == 1) change(options, rank, size);
        ok(collprobeCreate(&own.probe, rank, size, &options));
        body(own);
        ok(collprobeDestroy(own.probe));
    });
}
/// Each step of such ranks is refused, on all of them.
template <class Change>
void check_unlike(int ranks, const Change& change, const std::string& words)
{
    run_unlike(ranks, change, [&](c_rank& own) {
        for (std::uint64_t step = 0; step < 3; ++step) {
            show(own, "wte");
            end_step(own, step);
            mismatch(collprobePoll(own.probe, 1), words);
        }
    });
}

} // namespace

TEST_CASE("wrong arguments of collprobeCreate are named")
{
    meeting at(1);
    c_rank own{&at, 0, 1};
    collprobeOptions_t options = own.options();
    collprobeProbe_t probe = nullptr;
    const auto check = [&](collprobeProbe_t* to, int rank, int ranks, const collprobeOptions_t* given,
                           const char* words) {
        invalid(collprobeCreate(to, rank, ranks, given), "collprobeCreate", words);
        CHECK(probe == nullptr);
    };
    check(nullptr, 0, 1, &options, "probe");
    check(&probe, 0, 0, &options, "ranks must be");
    check(&probe, 0, 16'385, &options, "ranks must be");
    check(&probe, 1, 1, &options, "rank must be");
    check(&probe, -1, 1, &options, "rank must be");
    check(&probe, 0, 1, nullptr, "options is null");
    const auto check_option = [&](auto member, auto value, const char* words) {
        collprobeOptions_t wrong = options;
        wrong.*member = value;
        check(&probe, 0, 1, &wrong, words);
    };
    check_option(&collprobeOptions_t::size, std::size_t{0}, "collprobeOptions.size");
    check_option(&collprobeOptions_t::size, sizeof(collprobeOptions_t) - 1, "collprobeOptions.size");
    check_option(&collprobeOptions_t::allGather, nullptr, "options.allGather");
    check_option(&collprobeOptions_t::device, static_cast<collprobeDevice_t>(7), "options.device");
    check_option(&collprobeOptions_t::every, -1, "options.every");
    check_option(&collprobeOptions_t::calls, -1, "options.calls");
    check_option(&collprobeOptions_t::calls, 1 << 21, "options.calls");
    check_option(&collprobeOptions_t::expectations, 70'000, "options.expectations");
    check_option(&collprobeOptions_t::falseAlarms, 1.0, "options.falseAlarms");
    check_option(&collprobeOptions_t::falseAlarms, std::nan(""), "options.falseAlarms");
    options.calls = 100'000;
    check(&probe, 0, 16'000, &options, "fewer calls");
    // A newer caller's struct is longer.
    struct {
        collprobeOptions_t known;
        double newer;
    } longer{own.options(), 1};
    longer.known.size = sizeof longer;
    ok(collprobeCreate(&probe, 0, 1, &longer.known));
    ok(collprobeDestroy(probe));
}

TEST_CASE("a null handle and one that was destroyed are told, in every function")
{
    lone_probe gone;
    const collprobeProbe_t destroyed = gone.probe;
    ok(collprobeDestroy(destroyed));
    lone_probe other; // takes its place
    float data[4] = {};
    std::uint64_t token = 0;
    collprobeFinding_t finding = COLLPROBE_FINDING_INIT;
    double value = 0;
    const char* text = nullptr;
    std::size_t bytes = 0;
    for (const collprobeProbe_t probe :
        {collprobeProbe_t{}, destroyed, reinterpret_cast<collprobeProbe_t>(data)}) {
        const std::string words = probe == nullptr ? "probe is null" : "it was destroyed, or is none";
        const auto check = [&](int result, const char* function) {
            invalid(result, function, words);
        };
        const auto check_nccl
            = [&](int result, const char* function) { refused(result, 4, function, words); };
        if (probe != nullptr) check(collprobeDestroy(probe), "collprobeDestroy");
        check(collprobeObserveInput(probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum, data, 4,
                  "a", nullptr, &token),
            "collprobeObserveInput");
        check(collprobeObserveResult(probe, 1, data, 4, nullptr), "collprobeObserveResult");
        check(collprobeExpectNumber(probe, collprobeEqual, "a", 1), "collprobeExpectNumber");
        check(collprobeExpectBuffer(probe, collprobeEqual, "a", collprobeFloat32, data, 4, nullptr),
            "collprobeExpectBuffer");
        check(collprobeEndStep(probe, 0, nullptr, nullptr), "collprobeEndStep");
        check(collprobePoll(probe, 1), "collprobePoll");
        check(collprobeGetFinding(probe, 0, &finding), "collprobeGetFinding");
        check(collprobeGetValue(probe, "step", -1, &value), "collprobeGetValue");
        check(collprobeGetText(probe, collprobeTable, "a", &text), "collprobeGetText");
        check(collprobeSaveState(probe, nullptr, &bytes), "collprobeSaveState");
        check(collprobeRestoreState(probe, data, 4), "collprobeRestoreState");
        check_nccl(collprobeAllReduce(data, data, 4, 7, 0, probe, nullptr), "collprobeAllReduce");
        check_nccl(collprobeReduceScatter(data, data, 4, 7, 0, probe, nullptr), "collprobeReduceScatter");
        check_nccl(collprobeAllGather(data, data, 4, 7, probe, nullptr), "collprobeAllGather");
        check_nccl(collprobeCopyThenAllGather(data, 1, data, 1, 7, probe, nullptr, nullptr, 0, nullptr, 0),
            "collprobeCopyThenAllGather");
    }
    ok(collprobeDestroy(nullptr));
    // Around another library there is nothing of NCCL.
    refused(collprobeAllReduce(data, data, 4, 7, 0, other.probe, nullptr), 5, "collprobeAllReduce", "NCCL");
}

TEST_CASE("wrong arguments of calls are named, and the step goes on")
{
    lone_probe it;
    const collprobeProbe_t probe = it.probe;
    float* const data = it.data.data();
    std::uint64_t token = 1;
    const auto input = [&](int call, int type, int operation, const void* from, std::uint64_t elements,
                           std::uint64_t* to, const char* words) {
        token = 1;
        invalid(collprobeObserveInput(probe, static_cast<collprobeCall_t>(call),
            static_cast<collprobeDataType_t>(type), static_cast<collprobeRedOp_t>(operation), from, elements, "a",
            nullptr, to), "collprobeObserveInput", words);
        if (to != nullptr) CHECK(token == 0);
    };
    input(4, 7, 0, data, count, &token, "call is no");
    input(-1, 7, 0, data, count, &token, "call is no");
    input(0, 12, 0, data, count, &token, "type is no");
    input(0, 7, 5, data, count, &token, "operation is no");
    input(0, 7, 0, nullptr, count, &token, "null");
    input(0, 7, 0, reinterpret_cast<const char*>(data) + 1, 2, &token, "align");
    input(0, 7, 0, data, std::numeric_limits<std::uint64_t>::max(), &token, "count");
    input(0, 7, 0, data, count, nullptr, "token is null");

    invalid(collprobeObserveResult(probe, 99, data, count, nullptr), "collprobeObserveResult", "token");
    it.own.probe = probe;
    const std::uint64_t first = show_input(it.own, "first");
    const std::uint64_t second = show_input(it.own, "second");
    const auto result = [&](std::uint64_t of, const void* from, std::uint64_t elements, const char* words) {
        invalid(collprobeObserveResult(probe, of, from, elements, nullptr), "collprobeObserveResult", words);
    };
    result(0, data, count, "token");
    result(second, data, count - 1, "count");
    result(second, nullptr, count, "null");
    result(second, COLLPROBE_NO_BUFFER, count, "count must be 0");
    ok(collprobeObserveResult(probe, second, data, count, nullptr));
    result(second, data, count, "shown before");
    invalid(collprobeEndStep(probe, 0, nullptr, nullptr), "collprobeEndStep", "1 observed calls have no result yet");
    ok(collprobeObserveResult(probe, first, COLLPROBE_NO_BUFFER, 0, nullptr)); // of a call that failed

    const auto expect
        = [&](int expectation, const char* name, int type, const void* from, const char* words) {
              invalid(collprobeExpectBuffer(probe, static_cast<collprobeExpectation_t>(expectation), name,
                  static_cast<collprobeDataType_t>(type), from, count, nullptr), "collprobeExpectBuffer", words);
          };
    expect(2, "w", 7, data, "expectation is no");
    expect(0, nullptr, 7, data, "name");
    expect(0, "", 7, data, "name");
    expect(0, "w", -1, data, "type is no");
    expect(0, "w", 7, nullptr, "null");
    expect(0, "w", 7, COLLPROBE_NO_BUFFER, "COLLPROBE_NO_BUFFER");
    expect(0, "w", 7, reinterpret_cast<const char*>(data) + 1, "align");
    const auto number = [&](int expectation, const char* name, const char* words) {
        invalid(collprobeExpectNumber(probe, static_cast<collprobeExpectation_t>(expectation), name, 1),
            "collprobeExpectNumber", words);
    };
    number(2, "w", "expectation is no");
    number(0, nullptr, "name");
    number(0, "", "name");
    for (int i = 0; i < 32; ++i) ok(collprobeExpectNumber(probe, collprobeEqual, "lr", 1));
    number(0, "lr", "expectations");

    collprobeStep_t seen = COLLPROBE_STEP_INIT;
    const auto step = [&](auto member, auto value, const char* words) {
        collprobeStep_t wrong = seen;
        wrong.*member = value;
        invalid(collprobeEndStep(probe, 0, &wrong, nullptr), "collprobeEndStep", words);
    };
    step(&collprobeStep_t::size, std::size_t{8}, "collprobeStep.size");
    step(&collprobeStep_t::weight, -1.0, "seen.weight");
    step(&collprobeStep_t::weight, std::nan(""), "seen.weight");
    step(&collprobeStep_t::deviceLoss, static_cast<const float*>(data), "seen.deviceLoss");
    ok(collprobeEndStep(probe, 0, &seen, nullptr));

    double value = 0;
    const char* text = nullptr;
    collprobeFinding_t finding = COLLPROBE_FINDING_INIT;
    const auto no_value = [&](const char* name, int rank, const char* words, double* to) {
        invalid(collprobeGetValue(probe, name, rank, to), "collprobeGetValue", words);
    };
    no_value("step", -1, "no record", &value);
    invalid(collprobeGetText(probe, collprobeTable, "", &text), "collprobeGetText", "no record");
    CHECK(text == std::string());
    invalid(collprobeGetFinding(probe, 0, &finding), "collprobeGetFinding", "no record");
    ok(collprobePoll(probe, 1));
    CHECK(value_of(probe, "calls") == 2);
    no_value("nothing", -1, "'nothing'", &value);
    no_value("loss", 1, "rank", &value);
    no_value("loss", -2, "rank", &value);
    no_value("step", 0, "of a rank", &value);
    no_value(nullptr, -1, "name", &value);
    no_value("step", -1, "value", nullptr);
    invalid(collprobeGetText(probe, static_cast<collprobeFormat_t>(2), "", &text), "collprobeGetText", "format");
    invalid(collprobeGetText(probe, collprobeTable, "", nullptr), "collprobeGetText", "text is null");
    invalid(collprobeGetFinding(probe, 0, nullptr), "collprobeGetFinding", "finding is null");
    finding.size = 3;
    invalid(collprobeGetFinding(probe, 0, &finding), "collprobeGetFinding", "finding.size");
    finding.size = sizeof finding;
    CHECK(collprobeGetFinding(probe, 0, &finding) == collprobeNotReady);

    std::size_t bytes = 3;
    char state[3] = {};
    invalid(collprobeSaveState(probe, state, &bytes), "collprobeSaveState", "room");
    invalid(collprobeSaveState(probe, state, nullptr), "collprobeSaveState", "bytes is null");
    std::vector<char> room(bytes);
    ok(collprobeSaveState(probe, room.data(), &bytes));
    const auto restore = [&](const void* from, std::size_t size, const char* words) {
        invalid(collprobeRestoreState(probe, from, size), "collprobeRestoreState", words);
    };
    restore(nullptr, bytes, "null");
    restore(room.data(), 5, "none of");
    restore(room.data(), bytes - 1, "none of");
    room.back() ^= 1;
    restore(room.data(), bytes, "damaged");
    room.back() ^= 1;
    ok(collprobeEndStep(probe, 1, nullptr, nullptr));
    restore(room.data(), bytes, "under way");
    ok(collprobePoll(probe, 1));
    ok(collprobeRestoreState(probe, room.data(), bytes));
}

TEST_CASE("a state of other ranks is refused")
{
    std::vector<char> state;
    run_c_probes(2, [&](c_rank& own) {
        std::size_t bytes = 0;
        ok(collprobeSaveState(own.probe, nullptr, &bytes));
        std::vector<char> room(bytes);
        ok(collprobeSaveState(own.probe, room.data(), &bytes));
        if (own.rank == 0) state = room;
    });
    lone_probe it;
    invalid(collprobeRestoreState(it.probe, state.data(), state.size()), "collprobeRestoreState",
        "another number of ranks");
}

TEST_CASE("calls in another order: all ranks name both calls, and go on")
{
    run_c_probes(4, [&](c_rank& own) {
        for (std::uint64_t step = 0; step < 6; ++step) {
            const bool other = step == 2 && own.rank == 3;
            show(own, "wte");
            show(own, other ? "wpe" : "mlp", collprobeReduceScatterCall);
            show(own, other ? "mlp" : "wpe", collprobeReduceScatterCall);
            end_step(own, step);
            std::uint64_t token = 0; // a wrong call changes nothing of what the poll says
            invalid(collprobeObserveInput(own.probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum, nullptr,
                1, "wte", nullptr, &token), "collprobeObserveInput", "null");
            const int result = collprobePoll(own.probe, 1);
            if (step != 2) {
                ok(result);
                require(value_of(own.probe, "step") == static_cast<double>(step), "the step");
                continue;
            }
            mismatch(result,
                "call 1 is reduce_scatter 'mlp' of 16 float32 (sum) on ranks 0, 1 and 2, "
                "reduce_scatter 'wpe' of 16 float32 (sum) on rank 3");
            double value = 0;
            invalid(collprobeGetValue(own.probe, "step", -1, &value), "collprobeGetValue", "no record");
        }
    });
}

TEST_CASE("another kind, count, type, operation, number of calls, value or step is told likewise")
{
    const auto check = [](const auto& body, const std::string& words) {
        run_c_probes(2, [&](c_rank& own) {
            show(own, "a");
            body(own);
            end_step(own, 0);
            mismatch(collprobePoll(own.probe, 1), words);
            show(own, "a"); // the next step goes well
            end_step(own, 1);
            ok(collprobePoll(own.probe, 1));
        });
    };
    check([](c_rank& own) { show(own, "b", own.rank == 0 ? collprobeAllReduceCall : collprobeAllToAllCall); },
        "call 1 is all_reduce 'b' of 16 float32 (sum) on rank 0, all_to_all 'b' of 16 float32 on rank 1");
    check([](c_rank& own) { show(own, "b", collprobeAllReduceCall, own.rank == 0 ? 16 : 17); },
        "of 16 float32 (sum) on rank 0, all_reduce 'b' of 17 float32 (sum) on rank 1");
    check(
        [](c_rank& own) {
            if (own.rank == 1) show(own, "more");
        },
        "call 1 is no further call on rank 0, all_reduce 'more' of 16 float32 (sum) on rank 1");
    check(
        [](c_rank& own) {
            if (own.rank == 0) ok(collprobeExpectNumber(own.probe, collprobeEqual, "lr", 1));
        },
        "call 1 is a value that is equal 'lr' on rank 0, no further call on rank 1");
    check(
        [](c_rank& own) {
            const double data[2] = {};
            std::uint64_t token = 0;
            ok(collprobeObserveInput(own.probe, collprobeAllReduceCall,
                own.rank == 0 ? collprobeFloat32 : collprobeInt32,
                own.rank == 0 ? collprobeMax : collprobeMin, data, 2, nullptr, nullptr, &token));
            ok(collprobeObserveResult(own.probe, token, data, 2, nullptr));
        },
        "call 1 is all_reduce 'all_reduce#1' of 2 float32 (max) on rank 0, all_reduce 'all_reduce#1' of 2 "
        "int32 (min) on rank 1");
    run_c_probes(3, [&](c_rank& own) {
        end_step(own, own.rank == 1 ? 7 : 5);
        mismatch(collprobePoll(own.probe, 1),
            "the ranks report different steps: step 5 on ranks 0 and 2, step 7 on rank 1");
    });
}

TEST_CASE("other options, numbers of ranks, and ranks that are not their own are told on all ranks")
{
    check_unlike(
        3, [](collprobeOptions_t& of, int&, int&) { of.every = 3; }, "every 1 on ranks 0 and 2, 3 on rank 1");
    check_unlike(
        2, [](collprobeOptions_t& of, int&, int&) { of.falseAlarms = 0.01; }, "falseAlarms");
    check_unlike(
        2, [](collprobeOptions_t& of, int&, int&) { of.expectations = 5; },
        "expectations 32 on rank 0, 5 on rank 1");
    check_unlike(
        2, [](collprobeOptions_t&, int& rank, int&) { rank = 0; },
        "part 1 of the all-gather came from a rank that was created as rank 0");
    // Room for calls, the name and the context may differ.
    run_unlike(
        2,
        [](collprobeOptions_t& of, int&, int&) {
            of.calls = 3;
            of.name = "other";
        },
        [&](c_rank& own) {
            for (int b = 0; b < 10; ++b) show(own, "wte");
            end_step(own, 0);
            ok(collprobePoll(own.probe, 1));
            require(value_of(own.probe, "calls") == 10, "calls");
        });
}

TEST_CASE("an all-gather of more, or fewer, ranks than were told is found before anything is read")
{
    run_c_ranks(4, [&](c_rank& own) { // four come, two were told
        const collprobeOptions_t options = own.options();
        ok(collprobeCreate(&own.probe, own.rank % 2, 2, &options));
        end_step(own, 0);
        mismatch(collprobePoll(own.probe, 1), "more ranks than the 2");
        ok(collprobeDestroy(own.probe));
    });
    run_c_ranks(2, [&](c_rank& own) { // two come, four were told
        const collprobeOptions_t options = own.options();
        ok(collprobeCreate(&own.probe, own.rank, 4, &options));
        end_step(own, 0);
        mismatch(collprobePoll(own.probe, 1), "left part 2 of the 4 unwritten");
        ok(collprobeDestroy(own.probe));
    });
}

TEST_CASE("a message of another version, or of something else, is told")
{
    struct liar {
        c_rank own;
        std::size_t byte;
        unsigned char value;
        static int all_gather(void* context, const void* send, void* receive, std::size_t bytes)
        {
            auto& of = *static_cast<liar*>(context);
            std::vector<unsigned char> sent(
                static_cast<const unsigned char*>(send), static_cast<const unsigned char*>(send) + bytes);
            if (of.own.rank == 1 && of.own.calls == 0) sent[of.byte] = of.value;
            return c_rank::all_gather(&of.own, sent.data(), receive, bytes);
        }
    };
    const std::pair<std::size_t, const char*> cases[]
        = {{8, "different versions"}, {0, "no message of collprobe"}};
    for (const auto& [byte, words] : cases) {
        run_c_ranks(2, [&, at = byte, why = words](c_rank& own) {
            liar of{own, at, 77};
            collprobeOptions_t options = COLLPROBE_OPTIONS_INIT;
            options.allGather = &liar::all_gather;
            options.context = &of;
            ok(collprobeCreate(&own.probe, own.rank, own.ranks, &options));
            end_step(own, 0);
            mismatch(collprobePoll(own.probe, 1), why);
            end_step(own, 1);
            ok(collprobePoll(own.probe, 1));
            ok(collprobeDestroy(own.probe));
        });
    }
}

TEST_CASE("an all-gather that fails or throws: poll says so, later calls refuse, the program goes on")
{
    for (const int call : {0, 3}) { // in the heading of step 0, in the message of step 1
        lone_probe it;
        it.own.fails_at = call;
        it.own.probe = it.probe;
        const auto failed = static_cast<std::uint64_t>(call / 2);
        for (std::uint64_t step = 0; step < failed; ++step) {
            show(it.own, "wte");
            end_step(it.own, step);
            ok(collprobePoll(it.probe, 1));
        }
        show(it.own, "wte");
        end_step(it.own, failed);
        const std::string words = "returned 42 in step " + std::to_string(failed);
        refused(collprobePoll(it.probe, 1), collprobePeerFailure, "collprobePoll", words);
        refused(collprobePoll(it.probe, 1), collprobePeerFailure, "collprobePoll", words);
        std::uint64_t token = 0;
        refused(collprobeObserveInput(it.probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum,
                    it.data.data(), count, "wte", nullptr, &token),
            collprobePeerFailure, "collprobeObserveInput", words);
        refused(collprobeExpectNumber(it.probe, collprobeEqual, "lr", 1), collprobePeerFailure,
            "collprobeExpectNumber", words);
        refused(
            collprobeEndStep(it.probe, 9, nullptr, nullptr), collprobePeerFailure, "collprobeEndStep", words);
        ok(collprobeDestroy(it.probe));
    }
    meeting at(1);
    collprobeOptions_t options = COLLPROBE_OPTIONS_INIT;
    options.allGather
        = [](void*, const void*, void*, std::size_t) -> int { throw std::runtime_error("lost"); };
    collprobeProbe_t probe = nullptr;
    ok(collprobeCreate(&probe, 0, 1, &options));
    ok(collprobeEndStep(probe, 0, nullptr, nullptr));
    refused(collprobePoll(probe, 1), collprobePeerFailure, "collprobePoll", "threw an exception in step 0");
    ok(collprobeDestroy(probe));
}

TEST_CASE("who never polls goes on; mismatches are told when asked for")
{
    run_c_probes(2, [&](c_rank& own) {
        for (std::uint64_t step = 0; step < 40; ++step) {
            show(own, step % 10 == 3 && own.rank == 0 ? "other" : "wte");
            end_step(own, step);
        }
        int mismatches = 0;
        int records = 0;
        for (int result = 0; (result = collprobePoll(own.probe, 1)) != collprobeNotReady;) {
            if (result == collprobeMismatch) ++mismatches;
            else ok(result);
            records += result == collprobeSuccess;
        }
        require(
            mismatches == 4 && records == 36, std::to_string(mismatches) + ", " + std::to_string(records));
    });
}

TEST_CASE("a probe that another thread uses is refused, and not waited for")
{
    struct nested {
        collprobeProbe_t probe = nullptr;
        std::string said;
        /// Asks until the thread of the probe waits in collprobePoll.
        static int all_gather(void* context, const void* send, void* receive, std::size_t bytes)
        {
            auto& of = *static_cast<nested*>(context);
            for (int ms = 0; !contains(of.said, "another thread") && ms < soon_ms; ++ms) {
                double value = 0;
                (void)collprobeGetValue(of.probe, "step", -1, &value);
                of.said = last_error();
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            std::memcpy(receive, send, bytes);
            return 0;
        }
    } of;
    collprobeOptions_t options = COLLPROBE_OPTIONS_INIT;
    options.allGather = &nested::all_gather;
    options.context = &of;
    ok(collprobeCreate(&of.probe, 0, 1, &options));
    ok(collprobeEndStep(of.probe, 0, nullptr, nullptr));
    int result = collprobeInvalidArgument; // as long as the other thread asks
    while (result == collprobeInvalidArgument) result = collprobePoll(of.probe, 1);
    ok(result);
    CHECK(contains(of.said, "collprobeGetValue: "));
    CHECK(contains(of.said, "another thread uses it"));
    ok(collprobeDestroy(of.probe));
}

} // namespace collprobe::testing::mistakes_test

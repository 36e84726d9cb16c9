// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/ptx/engine.hpp"

namespace collprobe::testing::engine_test {

/// Whether the engine runs right kernels, finds the faults of wrong ones, and counts what they do.
/// COLLPROBE_KERNELS is the PTX of kernels.cu.
namespace {

std::string text_of(const char* path)
{
    std::ifstream file(path);
    REQUIRE(file.good());
    return std::string(std::istreambuf_iterator<char>(file), {});
}
ptx::module& kernels()
{
    static const std::shared_ptr<ptx::module> own = ptx::load(text_of(COLLPROBE_KERNELS));
    return *own;
}

/// The only memory that the tests' kernels may use.
alignas(256) int memory[4096];
std::size_t legal_bytes = sizeof memory;

ptx::memory_range legal_range(std::uint64_t)
{
    const auto begin = reinterpret_cast<std::uint64_t>(memory);
    return {begin, begin + legal_bytes};
}

template <class... Values>
std::vector<unsigned char> arguments(const ptx::kernel& k, Values... given)
{
    std::vector<unsigned char> bytes(ptx::parameter_bytes(k));
    std::size_t next = 0;
    (std::memcpy(bytes.data() + ptx::parameters(k)[next++].offset, &given, sizeof given), ...);
    return bytes;
}

template <class... Values>
ptx::counts launch(const ptx::schedule& how, const char* name, unsigned grid, unsigned block, Values... given)
{
    const ptx::kernel* const k = ptx::find_kernel(kernels(), name);
    REQUIRE_MESSAGE(k != nullptr, name);
    ptx::schedule with_memory = how;
    with_memory.find_range = &legal_range;
    return ptx::run(*k, {grid}, {block}, 1024, arguments(*k, given...), with_memory);
}

template <class... Values>
std::string fault_of(
    const ptx::schedule& how, const char* name, unsigned grid, unsigned block, Values... given)
{
    try {
        launch(how, name, grid, block, given...);
    } catch (const ptx::fault& found) {
        return found.what();
    }
    return {};
}

bool names(const std::string& fault, const char* part)
{
    const bool found = fault.find(part) != std::string::npos;
    if (!found) MESSAGE("the fault: ", fault);
    return found;
}

const ptx::schedule plain{};
const ptx::schedule checked{.check = true};
constexpr std::uint64_t seeds = 40;

ptx::schedule random(std::uint64_t seed, bool check = true) { return {.seed = seed, .check = check}; }

template <class Body>
void in_random_schedules(Body body)
{
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        CAPTURE(seed);
        body(random(seed));
    }
}
/// All schedules that a right kernel must stand.
template <class Body>
void in_all_schedules(Body body)
{
    body(plain);
    body(checked);
    in_random_schedules(body);
}

void clear() { std::memset(memory, 0, sizeof memory); }

const std::string registers = ".reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %d<8>;\n";

/// A kernel of this body, from line 3 on.
std::string kernel_of(const std::string& body)
{
    return ".visible .entry tested(.param .u64 to, .param .u32 n)\n{ " + registers + body + "\nret;\n}\n";
}
std::string refusal_of(const std::string& text)
{
    try {
        ptx::find_kernel(*ptx::load(text), "tested");
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "accepted";
}
/// What the kernel stores into the first words of `to`.
std::vector<unsigned> stored_by(ptx::module& in, unsigned n = 0)
{
    const ptx::kernel* const k = ptx::find_kernel(in, "tested");
    REQUIRE(k != nullptr);
    std::vector<unsigned> result(4);
    ptx::run(*k, {1}, {1}, 0, arguments(*k, result.data(), n), plain);
    return result;
}

} // namespace

TEST_CASE("right kernels use shared memory and barriers")
{
    in_all_schedules([](const ptx::schedule& how) {
        clear();
        launch(how, "with_barrier", 1, 64, memory);
        for (int k = 0; k < 64; ++k) CHECK(memory[k] == 63 - k);
        launch(how, "dynamic_shared", 1, 64, memory);
        for (int k = 0; k < 64; ++k) CHECK(memory[k] == 3 * (63 - k));
        launch(how, "with_syncwarp", 1, 32, memory);
        for (int k = 0; k < 32; ++k) CHECK(memory[k] == 31 - k);
        launch(how, "shared_window", 1, 64, memory, 2);
        for (int k = 0; k < 60; ++k) CHECK(memory[k] == 2 * k + 2);
    });
}

TEST_CASE("right kernels compute with all lanes of a warp")
{
    in_all_schedules([](const ptx::schedule& how) {
        launch(how, "warp_operations", 1, 64, memory);
        int before[32];
        for (int t = 0; t < 32; ++t) before[t] = (t ^ 5) + 11 + 1;
        for (int k = 0; k < 64; ++k) {
            const int t = k % 32;
            CHECK(memory[k] == (t < 16 ? before[t] + before[t == 15 ? 15 : t + 1] : before[t]));
        }
    });
}

TEST_CASE("right kernels whose blocks pass data on")
{
    in_all_schedules([](const ptx::schedule& how) {
        clear();
        launch(how, "last_block_sums", 16, 64, memory + 64, memory, memory + 8);
        CHECK(memory[8] == 16 * 64);
        CHECK(memory[0] == 0); // the ticket is back
        clear();
        launch(how, "same_address", 1, 1, memory);
        CHECK(memory[0] == 99);
    });
}

TEST_CASE("blocks and lanes of a warp may wait for each other in random schedules")
{
    in_random_schedules([](const ptx::schedule& how) {
        clear();
        launch(how, "grid_barrier", 8, 32, memory, memory + 64, memory + 128);
        for (int k = 0; k < 8; ++k) CHECK(memory[128 + k] == 36);
        clear();
        launch(how, "message_passing", 2, 1, memory, memory + 64, memory + 128);
        CHECK(memory[128] == 42);
        clear();
        launch(how, "lanes_wait", 1, 32, memory, memory + 64);
        CHECK(memory[0] == 1);
    });
    CHECK(names(
        fault_of({.endless = 10'000}, "grid_barrier", 8, 32, memory, memory + 64, memory + 128), "does not end"));
}

TEST_CASE("a seed repeats its schedule")
{
    const auto trace = [](std::uint64_t seed) {
        clear();
        return launch(random(seed, false), "grid_barrier", 8, 32, memory, memory + 64, memory + 128)
            .warp_instructions;
    };
    std::vector<std::uint64_t> all;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        CHECK(trace(seed) == trace(seed));
        all.push_back(trace(seed));
    }
    CHECK(std::count(all.begin(), all.end(), all[0]) < 8);
}

TEST_CASE("faults of memory name the thread")
{
    for (const ptx::schedule& how : {plain, checked, random(1)}) {
        legal_bytes = 256;
        CHECK(names(fault_of(how, "beyond", 1, 64, memory), "no live memory of the device"));
        CHECK(names(fault_of(how, "beyond", 1, 64, memory), "block 0, warp 1, lane 31"));
        CHECK(names(fault_of(how, "beyond", 1, 64, memory), "st.global"));
        CHECK(fault_of(how, "beyond", 1, 63, memory) == "");
        legal_bytes = 0; // freed
        CHECK(names(fault_of(how, "with_barrier", 1, 64, memory), "no live memory of the device"));
        legal_bytes = sizeof memory;
        CHECK(names(fault_of(how, "misaligned", 1, 1, memory), "misaligned"));
        CHECK(names(fault_of(how, "shared_beyond", 1, 64, memory, 1 << 20), "beyond the shared memory"));
        CHECK(names(fault_of(how, "static_beyond", 1, 64, memory, 1), "beyond the shared memory"));
        CHECK(names(fault_of(how, "static_beyond", 1, 64, memory, 1), "warp 1, lane 31"));
        CHECK(fault_of(how, "static_beyond", 1, 64, memory, 0) == "");
        CHECK(names(fault_of(how, "local_beyond", 1, 64, memory, 500), "beyond the local memory"));
        int* const nowhere = nullptr;
        CHECK(names(fault_of(how, "beyond", 1, 1, nowhere - 2), "no live memory of the device at 0xfffffffffffffffc"));
    }
}

TEST_CASE("races on shared memory between warps and between lanes of one")
{
    for (const ptx::schedule& how : {checked, random(1), random(2)}) {
        CHECK(names(fault_of(how, "missing_barrier", 1, 64, memory), "race"));
        CHECK(names(fault_of(how, "missing_second_barrier", 1, 64, memory), "race"));
        CHECK(names(fault_of(how, "missing_syncwarp", 1, 32, memory), "race"));
    }
    CHECK(fault_of(plain, "missing_barrier", 1, 64, memory) == "");
}

TEST_CASE("barriers and members that do not fit")
{
    for (const ptx::schedule& how : {plain, checked, random(1)}) {
        CHECK(names(fault_of(how, "divergent_barrier", 1, 64, memory), "different barriers"));
        CHECK(names(fault_of(how, "missing_members", 1, 32, memory), "deadlock"));
        CHECK(names(fault_of(how, "inactive_source", 1, 32, memory), "does not take part"));
        CHECK(names(fault_of(how, "no_member", 1, 32, memory), "no member"));
        CHECK(names(fault_of(how, "half_syncwarp", 1, 32, memory), "unsupported: a sync of some lanes"));
    }
}

TEST_CASE("shared memory that was never written holds a pattern, in each block")
{
    in_all_schedules([](const ptx::schedule& how) {
        launch(how, "unwritten_shared", 3, 64, memory);
        for (int k = 0; k < 64; ++k) CHECK(memory[k] == (k == 5 ? static_cast<int>(0xA5A5A5A5u) : 1));
    });
}

TEST_CASE("missing fences show in random schedules - right ones never fail")
{
    const auto failures = [](const char* name, unsigned grid, unsigned block, int right) {
        int count = 0;
        for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
            clear();
            launch(random(seed, false), name, grid, block, memory, memory + 2048, memory + 2052);
            count += memory[2052] != right;
        }
        return count;
    };
    CHECK(failures("no_fence_before_flag", 2, 1, 42) > 0);
    CHECK(failures("no_fence_after_flag", 2, 1, 42) > 0);
    CHECK(failures("relaxed_atomic", 2, 1, 42) > 0);
    CHECK(failures("fence_without_barrier", 8, 64, 8 * 64) > 0);
    CHECK(failures("message_passing", 2, 1, 42) == 0);
    CHECK(failures("last_block_sums", 8, 64, 8 * 64) == 0);
}

TEST_CASE("bytes and sectors and bank conflicts are counted exactly")
{
    const ptx::schedule counting{.count = true};
    const ptx::counts wide = launch(counting, "copy_16", 1, 32, memory, memory + 1024);
    CHECK(wide.bytes_loaded == 512);
    CHECK(wide.load_sectors == 16);
    CHECK(wide.least_load_sectors == 16);
    CHECK(wide.store_sectors == 16);
    CHECK(wide.narrow_accesses == 0);
    const ptx::counts strided = launch(counting, "copy_strided", 1, 32, memory, memory + 1024);
    CHECK(strided.load_sectors == 32);
    CHECK(strided.least_load_sectors == 4);
    CHECK(strided.store_sectors == 4);
    CHECK(strided.narrow_accesses == 64);
    const ptx::counts turned = launch(counting, "transpose", 1, 32, memory);
    CHECK(turned.worst_bank_conflict == 32);
    for (int k = 0; k < 32; ++k) CHECK(memory[k] == 32 * k);
    CHECK(launch(counting, "with_barrier", 1, 64, memory).worst_bank_conflict == 1);
}

TEST_CASE("what a launch may not ask for and what is not supported")
{
    CHECK(names(fault_of(plain, "with_barrier", 1, 2048, memory), "a block of 2048 threads"));
    CHECK(ptx::find_kernel(kernels(), "no_such_kernel") == nullptr);
    // Of a table of functions only the kernels that use it.
    const auto with_table = ptx::load(".version 8.0\n.target sm_80\n.address_size 64\n"
                                      ".global .align 8 .u64 table[1] = {f};\n.func f() {\n ret;\n}\n"
                                      ".visible .entry uses() {\n .reg .b64 %rd<2>;\n mov.u64 %rd1, table;\n ret;\n}\n"
                                      ".visible .entry other() {\n ret;\n}\n");
    CHECK(ptx::find_kernel(*with_table, "other") != nullptr);
    CHECK_THROWS_WITH(
        ptx::find_kernel(*with_table, "uses"), doctest::Contains("a variable of the module"));
}

TEST_CASE("what the engine does not know is refused with its text and line and kernel")
{
    const std::string refusal = refusal_of(kernel_of("\nadd.ftz.f32 %f0, %f1, %f2;"));
    CHECK(refusal == "ptx: unsupported instruction: `add.ftz.f32 %f0, %f1, %f2`, line 4, in tested");
    for (const std::string statement : {"mma.sync.aligned.m8n8k4 %f0, %f1, %f2;", "add.s33 %r0, %r1, %r2;",
             "tex.1d %f0;", "cvt.rn.relu.f16.f32 %h0, %f0;",
             "setp.lt.ftz.f32 %p0, %f0, %f1;", "ld.global.v8.u32 %r0, [%d0];",
             "atom.global.add.noftz.f16 %h0, [%d0], %h1;", "fence.proxy.async;", "bar.red.popc.u32 %r0, 0, %p0;",
             "ld.acquire.gpu.global.u32 %r0, [%d0];", "st.release.gpu.global.u32 [%d0], %r0;",
             "atom.acq_rel.gpu.global.add.u32 %r0, [%d0], 1;", "setp.lt.and.s32 %p0, %r0, %r1, %p2;", "mov.u32 %r0, %tid.y;",
             "bar.sync 1;", "bar.sync 0, %r0;", "shfl.sync.up.b32 %r0, %r1, 1, 0, -1;", "trap;",
             "atom.global.cas.b32 %r0, [%d0], %r1, %r2;", "@%p0 call f, ();",
             "shfl.down.b32 %r0, %r1, 1, 31;", "cvt.s32.f32 %r0, %f0;", "brx.idx %r0, targets;", "mov.u32 %r0, %pm0;"}) {
        CAPTURE(statement);
        CHECK(refusal_of(kernel_of(statement)) != "accepted");
    }
}

TEST_CASE("wrong operands are refused")
{
    CHECK(refusal_of(kernel_of("add.s32 %r0, %r1, %r2;")) == "accepted");
    for (const std::string statement : {"add.s32 %r0, %r1;", "add.s32 %r0, %r1, %r2, %r3;", "add.s32 %r0, %r1, %d0;",
             "add.s32 %r0, %r1, %r8;", "add.s32 5, %r1, %r2;", "add.s32 _, %r1, %r2;", "add.s32 %r0, , %r2;",
             "add.s32 %r0, %r1, nothing;", "bra nowhere;", "@%r0 ret;", "ld.global.u32 %r0, %d0;",
             "ld.global.u64 %r0, [%d0];", "ld.global.v2.u32 {%r0, %d0}, [%d1];", "ld.global.u32 %r0, [%h0];",
             "call missing, ();", "again: again: ret;"}) {
        CAPTURE(statement);
        CHECK(refusal_of(kernel_of(statement)).find(", in tested") != std::string::npos);
    }
    const std::string recursion = ".func f() { call f, (); ret; }\n" + kernel_of("call f, ();");
    CHECK(refusal_of(recursion).find("recursion") != std::string::npos);
    CHECK_THROWS_WITH(ptx::load(".visible .entry tested() {\nret;\n"), "ptx: the text ends in a function in line 3");
}

TEST_CASE("calls are inlined with their parameters and results and early returns")
{
    const std::string callee = ".func (.param .b32 back) square_or_one(.param .b32 x, .param .align 4 .b8 more[8])\n"
                               "{ .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<2>;\n"
                               "ld.param.u32 %r0, [x]; mov.b64 %d0, more; ld.param.u32 %r2, [%d0+4];\n"
                               "mul.lo.s32 %r1, %r0, %r0; add.s32 %r1, %r1, %r2; st.param.b32 [back], %r1;\n"
                               "setp.ne.s32 %p0, %r0, 0; @%p0 ret; st.param.b32 [back], 1; }\n";
    const std::string call = "{ .param .b32 a; .param .align 4 .b8 b[8]; .param .b32 c; st.param.b32 [a+0], %r0;\n"
                             "st.param.b32 [b+4], 100; call.uni (c), square_or_one, (a,\n b);\n"
                             "ld.param.b32 %r1, [c]; }\n";
    const std::string text = callee + kernel_of("ld.param.u64 %d0, [to]; ld.param.u32 %r0, [n];\n" + call
        + "st.global.u32 [%d0], %r1; mov.u32 %r0, 0;\n" + call + "st.global.u32 [%d0+4], %r1;\n");
    CHECK(stored_by(*ptx::load(text), 7) == std::vector<unsigned>{149, 1, 0, 0});
}

TEST_CASE("an instruction can be taken out or replaced by its text and number")
{
    const auto kernel = ptx::load(kernel_of("ld.param.u64 %d0, [to];\nsetp.ne.s32 %p0, 0, 0;\nst.global.u32 [%d0], 1;\n"
                                          "st.global.u32 [%d0+4], 2;\n@%p0 st.global.u32 [%d0+8], 3;\n"
                                          "@%p0 bra last;\nst.global.u32 [%d0+12], 4;\nlast:"));
    CHECK(stored_by(*kernel) == std::vector<unsigned>{1, 2, 0, 4});
    CHECK(ptx::replace(*kernel, "tested", "st.global", 1));
    CHECK(stored_by(*kernel) == std::vector<unsigned>{1, 0, 0, 4});
    CHECK_FALSE(ptx::replace(*kernel, "tested", "st.global", 3));
    CHECK_FALSE(ptx::replace(*kernel, "missing", "st.global", 0));
    SUBCASE("without its guard")
    {
        CHECK(ptx::replace(*kernel, "tested", "st.global", 1, "st.global.u32 [%d0+8], 3"));
        CHECK(stored_by(*kernel) == std::vector<unsigned>{1, 0, 3, 4});
        CHECK(ptx::replace(*kernel, "tested", "@%p0 bra", 0, "bra last"));
        CHECK(stored_by(*kernel) == std::vector<unsigned>{1, 0, 3, 0});
    }
    SUBCASE("by what is no instruction")
    {
        CHECK_THROWS_AS(ptx::replace(*kernel, "tested", "st.global", 1, "st.globe 3"), std::runtime_error);
    }
}

} // namespace collprobe::testing::engine_test

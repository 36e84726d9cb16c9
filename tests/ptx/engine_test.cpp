// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
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

/// All schedules that a right kernel must stand.
template <class Body>
void in_all_schedules(Body body)
{
    body(plain);
    body(checked);
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        CAPTURE(seed);
        body(random(seed));
    }
}

void clear() { std::memset(memory, 0, sizeof memory); }

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
        launch(how, "with_half_syncwarp", 1, 32, memory);
        for (int k = 0; k < 32; ++k) CHECK(memory[k] == k / 16 * 16 + 15 - k % 16);
        launch(how, "halves_add", 1, 32, memory);
        for (int k = 0; k < 32; ++k) CHECK(memory[k] == (k < 16 ? 120 : 376 + 16));
        launch(how, "shared_window", 1, 64, memory, 2);
        for (int k = 0; k < 60; ++k) CHECK(memory[k] == 2 * k + 2);
        launch(how, "shared_exchange", 1, 64, memory);
        for (int k = 0; k < 64; ++k) CHECK(memory[k] == 7);
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
            CHECK(memory[k] == (t < 16 ? before[t] + before[t == 0 ? 0 : t - 1] : before[t]));
        }
    });
}

TEST_CASE("right kernels whose blocks wait for each other")
{
    in_all_schedules([](const ptx::schedule& how) {
        clear();
        launch(how, "grid_barrier", 8, 32, memory, memory + 64, memory + 128);
        for (int k = 0; k < 8; ++k) CHECK(memory[128 + k] == 36);
        clear();
        launch(how, "message_passing", 2, 1, memory, memory + 64, memory + 128);
        CHECK(memory[128] == 42);
        clear();
        launch(how, "last_block_sums", 16, 64, memory + 64, memory, memory + 8);
        CHECK(memory[8] == 16 * 64);
        CHECK(memory[0] == 0); // the ticket is back
        clear();
        launch(how, "same_address", 1, 1, memory);
        CHECK(memory[0] == 99);
    });
}

TEST_CASE("lanes of a warp wait for each other")
{
    in_all_schedules([](const ptx::schedule& how) {
        clear();
        launch(how, "lanes_wait", 1, 32, memory, memory + 64);
        CHECK(memory[0] == 1);
        launch(how, "lock_in_warp", 2, 8, memory + 128, memory + 192);
        CHECK(memory[192] == 16);
    });
}

TEST_CASE("the global timer counts nanoseconds")
{
    const auto now = [] {
        return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
    const auto before = now();
    launch(plain, "read_timer", 1, 1, memory);
    const auto after = now();
    std::int64_t told = 0;
    std::memcpy(&told, memory, sizeof told);
    CHECK(told >= before);
    CHECK(told <= after);
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
        CHECK(names(fault_of(how, "wrong_half_syncwarp", 1, 32, memory), "race"));
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
    }
}

TEST_CASE("values that were never written")
{
    CHECK(names(fault_of(checked, "unwritten_shared", 1, 64, memory), "warp 0, lane 5"));
    CHECK(names(fault_of(checked, "unwritten_shared", 1, 64, memory), "never written"));
    CHECK(names(fault_of(checked, "unwritten_atomic", 1, 64, memory), "an atomic operation on memory that was never"));
    CHECK(names(fault_of(checked, "unwritten_operand", 1, 64, memory), "warp 0, lane 5"));
    CHECK(names(fault_of(checked, "unwritten_decides", 1, 64, memory, 1), "decides by a value"));
    CHECK(fault_of(plain, "unwritten_shared", 1, 64, memory) == "");
    // A register: nvcc would not keep such a program.
    const auto own = ptx::load(
        ".version 8.0\n.target sm_80\n.address_size 64\n"
        ".visible .entry k(.param .u64 p) {\n .reg .b64 %rd<3>;\n .reg .b32 %r<3>;\n"
        " ld.param.u64 %rd1, [p];\n add.s32 %r1, %r2, 1;\n st.global.u32 [%rd1], %r1;\n ret;\n}\n");
    const ptx::kernel* const k = ptx::find_kernel(*own, "k");
    REQUIRE(k != nullptr);
    CHECK_NOTHROW(ptx::run(*k, {1}, {1}, 0, arguments(*k, static_cast<int*>(memory)), plain));
    CHECK_THROWS_WITH(ptx::run(*k, {1}, {1}, 0, arguments(*k, static_cast<int*>(memory)), checked),
        doctest::Contains("stores a value that was never written"));
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
    CHECK(wide.global_loads == 1);
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
    const auto own
        = ptx::load(".version 8.0\n.target sm_80\n.address_size 64\n"
                    ".visible .entry k() {\n .reg .b32 %r<3>;\n sad.u32\n%r1, %r1,\n%r1, %r1;\n ret;\n}\n");
    CHECK_THROWS_WITH(ptx::find_kernel(*own, "k"), doctest::Contains("`sad.u32 %r1, %r1, %r1, %r1`"));
    // Of a table of functions only the kernels that use it.
    const auto with_table = ptx::load(".version 8.0\n.target sm_80\n.address_size 64\n"
                                      ".global .align 8 .u64 table[1] = {f};\n.func f() {\n ret;\n}\n"
                                      ".visible .entry uses() {\n .reg .b64 %rd<2>;\n mov.u64 %rd1, table;\n ret;\n}\n"
                                      ".visible .entry other() {\n ret;\n}\n");
    CHECK(ptx::find_kernel(*with_table, "other") != nullptr);
    CHECK_THROWS_WITH(
        ptx::find_kernel(*with_table, "uses"), doctest::Contains("a variable of the module"));
}

} // namespace collprobe::testing::engine_test

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A tool of our own records what NVTX is told. (It needs CUDA's headers, as the other tests over stand-ins.)
#include <doctest/doctest.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <collprobe/comm/cuda/nvtx_ranges.hpp>
#include <collprobe/comm/group_follower.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/rank_memory.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::nvtx_ranges_stand_in_test {

#if __has_include(<nvtx3/nvToolsExt.h>)

namespace {

using ranged = nvtx_ranges<local::communicator>;
static_assert(communicator<ranged> && communicator<nvtx_ranges<ranged>>);

struct range {
    std::string name;
    std::uint64_t bytes;

    friend bool operator==(const range&, const range&) = default;
};

std::mutex mutex;
std::vector<std::string> domains;
int wrong_domain = 0;
/// What this thread did, and how deep it is in ranges.
thread_local std::vector<range> ranges;
thread_local int depth = 0;

int the_domain; // its address is the handle

nvtxDomainHandle_t NVTX_API create_domain(const char* name)
{
    const std::lock_guard lock(mutex);
    domains.emplace_back(name);
    return reinterpret_cast<nvtxDomainHandle_t>(&the_domain);
}
void check_domain(nvtxDomainHandle_t domain)
{
    const std::lock_guard lock(mutex);
    if (domain != reinterpret_cast<nvtxDomainHandle_t>(&the_domain)) ++wrong_domain;
}
nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t domain, const char* text)
{
    check_domain(domain);
    return reinterpret_cast<nvtxStringHandle_t>(new std::string(text)); // lives as long as the process
}
int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event)
{
    check_domain(domain);
    const bool is_size = event->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    ranges.push_back({*reinterpret_cast<const std::string*>(event->message.registered),
        is_size ? event->payload.ullValue : ~std::uint64_t{0}});
    return depth++;
}
int NVTX_API pop(nvtxDomainHandle_t domain)
{
    check_domain(domain);
    return --depth;
}

int NVTX_API attach(NvtxGetExportTableFunc_t get_table)
{
    const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
    NvtxFunctionTable table = nullptr;
    unsigned int size = 0;
    if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
    *table[NVTX_CBID_CORE2_DomainRegisterStringA] = reinterpret_cast<NvtxFunctionPointer>(register_string);
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
    *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
    return 1;
}

// NVTX looks for a tool in this variable when it is used first.
const bool is_attached = [] {
    InitializeInjectionNvtx2_fnptr = attach;
    return true;
}();

/// One rank alone that has groups and does nothing.
struct idle : collectives<idle, host::device> {
    struct scope {
        int* ended;
        void end(call_site = {}) { ++*ended; }
    };
    int calls = 0;
    mutable int ended = 0;

    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
    scope group_scope(call_site = {}) const { return {&ended}; }
    bool follow_group(group_follower&) const { return true; }
    template <element T>
    void make(const collective_call&, stream_ref)
    {
        ++calls;
    }
};

} // namespace

TEST_CASE("each collective is a range with its name and size")
{
    REQUIRE(is_attached);
    CHECK_NOTHROW(testing::local_provider{2}.run([](local::communicator& world) {
        ranges.clear();
        const host::stream stream;
        nvtx_ranges comm(reproducible{world});
        std::vector<float> small(6, 1.0f), large(12, 1.0f);
        const view<const float> small_in(small), large_in(large);
        const view<float> small_out(small), large_out(large);
        comm.all_reduce(small_in, small_out, reduction::average, stream);
        comm.reduce_scatter(large_in, small_out, reduction::max, stream);
        comm.all_gather(small_in, large_out, stream);
        std::vector<float> other(12);
        comm.all_to_all(large_in, view<float>(other), stream);
        comm.broadcast(small_in, small_out, 1, stream);
        comm.barrier(stream);
        std::vector<float> sums(6);
        const reduction_outcome outcome
            = comm.all_reduce(large_in, view<float>(sums), reduction::sum, stream, {.leaves = 2});
        stream.synchronize(20'000);
        conformance::require(outcome.terms == 4, "not the leaves of both ranks");

        // The sizes are those of a part, or of the result.
        const std::vector<range> expected = {{"all_reduce", 24}, {"reduce_scatter", 24}, {"all_gather", 24},
            {"all_to_all", 24}, {"broadcast", 24}, {"barrier", 0}, {"all_reduce", 24}};
        conformance::require(ranges == expected && depth == 0, "not a range for each call");
    }));
    const std::lock_guard lock(mutex);
    CHECK(domains == std::vector<std::string>{"collprobe"}); // once, and it is our own
    CHECK(wrong_domain == 0);
}

TEST_CASE("a call that throws ends its range, and the caller gets the error")
{
    local::run(1, {}, [](local::communicator& world) {
        const host::stream stream;
        nvtx_ranges comm(world);
        testing::rank_memory memory(8);
        ranges.clear();
        for (int i = 0; i < 3; ++i) {
            CHECK_THROWS_AS(
                comm.all_reduce(view<const float>(nullptr, 8), memory.out(), reduction::sum, stream), error);
            CHECK_THROWS_AS(comm.broadcast(memory.in(), memory.out(), 5, stream), error);
            CHECK(depth == 0);
        }
        CHECK(ranges.size() == 6);
        CHECK(ranges[0].name == "all_reduce");
    });
}

TEST_CASE("groups pass through")
{
    nvtx_ranges comm{idle()};
    const host::stream stream;
    struct follows : group_follower {
        follows() : group_follower([](group_follower&, bool) noexcept {}) {}
    } follower;
    CHECK(comm.follow_group(follower));
    auto group = comm.group_scope();
    comm.all_reduce(view<const float>(), view<float>(), reduction::sum, stream);
    CHECK(comm.base().ended == 0);
    group.end();
    CHECK(comm.base().calls == 1);
    CHECK(comm.base().ended == 1);
}

#else

TEST_CASE("the toolkit has no NVTX, so there is no class")
{
    MESSAGE("left out");
}

#endif

} // namespace collprobe::testing::nvtx_ranges_stand_in_test

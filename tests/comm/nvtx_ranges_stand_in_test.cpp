// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A tool of our own records what NVTX is told. (It needs CUDA's headers, as the other tests over stand-ins.)
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/nvtx_ranges.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/rank_memory.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

#if COLLPROBE_NVTX

namespace {

/// A member of a payload, as it was registered.
struct member {
    std::string name;
    std::uint64_t type;
    std::uint64_t offset;
};
struct range {
    std::string name;
    std::vector<std::pair<std::string, std::uint64_t>> members;
    std::size_t bytes = 0;

    std::uint64_t operator[](const std::string& name_of_member) const
    {
        for (const auto& [each, value] : members) {
            if (each == name_of_member) return value;
        }
        throw std::runtime_error("no " + name_of_member);
    }
};

/// What the process registered.
struct registered {
    std::mutex mutex;
    std::vector<std::string> domains;
    std::map<std::uint64_t, std::vector<member>> schemas;
    std::map<std::uint64_t, std::size_t> sizes;
    std::map<std::uint64_t, std::map<std::uint64_t, std::string>> enums;
    int wrong_domain = 0;
};
registered& seen()
{
    static registered one;
    return one;
}
/// What this thread did, and how deep it is in ranges.
thread_local std::vector<range> ranges;
thread_local int depth = 0;
thread_local int pops = 0;

int the_domain; // its address is the handle

nvtxDomainHandle_t NVTX_API create_domain(const char* name)
{
    const std::lock_guard lock(seen().mutex);
    seen().domains.emplace_back(name);
    return reinterpret_cast<nvtxDomainHandle_t>(&the_domain);
}
void check_domain(nvtxDomainHandle_t domain)
{
    const std::lock_guard lock(seen().mutex);
    if (domain != reinterpret_cast<nvtxDomainHandle_t>(&the_domain)) ++seen().wrong_domain;
}
nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t domain, const char* text)
{
    check_domain(domain);
    return reinterpret_cast<nvtxStringHandle_t>(new std::string(text)); // lives as long as the process
}
std::uint64_t NVTX_API register_schema(nvtxDomainHandle_t domain, const nvtxPayloadSchemaAttr_t* schema)
{
    check_domain(domain);
    const std::lock_guard lock(seen().mutex);
    std::vector<member> members;
    for (std::size_t i = 0; i < schema->numEntries; ++i) {
        members.push_back({schema->entries[i].name, schema->entries[i].type, schema->entries[i].offset});
    }
    if (schema->type == NVTX_PAYLOAD_SCHEMA_TYPE_STATIC) {
        seen().schemas[schema->schemaId] = members;
        seen().sizes[schema->schemaId] = schema->payloadStaticSize;
    }
    return schema->schemaId;
}
std::uint64_t NVTX_API register_enum(nvtxDomainHandle_t domain, const nvtxPayloadEnumAttr_t* all)
{
    check_domain(domain);
    const std::lock_guard lock(seen().mutex);
    for (std::size_t i = 0; i < all->numEntries; ++i) {
        seen().enums[all->schemaId][all->entries[i].value] = all->entries[i].name;
    }
    return all->schemaId;
}
int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event)
{
    check_domain(domain);
    range next;
    next.name = *reinterpret_cast<const std::string*>(event->message.registered);
    if (event->payloadType == static_cast<std::int32_t>(NVTX_PAYLOAD_TYPE_EXT) && event->reserved0 == 1) {
        const auto* data = reinterpret_cast<const nvtxPayloadData_t*>(event->payload.ullValue);
        const std::lock_guard lock(seen().mutex);
        next.bytes = data->size;
        if (data->size != seen().sizes[data->schemaId]) throw std::runtime_error("another size than registered");
        for (const member& each : seen().schemas[data->schemaId]) {
            const char* const at = static_cast<const char*>(data->payload) + each.offset;
            std::uint64_t value = 0;
            const bool is_wide
                = each.type == NVTX_PAYLOAD_ENTRY_TYPE_UINT64 || each.type == NVTX_PAYLOAD_ENTRY_TYPE_SIZE;
            const std::size_t width = is_wide ? 8 : 4;
            if (each.offset + width > data->size) throw std::runtime_error("a member outside the payload");
            std::memcpy(&value, at, width);
            next.members.emplace_back(each.name, value);
        }
    }
    ranges.push_back(next);
    return depth++;
}
int NVTX_API pop(nvtxDomainHandle_t domain)
{
    check_domain(domain);
    ++pops;
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
int NVTX_API attach_extension(nvtxExtModuleInfo_t* module)
{
    if (module->moduleId != NVTX_EXT_PAYLOAD_MODULEID) return 0;
    std::intptr_t* const slots = module->segments[0].functionSlots;
    slots[NVTX3EXT_CBID_nvtxPayloadSchemaRegister] = reinterpret_cast<std::intptr_t>(register_schema);
    slots[NVTX3EXT_CBID_nvtxPayloadEnumRegister] = reinterpret_cast<std::intptr_t>(register_enum);
    return 1;
}

// NVTX looks for a tool in these variables when it is used first.
const bool is_attached = [] {
    InitializeInjectionNvtx2_fnptr = attach;
    InitializeInjectionNvtxExtension_fnptr = attach_extension;
    return true;
}();

const std::string number_name = "Communicator ID";
const std::string bytes_name = "Message size [bytes]";

struct ranged_provider {
    using communicator = nvtx_ranges<local::communicator>;
    testing::local_provider inner;
    int size() const { return inner.size(); }
    template <class Body>
    void run(Body body) const
    {
        inner.run([&](local::communicator& world) {
            communicator comm(world);
            body(comm);
            conformance::require(depth == 0 && pops == static_cast<int>(ranges.size()), "a range has no end");
        });
    }
};

} // namespace

TEST_CASE("each collective is a range with its name, size, and root or reduction")
{
    REQUIRE(is_attached);
    CHECK_NOTHROW(testing::local_provider{2}.run([](local::communicator& world) {
        ranges.clear();
        const host::stream stream;
        nvtx_ranges comm(world, 0x1234567890abcdef);
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
        stream.synchronize(20'000);
        auto part = comm.split(0, comm.rank());
        conformance::require(part.has_value() && part->size() == 2, "no part");

        conformance::require(ranges.size() == 7 && depth == 0, "not a range for each call");
        const char* const names[]
            = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "split"};
        const std::uint64_t bytes[] = {24, 24, 24, 24, 24, 0, 0}; // those of a part
        for (std::size_t i = 0; i < 7; ++i) {
            conformance::require(ranges[i].name == names[i], names[i] + (" is called " + ranges[i].name));
            conformance::require(ranges[i].members.at(0) == std::pair(number_name, std::uint64_t{0x1234567890abcdef}),
                std::string(names[i]) + ": wrong number");
            conformance::require(ranges[i].members.at(1) == std::pair(bytes_name, bytes[i]),
                std::string(names[i]) + ": wrong size");
        }
        conformance::require(ranges[0]["Reduction operation"] == static_cast<std::uint64_t>(reduction::average)
                && ranges[1]["Reduction operation"] == static_cast<std::uint64_t>(reduction::max),
            "wrong reduction");
        conformance::require(ranges[4]["Root"] == 1, "wrong root");
        for (const std::size_t i : {2u, 3u, 5u, 6u}) {
            conformance::require(ranges[i].members.size() == 2 && ranges[i].bytes == 16, "too many members");
        }
    }));
    const std::lock_guard lock(seen().mutex);
    CHECK(seen().domains == std::vector<std::string>{"collprobe"}); // once, and it is our own
    CHECK(seen().wrong_domain == 0);
    for (const auto& [id, members] : seen().schemas) {
        CHECK(id >= NVTX_PAYLOAD_SCHEMA_ID_STATIC_START);
        CHECK(id < NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START);
        REQUIRE(members.size() >= 2);
        CHECK(members[0].type == NVTX_PAYLOAD_ENTRY_TYPE_UINT64);
        CHECK(members[1].type == NVTX_PAYLOAD_ENTRY_TYPE_SIZE);
        if (members.size() == 3 && members[2].type >= NVTX_PAYLOAD_SCHEMA_ID_STATIC_START) {
            REQUIRE(seen().enums.count(members[2].type) == 1);
            CHECK(seen().enums[members[2].type].size() == 5);
            for (const auto& [value, text] : seen().enums[members[2].type]) {
                CHECK(text == name(static_cast<reduction>(value)));
            }
        }
    }
    CHECK(seen().schemas.size() == 3);
}

TEST_CASE("a call that throws ends its range, and the caller gets the error")
{
    ranges.clear();
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

TEST_CASE("reductions with leaves are one range, with the size of the result")
{
    local::run(1, {}, [](local::communicator& world) {
        const host::stream stream;
        nvtx_ranges outer(reproducible(nvtx_ranges(world, 1)), 2);
        const std::vector<float> send(8, 1.0f);
        std::vector<float> receive(4);
        ranges.clear();
        outer.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream, {.leaves = 2});
        outer.reduce_scatter(view<const float>(send), view<float>(receive), reduction::sum, stream, {.leaves = 2});
        stream.synchronize(20'000);
        CHECK(receive == std::vector<float>(4, 2.0f));
        CHECK(depth == 0);
        int of_outer = 0;
        for (const range& each : ranges) {
            if (each[number_name] != 2) continue;
            ++of_outer;
            CHECK(each[bytes_name] == 16);
        }
        CHECK(of_outer == 2);
    });
}

TEST_CASE("with a tool a communicator conforms as without one")
{
    CHECK_NOTHROW(conformance::check_types(ranged_provider{{3}}, 67));
    CHECK_NOTHROW(conformance::check_calls(ranged_provider{{3}}, 50));
    CHECK_NOTHROW(conformance::check_barrier(ranged_provider{{3}}));
}

#else

TEST_CASE("the toolkit has no NVTX with payloads, so nothing is told")
{
    CHECK(!detail::tool_at_hand::listens());
}

#endif

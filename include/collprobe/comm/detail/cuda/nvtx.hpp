// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/config.hpp>

#if __has_include(<nvtx3/nvToolsExtPayload.h>)
#include <nvtx3/nvToolsExtPayload.h>
#endif
#if defined(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID) // older headers have other names

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What a range tells: NCCL's own ranges begin with the same two members, so that a tool can compare them.
struct nvtx_payload {
    std::uint64_t communicator;
    std::size_t bytes;
    std::int32_t extra; ///< the reduction or the root, where there is one
};

/// The domain `collprobe` of this process, with the names and the payloads of its ranges.
class nvtx_domain {
public:
    /// Null if no tool is loaded.
    static const nvtx_domain* of_process()
    {
        static const nvtx_domain one;
        return one.domain_ == nullptr ? nullptr : &one;
    }

    void push(collective call, const nvtx_payload& payload) const noexcept
    {
        const schema which = schema_of(call);
        const nvtxPayloadData_t data{id_of(which), bytes_of(which), &payload};
        nvtxEventAttributes_t range{};
        range.version = NVTX_VERSION;
        range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
        range.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        range.message.registered = names_[static_cast<std::size_t>(call)];
        range.payloadType = static_cast<std::int32_t>(NVTX_PAYLOAD_TYPE_EXT);
        range.reserved0 = 1; // payloads
        range.payload.ullValue = NVTX_POINTER_AS_PAYLOAD_ULLVALUE(&data);
        nvtxDomainRangePushEx(domain_, &range);
    }
    void pop() const noexcept { nvtxDomainRangePop(domain_); }

private:
    enum class schema : std::uint8_t { plain, reducing, rooted };

    static schema schema_of(collective call) noexcept
    {
        if (call == collective::broadcast) return schema::rooted;
        const bool reduces = call == collective::all_reduce || call == collective::reduce_scatter;
        return reduces ? schema::reducing : schema::plain;
    }
    static std::uint64_t id_of(schema which) noexcept
    {
        return NVTX_PAYLOAD_SCHEMA_ID_STATIC_START + static_cast<std::uint64_t>(which);
    }
    static constexpr std::uint64_t reduction_id = NVTX_PAYLOAD_SCHEMA_ID_STATIC_START + 16;
    static std::size_t bytes_of(schema which) noexcept
    {
        return which == schema::plain ? offsetof(nvtx_payload, extra) : sizeof(nvtx_payload);
    }

    nvtx_domain() noexcept : domain_(nvtxDomainCreateA("collprobe"))
    {
        if (domain_ == nullptr) return;
        for (std::size_t i = 0; i < names_.size(); ++i) {
            names_[i] = nvtxDomainRegisterStringA(domain_, name(static_cast<collective>(i)));
        }
        register_reductions();
        register_schema(schema::plain, "collective", 2, 0, nullptr);
        register_schema(schema::reducing, "reduction", 3, reduction_id, "Reduction operation");
        register_schema(schema::rooted, "rooted collective", 3, NVTX_PAYLOAD_ENTRY_TYPE_INT32, "Root");
    }
    void register_reductions() const noexcept
    {
        std::array<nvtxPayloadEnum_t, 5> values{};
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = {name(static_cast<reduction>(i)), i, 0};
        nvtxPayloadEnumAttr_t all{};
        all.fieldMask = NVTX_PAYLOAD_ENUM_ATTR_FIELD_NAME | NVTX_PAYLOAD_ENUM_ATTR_FIELD_ENTRIES
            | NVTX_PAYLOAD_ENUM_ATTR_FIELD_NUM_ENTRIES | NVTX_PAYLOAD_ENUM_ATTR_FIELD_SIZE
            | NVTX_PAYLOAD_ENUM_ATTR_FIELD_SCHEMA_ID;
        all.name = "reduction";
        all.entries = values.data();
        all.numEntries = values.size();
        all.sizeOfEnum = sizeof(nvtx_payload::extra);
        all.schemaId = reduction_id;
        nvtxPayloadEnumRegister(domain_, &all);
    }
    void register_schema(schema which, const char* title, std::size_t entries, std::uint64_t type_of_extra,
        const char* name_of_extra) const noexcept
    {
        std::array<nvtxPayloadSchemaEntry_t, 3> members{};
        members[0].type = NVTX_PAYLOAD_ENTRY_TYPE_UINT64;
        members[0].name = "Communicator ID";
        members[0].offset = offsetof(nvtx_payload, communicator);
        members[1].type = NVTX_PAYLOAD_ENTRY_TYPE_SIZE;
        members[1].name = "Message size [bytes]";
        members[1].offset = offsetof(nvtx_payload, bytes);
        members[2].type = type_of_extra;
        members[2].name = name_of_extra;
        members[2].offset = offsetof(nvtx_payload, extra);
        nvtxPayloadSchemaAttr_t all{};
        all.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE
            | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES
            | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID;
        all.name = title;
        all.type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
        all.entries = members.data();
        all.numEntries = entries;
        all.payloadStaticSize = bytes_of(which);
        all.schemaId = id_of(which);
        nvtxPayloadSchemaRegister(domain_, &all);
    }

    nvtxDomainHandle_t domain_;
    std::array<nvtxStringHandle_t, 7> names_{}; ///< by `collective`
};

/// The ranges of one communicator. Without a tool each is a branch.
class nvtx_tool {
public:
    explicit nvtx_tool(std::uint64_t communicator) : domain_(nvtx_domain::of_process()), communicator_(communicator) {}

    bool listens() const noexcept { return domain_ != nullptr; }
    /// Lasts as long as the result.
    [[nodiscard]] auto enter(collective call, std::uint64_t bytes, std::int32_t extra) const noexcept
    {
        struct range {
            const nvtx_domain* domain;
            ~range() { domain->pop(); }
        };
        const nvtx_payload payload{communicator_, static_cast<std::size_t>(bytes), extra};
        domain_->push(call, payload);
        return range{domain_};
    }

private:
    const nvtx_domain* domain_;
    std::uint64_t communicator_;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
#endif

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Steps that the program tells by ranges of NVTX, "training_step_17" for instance. NVTX loads the object that
// NVTX_INJECTION64_PATH names, and takes what it installs for a profiler. No such range is recorded or passed
// on.

#include <cstdlib>
#include <string_view>

#if __has_include(<nvtx3/nvToolsExt.h>)

// For the types of the callbacks. The functions of the header are not called here.
#include <nvtx3/nvToolsExt.h>

#include "communicator.hpp"

namespace collprobe_preload {

namespace {

/// What the ranges of steps begin with. Read once, when NVTX asks for the callbacks.
const char* step_range() noexcept
{
    static const char* const prefix = [] {
        const char* const value = std::getenv("COLLPROBE_STEP_RANGE");
        return value != nullptr && *value != '\0' ? value : "training_step_";
    }();
    return prefix;
}

void take(const char* text) noexcept
{
    if (text == nullptr) return;
    std::string_view name = text;
    const std::string_view prefix = step_range();
    if (!name.starts_with(prefix)) return;
    name.remove_prefix(prefix.size());
    std::uint64_t step = 0;
    bool any = false;
    for (const char digit : name) {
        if (digit < '0' || digit > '9') break;
        step = 10 * step + static_cast<std::uint64_t>(digit - '0');
        any = true;
    }
    if (any) told_step::only.set(step, step_source::nvtx);
}

void take(const nvtxEventAttributes_t* range) noexcept
{
    if (range != nullptr && range->messageType == NVTX_MESSAGE_TYPE_ASCII) take(range->message.ascii);
}

int push(const char* name)
{
    take(name);
    return 0;
}
int push_ex(const nvtxEventAttributes_t* range)
{
    take(range);
    return 0;
}
int push_in_domain(nvtxDomainHandle_t, const nvtxEventAttributes_t* range)
{
    take(range);
    return 0;
}
nvtxRangeId_t start(const char* name)
{
    take(name);
    return 0;
}
nvtxRangeId_t start_ex(const nvtxEventAttributes_t* range)
{
    take(range);
    return 0;
}
nvtxRangeId_t start_in_domain(nvtxDomainHandle_t, const nvtxEventAttributes_t* range)
{
    take(range);
    return 0;
}

template <class Function>
void install(NvtxFunctionTable table, unsigned int size, unsigned int id, Function function)
{
    if (id < size && table[id] != nullptr) *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

} // namespace

} // namespace collprobe_preload

/// What NVTX calls in the object that NVTX_INJECTION64_PATH names. 1: it is to be used.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t tables)
{
    using namespace collprobe_preload;
    const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
    if (callbacks == nullptr || callbacks->struct_size < sizeof(NvtxExportTableCallbacks)) return 0;
    NvtxFunctionTable table = nullptr;
    unsigned int size = 0;
    if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) != 0) {
        install(table, size, NVTX_CBID_CORE_RangePushA, push);
        install(table, size, NVTX_CBID_CORE_RangePushEx, push_ex);
        install(table, size, NVTX_CBID_CORE_RangeStartA, start);
        install(table, size, NVTX_CBID_CORE_RangeStartEx, start_ex);
    }
    if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) != 0) {
        install(table, size, NVTX_CBID_CORE2_DomainRangePushEx, push_in_domain);
        install(table, size, NVTX_CBID_CORE2_DomainRangeStartEx, start_in_domain);
    }
    return 1;
}

#endif

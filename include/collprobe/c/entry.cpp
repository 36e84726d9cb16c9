// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/c/collprobe.h>
#include <collprobe/c/detail/probe.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/version.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>

/// The functions of collprobe.h: arguments, handles, errors.
namespace {

using namespace collprobe;
using collprobe::detail::mix64;

constexpr int steps_in_flight = 4;
constexpr std::uint64_t most_entries = std::uint64_t{1} << 22; ///< calls, times ranks: 3 GB

thread_local std::string last_error;

/// The names of calls and values: copies that last as long as the probe, because records refer to them.
class names {
public:
    static constexpr std::size_t most = 16384;
    static constexpr std::size_t longest = 255; ///< bytes; the rest is cut off

    /// The copy of a name. Null if there is no name, or no room for another one.
    const char* copy_of(const char* name)
    {
        if (name == nullptr) return nullptr;
        std::string_view text(name);
        if (text.empty()) return nullptr;
        if (text.size() > longest) {
            std::size_t end = longest;
            while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end; // not within a letter
            text = text.substr(0, end);
        }
        const auto known = told_.find(text);
        if (known != told_.end()) return known->c_str();
        return told_.size() == most ? nullptr : told_.emplace(text).first->c_str();
    }

    /// "all_reduce#3"
    const char* of_place(const char* kind, std::uint64_t place)
    {
        char text[64];
        const int length = std::snprintf(text, sizeof text, "%s#%llu", kind, static_cast<unsigned long long>(place));
        const std::string_view name(text, static_cast<std::size_t>(length));
        const auto known = made_.find(name);
        return known != made_.end() ? known->c_str() : made_.emplace(name).first->c_str();
    }

private:
    std::set<std::string, std::less<>> told_;
    std::set<std::string, std::less<>> made_; ///< as many as the longest step has calls
};

/// An error of an argument of a function of C.
[[noreturn]] void refuse(const std::string& why, status code = status::invalid_argument)
{
    throw error(code, why, {.where = {}});
}
void require(bool condition, const char* why)
{
    if (!condition) refuse(why);
}

collprobeResult_t result_of(status code) noexcept
{
    switch (code) {
    case status::invalid_argument: return collprobeInvalidArgument;
    case status::mismatch: return collprobeMismatch;
    case status::timeout: return collprobeTimeout;
    case status::peer_failure: return collprobePeerFailure;
    case status::device_failure: return collprobeDeviceFailure;
    case status::unsupported: return collprobeUnsupported;
    }
    return collprobeInternalError;
}

/// ncclResult_t
int nccl_result_of(collprobeResult_t result) noexcept
{
    switch (result) {
    case collprobeSuccess: return 0;
    case collprobeInvalidArgument: return 4; // ncclInvalidArgument
    case collprobeUnsupported:
    case collprobeMismatch: return 5; // ncclInvalidUsage
    case collprobePeerFailure:
    case collprobeTimeout: return 6; // ncclRemoteError
    case collprobeDeviceFailure: return 1; // ncclUnhandledCudaError
    default: return 3; // ncclInternalError
    }
}

/// Keeps the sentence: that of the function `call`, and why.
void remember(const char* call, const char* why) noexcept
{
    try {
        std::string_view text(why);
        constexpr std::string_view prefix = "collprobe: ";
        if (text.substr(0, prefix.size()) == prefix) text.remove_prefix(prefix.size());
        last_error = call;
        last_error += ": ";
        last_error += text;
    } catch (...) {
        last_error.clear();
    }
}

/// Runs `body`, whose exceptions become a result. The body returns nothing, or a result.
template <class Body>
collprobeResult_t guarded(const char* call, const Body& body) noexcept
{
    try {
        if constexpr (std::is_void_v<decltype(body())>) {
            body();
            return collprobeSuccess;
        } else {
            return body();
        }
    } catch (const error& known) {
        remember(call, known.what());
        return result_of(known.code());
    } catch (const std::exception& other) {
        remember(call, other.what());
    } catch (...) {
        remember(call, "an unknown exception");
    }
    return collprobeInternalError;
}

/// What a handle stands for.
class handle_state {
public:
    using failure = c::step_exchange::failure;

    explicit handle_state(std::unique_ptr<c::step_exchange> by) : exchange(std::move(by)) {}

    /// Calls `use`. An earlier step whose exchange failed is kept for `poll`: it has nothing to do with this call.
    template <class Use>
    auto apart(const Use& use)
    {
        for (;;) {
            try {
                return use();
            } catch (const error& why) {
                failure known;
                if (!take_failure(why, known)) throw;
                late.push_back(std::move(known));
            }
        }
    }
    /// Whether an error of the probe is that of a step whose exchange failed, and how it failed.
    bool take_failure(const error& of, failure& known)
    {
        return exchange != nullptr && of.code() == status::device_failure && exchange->take_failure(known);
    }
    void require_working()
    {
        std::string why;
        if (exchange != nullptr && exchange->is_broken(why)) refuse(why, status::peer_failure);
    }

    /// The calls and values shown in the open step.
    std::vector<c::shown_call>& shown() { return steps[ended % std::size(steps)]; }
    std::uint64_t shown_count() { return is_open ? shown().size() : 0; }
    void add(c::shown_call next)
    {
        if (!is_open) shown().clear();
        is_open = true;
        const std::uint64_t form = static_cast<std::uint64_t>(next.call + 8) << 16
            | static_cast<std::uint64_t>(next.type + 8) << 8 | static_cast<std::uint64_t>(next.operation);
        std::uint64_t digest = mix64((shown().empty() ? 0 : shown().back().digest) + form);
        digest = mix64(digest ^ next.count);
        next.digest = mix64(digest ^ collprobe::report::detail::hash_of_text(next.name));
        shown().push_back(next);
    }
    /// The call of a token.
    c::shown_call& find(std::uint64_t token)
    {
        if (token != 0 && is_open) {
            // The tokens of a step ascend, values apart.
            for (auto call = shown().rbegin(); call != shown().rend(); ++call) {
                if (call->token == token) {
                    require(!call->has_result, "token: its result was shown before");
                    return *call;
                }
            }
        }
        refuse("token: it is of no input of this probe in this step");
    }
    const char* name_of(const char* told, const char* kind)
    {
        const char* const copy = all_names.copy_of(told);
        return copy != nullptr ? copy : all_names.of_place(kind, shown_count());
    }

    std::unique_ptr<c::step_exchange> exchange; ///< null around NCCL
    names all_names;
    std::vector<c::shown_call> steps[steps_in_flight + 1]; ///< of those under way, and the open one
    std::uint64_t ended = 0;
    bool is_open = false;
    bool is_cuda = false;
    bool is_nccl = false;
    std::deque<failure> late; ///< of steps whose exchange failed
    step_record record; ///< taken last
    bool has_record = false;
    std::vector<std::string> finding_texts;
    std::string text;
    std::unique_ptr<c::any_probe> probe; ///< goes first: its work uses the exchange
};

/// Of C each finding names one rank, or none: so many they are.
std::size_t findings_by_rank(const step_record& record)
{
    std::size_t count = 0;
    for (const finding& each : record.findings) count += each.is_named() ? each.ranks.size() : 1;
    return count;
}

/// The one with this index. Precondition: it is less than `findings_by_rank`.
finding finding_of_rank(const step_record& record, std::size_t index)
{
    auto each = record.findings.begin();
    for (; each->is_named() ? index >= each->ranks.size() : index > 0; ++each)
        index -= each->is_named() ? each->ranks.size() : 1;
    finding found = *each;
    if (!found.is_named()) return found;
    const int rank = each->ranks[index];
    if (found.other_rank == rank && each->ranks.size() > 1) found.other_rank = each->ranks[index == 0 ? 1 : 0];
    found.ranks = {rank};
    return found;
}

/// The live probes. A handle is a place in this table and the number of its use, so that one that was destroyed is
/// known for ever. One thread at a time uses a place.
class handle_table {
public:
    static constexpr std::uintptr_t most = 4096; ///< probes at a time
    struct place {
        std::atomic<std::uintptr_t> handle{0};
        std::atomic<bool> in_use{false};
        std::unique_ptr<handle_state> state;
    };

    collprobeProbe_t add(std::unique_ptr<handle_state> state)
    {
        const std::lock_guard lock(guard_);
        for (std::uintptr_t i = 0; i < most; ++i) {
            place& at = places_[i];
            if (at.handle.load(std::memory_order_relaxed) != 0 || at.in_use.exchange(true, std::memory_order_acquire)) {
                continue;
            }
            at.state = std::move(state);
            const std::uintptr_t handle = ++last_ * most + i;
            at.handle.store(handle, std::memory_order_relaxed);
            at.in_use.store(false, std::memory_order_release);
            return reinterpret_cast<collprobeProbe_t>(handle); // NOLINT: no address
        }
        refuse("there are 4,096 probes: destroy those that are of no more use", status::unsupported);
    }

    /// The probe of a handle, for the calling thread alone.
    class use {
    public:
        use(handle_table& table, collprobeProbe_t probe)
        {
            require(probe != nullptr, "probe is null");
            const auto handle = reinterpret_cast<std::uintptr_t>(probe);
            place& at = table.places_[handle % most];
            if (at.handle.load(std::memory_order_relaxed) == handle) {
                require(!at.in_use.exchange(true, std::memory_order_acquire),
                    "probe: another thread uses it; one thread at a time may");
                if (at.handle.load(std::memory_order_relaxed) == handle) {
                    at_ = &at;
                    return;
                }
                at.in_use.store(false, std::memory_order_release);
            }
            refuse("probe: it was destroyed, or is none");
        }
        use(const use&) = delete;
        ~use() { at_->in_use.store(false, std::memory_order_release); }

        handle_state* operator->() const noexcept { return at_->state.get(); }
        handle_state& operator*() const noexcept { return *at_->state; }
        void destroy() noexcept
        {
            at_->state.reset();
            at_->handle.store(0, std::memory_order_relaxed);
        }

    private:
        place* at_ = nullptr;
    };

private:
    std::mutex guard_;
    std::uintptr_t last_ = 0;
    place places_[most];
};

/// Never destroyed: threads may use probes while the process ends.
handle_table& handles()
{
    static handle_table* const all = new handle_table;
    return *all;
}

struct using_probe : handle_table::use {
    explicit using_probe(collprobeProbe_t probe) : use(handles(), probe) {}
};

/// The caller's struct, which may be an older and shorter one, over the defaults.
template <class Struct>
Struct read_struct(const Struct* given, Struct defaults, const char* what)
{
    if (given == nullptr) return defaults;
    if (given->size < sizeof(Struct)) {
        refuse(std::string(what) + ".size must be sizeof(" + what + "_t), as COLLPROBE_..._INIT sets it");
    }
    std::memcpy(&defaults, given, sizeof(Struct));
    return defaults;
}

probe_options options_of(const collprobeOptions_t& given, int ranks)
{
    require(given.every >= 0, "options.every is negative");
    require(given.calls >= 0 && given.calls <= 1 << 20, "options.calls must be 0 to 2^20");
    require(given.expectations >= 0 && given.expectations <= 65536, "options.expectations must be 0 to 65,536");
    require(is_finite(given.falseAlarms) && given.falseAlarms >= 0 && given.falseAlarms < 1,
        "options.falseAlarms must be 0 to 1");
    probe_options options;
    options.steps_in_flight = steps_in_flight;
    if (given.every != 0) options.every = given.every;
    if (given.calls != 0) options.calls = given.calls;
    options.largest_step = std::max(options.largest_step, options.calls);
    if (given.expectations != 0) options.expectations = given.expectations;
    if (given.falseAlarms != 0) options.false_alarms_per_step = given.falseAlarms;
    if (static_cast<std::uint64_t>(options.calls) * static_cast<std::uint64_t>(ranks) > most_entries) {
        refuse("options.calls: " + std::to_string(options.calls) + " calls of " + std::to_string(ranks)
            + " ranks are more memory than 3 GB: give room for fewer calls");
    }
    return options;
}

void check_call(int call, int type, int operation)
{
    require(c::is_call(call), "call is no collprobeCall_t");
    require(c::is_type(type), "type is no collprobeDataType_t");
    require(c::is_operation(operation), "operation is no collprobeRedOp_t");
}
std::uint64_t most_count(element_type type, int ranks)
{
    std::uint64_t bytes = 1;
    collprobe::detail::with_type(type, [&]<class T>(T) { bytes = sizeof(T); });
    return (std::uint64_t{1} << 56) / bytes / static_cast<std::uint64_t>(ranks);
}
c::buffer buffer_of(const handle_state& of, element_type type, const void* data, std::uint64_t count)
{
    require(count <= most_count(type, of.probe->ranks()), "count is impossibly large");
    return {type, data, count, data != COLLPROBE_NO_BUFFER};
}

expectation expectation_of(collprobeExpectation_t given)
{
    if (given == collprobeEqual) return expectation::equal;
    require(given == collprobeDistinct, "expectation is no collprobeExpectation_t");
    return expectation::distinct;
}

/// A value that the record has.
bool value_of(const step_record& record, std::string_view name, int rank, double& value)
{
    if (rank >= 0) {
        const std::pair<std::string_view, const std::vector<double>*> lists[] = {{"loss", &record.losses},
            {"gradient_norm", &record.gradient_norms}, {"cosine", &record.cosine.leave_one_out}};
        for (const auto& [key, list] : lists) {
            if (key != name) continue;
            const auto at = static_cast<std::size_t>(rank);
            require(rank < record.ranks, "rank is not below the number of ranks");
            value = at < list->size() ? (*list)[at] : collprobe::detail::not_a_number();
            return true;
        }
        return false;
    }
    const std::pair<std::string_view, double> values[] = {{"step", static_cast<double>(record.step)},
        {"findings", static_cast<double>(findings_by_rank(record))},
        {"calls", static_cast<double>(record.calls.size())},
        {"calls_not_read", static_cast<double>(record.unread_calls)}, {"loss.mean", record.loss.mean},
        {"loss.weighted_mean", record.loss_weighted.mean}, {"loss.std", record.loss.std},
        {"loss.range", record.loss.range}, {"gradient_norm.mean", record.gradient_norm.mean},
        {"gradient_norm.std", record.gradient_norm.std}, {"gradient_norm.range", record.gradient_norm.range},
        {"result_norm", record.result_norm}, {"cosine.mean_pairwise", record.cosine.mean_pairwise},
        {"cosine.pooled", record.cosine.pooled}, {"noise_scale", record.cosine.noise_scale}};
    for (const auto& [key, known] : values) {
        if (key != name) continue;
        value = known;
        return true;
    }
    return false;
}

/// What `collprobeSaveState` writes before the words of the evidence.
struct state_head {
    std::uint64_t magic = 0x3165746174737063; ///< "cpstate1"
    std::uint64_t ranks;
    std::uint64_t words;
    std::uint64_t digest; ///< of the words
};
std::uint64_t digest_of(const std::vector<std::uint64_t>& words)
{
    std::uint64_t digest = words.size();
    for (const std::uint64_t word : words) digest = mix64(digest ^ word);
    return digest;
}

step_observation observation_of(const collprobeStep_t& seen)
{
    step_observation out;
    const auto is_known = [](double number) { return to_bits(number) != to_bits(COLLPROBE_UNKNOWN); };
    if (seen.deviceLoss != nullptr) out.loss = seen.deviceLoss;
    else if (is_known(seen.loss)) out.loss = seen.loss;
    if (is_known(seen.gradientNorm)) out.gradient_norm = seen.gradientNorm;
    out.weight = seen.weight;
    return out;
}

#if defined(COLLPROBE_C_NCCL)
constexpr const char* without_nccl = "this probe is not around NCCL: collprobeCreateNccl makes one";
#else
constexpr const char* without_nccl = "this library was built without CUDA and NCCL";
#endif

/// A call in place of NCCL's.
template <class Body>
collprobeNcclResult_t nccl_call(const char* function, collprobeProbe_t probe, collective call, const void* send,
    std::uint64_t count, int datatype, int op, const Body& body) noexcept
{
    return nccl_result_of(guarded(function, [&] {
        const using_probe at(probe);
        if (!at->is_nccl) refuse(without_nccl, status::unsupported);
        require(c::is_type(datatype), "datatype is no ncclDataType_t that NCCL has");
        require(c::is_operation(op), "op is no operation that the probe knows: ncclSum to ncclAvg");
        const c::buffer input = buffer_of(*at, c::element_type_of(datatype), send, count);
        require(input.is_there, "sendbuff: COLLPROBE_NO_BUFFER is of collprobeObserveInput");
        call_site where{};
        where.name = at->name_of(nullptr, collprobe::name(call));
        body(*at->probe, input, c::reduction_of(op), where);
        at->add({0, 0, 0, datatype, op, count, where.name, true});
    }));
}

} // namespace

int collprobeGetVersion(void) { return COLLPROBE_VERSION; }
const char* collprobeGetLastError(void) { return last_error.c_str(); }

collprobeResult_t collprobeCreate(
    collprobeProbe_t* probe, int rank, int ranks, const collprobeOptions_t* options)
{
    return guarded(__func__, [&] {
        require(probe != nullptr, "probe, where the handle goes, is null");
        *probe = nullptr;
        require(ranks >= 1 && ranks <= static_cast<int>(c::most_ranks), "ranks must be 1 to 16,384");
        require(rank >= 0 && rank < ranks, "rank must be 0 to ranks - 1");
        require(options != nullptr, "options is null: it has the all-gather of the caller");
        const collprobeOptions_t given = read_struct(options, COLLPROBE_OPTIONS_INIT, "collprobeOptions");
        require(given.allGather != nullptr, "options.allGather is null: the probes need it to exchange their messages");
        require(given.device == collprobeHost || given.device == collprobeCuda,
            "options.device is no collprobeDevice_t");
        const probe_options wanted = options_of(given, ranks);
        c::step_heading heading;
        heading.version = COLLPROBE_VERSION;
        heading.rank = static_cast<std::uint32_t>(rank);
        heading.ranks = static_cast<std::uint32_t>(ranks);
        heading.every = static_cast<std::uint32_t>(wanted.every);
        heading.expectations = static_cast<std::uint32_t>(wanted.expectations);
        heading.false_alarms = wanted.false_alarms_per_step;
        auto state = std::make_unique<handle_state>(std::make_unique<c::step_exchange>(
            heading, given.name == nullptr ? "" : given.name, given.allGather, given.context));
        if (given.device == collprobeHost) {
            state->probe.reset(c::make_host_probe(*state->exchange, wanted));
        } else {
#if defined(COLLPROBE_C_CUDA)
            state->is_cuda = true;
            state->probe.reset(c::make_cuda_probe(*state->exchange, wanted));
#else
            refuse("options.device: this library was built without CUDA", status::unsupported);
#endif
        }
        *probe = handles().add(std::move(state));
    });
}

collprobeResult_t collprobeCreateNccl(
    collprobeProbe_t* probe, [[maybe_unused]] collprobeNcclComm_t comm, const collprobeOptions_t* options)
{
    return guarded(__func__, [&] {
        require(probe != nullptr, "probe, where the handle goes, is null");
        *probe = nullptr;
        const collprobeOptions_t given = read_struct(options, COLLPROBE_OPTIONS_INIT, "collprobeOptions");
#if defined(COLLPROBE_C_NCCL)
        require(comm != nullptr, "comm is null");
        auto state = std::make_unique<handle_state>(nullptr);
        state->probe.reset(c::make_nccl_probe(comm, given.name == nullptr ? "" : given.name, options_of(given, 1)));
        (void)options_of(given, state->probe->ranks());
        state->is_cuda = state->is_nccl = true;
        *probe = handles().add(std::move(state));
#else
        (void)options_of(given, 1);
        refuse(without_nccl, status::unsupported);
#endif
    });
}

collprobeResult_t collprobeDestroy(collprobeProbe_t probe)
{
    if (probe == nullptr) return collprobeSuccess;
    return guarded(__func__, [&] { using_probe(probe).destroy(); });
}

collprobeResult_t collprobeObserveInput(collprobeProbe_t probe, collprobeCall_t call, collprobeDataType_t type,
    collprobeRedOp_t operation, const void* data, uint64_t count, const char* name, collprobeStream_t stream,
    uint64_t* token)
{
    return guarded(__func__, [&] {
        if (token != nullptr) *token = 0;
        const using_probe at(probe);
        require(token != nullptr, "token is null");
        check_call(call, type, operation);
        const collective what = c::collective_of(call);
        const c::buffer input = buffer_of(*at, c::element_type_of(type), data, count);
        at->require_working();
        call_site where{};
        where.name = at->name_of(name, collprobe::name(what));
        *token = at->apart(
            [&] { return at->probe->observe(what, c::reduction_of(operation), input, where, stream); });
        at->add({0, *token, call, type, operation, count, where.name, false});
    });
}

collprobeResult_t collprobeObserveResult(
    collprobeProbe_t probe, uint64_t token, const void* data, uint64_t count, collprobeStream_t stream)
{
    return guarded(__func__, [&] {
        const using_probe at(probe);
        c::shown_call& of = at->find(token);
        const c::buffer result = buffer_of(*at, c::element_type_of(of.type), data, count);
        require(result.is_there || count == 0, "count must be 0 with COLLPROBE_NO_BUFFER");
        at->require_working();
        at->apart([&] { at->probe->observe_result(token, result, stream); });
        of.has_result = true;
    });
}

collprobeResult_t collprobeExpectNumber(
    collprobeProbe_t probe, collprobeExpectation_t expectation, const char* name, double value)
{
    return guarded(__func__, [&] {
        const using_probe at(probe);
        const auto what = expectation_of(expectation);
        require(name != nullptr && name[0] != '\0', "name: a value needs one");
        at->require_working();
        const char* const copy = at->name_of(name, "value");
        at->apart([&] { at->probe->expect(what, copy, value); });
        at->add({0, 0, -1 - expectation, -1, 0, 1, copy, false});
    });
}

collprobeResult_t collprobeExpectBuffer(collprobeProbe_t probe, collprobeExpectation_t expectation, const char* name,
    collprobeDataType_t type, const void* data, uint64_t count, collprobeStream_t stream)
{
    return guarded(__func__, [&] {
        const using_probe at(probe);
        const auto what = expectation_of(expectation);
        require(name != nullptr && name[0] != '\0', "name: a value needs one");
        require(c::is_type(type), "type is no collprobeDataType_t");
        const c::buffer value = buffer_of(*at, c::element_type_of(type), data, count);
        require(value.is_there, "data: COLLPROBE_NO_BUFFER is of calls, not of values");
        at->require_working();
        const char* const copy = at->name_of(name, "value");
        at->apart([&] { at->probe->expect(what, copy, value, stream); });
        at->add({0, 0, -1 - expectation, type, 0, count, copy, false});
    });
}

collprobeResult_t collprobeEndStep(
    collprobeProbe_t probe, uint64_t step, const collprobeStep_t* seen, collprobeStream_t stream)
{
    return guarded(__func__, [&] {
        const using_probe at(probe);
        const collprobeStep_t given = read_struct(seen, COLLPROBE_STEP_INIT, "collprobeStep");
        require(is_finite(given.weight) && given.weight >= 0, "seen.weight is negative or not finite");
        require(given.deviceLoss == nullptr || at->is_cuda, "seen.deviceLoss: the probe is not one of CUDA");
        at->require_working();
        if (at->exchange != nullptr) {
            c::step_heading& heading = at->exchange->heading;
            heading.step = step;
            heading.serial = at->ended + 1;
            heading.calls = at->shown_count();
            heading.digest = heading.calls == 0 ? 0 : at->shown().back().digest;
            at->exchange->shown = &at->shown();
        }
        at->apart([&] { at->probe->end_step(step, observation_of(given), stream); });
        ++at->ended;
        at->is_open = false;
    });
}

collprobeResult_t collprobePoll(collprobeProbe_t probe, int wait)
{
    return guarded(__func__, [&] {
        const using_probe at(probe);
        handle_state::failure failed;
        const auto tell = [&] {
            at->has_record = false;
            refuse(failed.text, failed.code);
        };
        if (!at->late.empty()) {
            failed = std::move(at->late.front());
            at->late.pop_front();
            tell();
        }
        try {
            if (at->probe->poll(at->record, wait != 0)) {
                at->has_record = true;
                at->finding_texts.clear();
                at->finding_texts.resize(findings_by_rank(at->record));
                return collprobeSuccess;
            }
        } catch (const error& why) {
            if (!at->take_failure(why, failed)) throw;
            tell();
        }
        at->require_working();
        return collprobeNotReady;
    });
}

collprobeResult_t collprobeGetFinding(collprobeProbe_t probe, uint64_t index, collprobeFinding_t* finding)
{
    return guarded(__func__, [&] {
        const using_probe at(probe);
        require(finding != nullptr, "finding is null");
        require(finding->size >= sizeof(collprobeFinding_t),
            "finding.size must be sizeof(collprobeFinding_t), as COLLPROBE_FINDING_INIT sets it");
        require(at->has_record, "no record was taken: collprobePoll takes one");
        if (index >= at->finding_texts.size()) return collprobeNotReady;
        const collprobe::finding of = finding_of_rank(at->record, static_cast<std::size_t>(index));
        std::string& text = at->finding_texts[static_cast<std::size_t>(index)];
        if (text.empty()) text = report::describe(of);
        const std::size_t size = finding->size;
        *finding = {size, at->record.step, collprobe::name(of.what), text.c_str(), of.site.name, of.rank(), of.call,
            of.exact ? 1 : 0, of.index, of.statistic, of.threshold};
        return collprobeSuccess;
    });
}

collprobeResult_t collprobeGetValue(collprobeProbe_t probe, const char* name, int rank, double* value)
{
    return guarded(__func__, [&] {
        const using_probe at(probe);
        require(name != nullptr, "name is null");
        require(value != nullptr, "value is null");
        require(at->has_record, "no record was taken: collprobePoll takes one");
        require(rank >= -1, "rank must be -1, or that of a rank");
        if (value_of(at->record, name, rank, *value)) return;
        refuse(std::string("name: a record has no value '") + name + (rank < 0 ? "'" : "' of a rank")
            + "; collprobe.h lists them");
    });
}

collprobeResult_t collprobeGetText(
    collprobeProbe_t probe, collprobeFormat_t format, const char* run, const char** text)
{
    return guarded(__func__, [&] {
        if (text != nullptr) *text = "";
        const using_probe at(probe);
        require(text != nullptr, "text is null");
        require(format == collprobeTable || format == collprobeJson, "format is no collprobeFormat_t");
        require(at->has_record, "no record was taken: collprobePoll takes one");
        at->text = format == collprobeTable ? report::step_table(at->record)
                                            : report::json_line({run == nullptr ? "" : run}, at->record);
        *text = at->text.c_str();
    });
}

collprobeResult_t collprobeSaveState(collprobeProbe_t probe, void* state, size_t* bytes)
{
    return guarded(__func__, [&] {
        const using_probe at(probe);
        require(bytes != nullptr, "bytes is null");
        const std::vector<std::uint64_t> words = at->probe->state();
        const state_head head{.ranks = static_cast<std::uint64_t>(at->probe->ranks()), .words = words.size(),
            .digest = digest_of(words)};
        const std::size_t room = *bytes;
        *bytes = sizeof head + words.size() * sizeof(std::uint64_t);
        if (state == nullptr) return;
        require(room >= *bytes, "bytes: the room is too small; it has become the number that is needed");
        std::memcpy(state, &head, sizeof head);
        if (!words.empty()) {
            std::memcpy(static_cast<char*>(state) + sizeof head, words.data(), words.size() * sizeof(std::uint64_t));
        }
    });
}

collprobeResult_t collprobeRestoreState(collprobeProbe_t probe, const void* state, size_t bytes)
{
    return guarded(__func__, [&] {
        const using_probe at(probe);
        require(state != nullptr, "state is null");
        state_head head{.magic = 0, .ranks = 0, .words = 0, .digest = 0};
        require(bytes >= sizeof head, "state is none of collprobeSaveState");
        std::memcpy(&head, state, sizeof head);
        require(head.magic == state_head{}.magic && bytes - sizeof head == head.words * sizeof(std::uint64_t)
                && head.words < bytes,
            "state is none of collprobeSaveState");
        require(head.ranks == static_cast<std::uint64_t>(at->probe->ranks()), "state is of another number of ranks");
        std::vector<std::uint64_t> words(static_cast<std::size_t>(head.words));
        if (!words.empty()) {
            std::memcpy(words.data(), static_cast<const char*>(state) + sizeof head,
                words.size() * sizeof(std::uint64_t));
        }
        require(digest_of(words) == head.digest, "state is damaged");
        require(at->probe->pending() == 0, "steps are under way: take their records by collprobePoll before");
        at->probe->restore(words);
    });
}

collprobeNcclResult_t collprobeAllReduce(const void* sendbuff, void* recvbuff, size_t count, int datatype, int op,
    collprobeProbe_t probe, collprobeStream_t stream)
{
    return nccl_call(__func__, probe, collective::all_reduce, sendbuff, count, datatype, op,
        [&](c::any_probe& by, const c::buffer& input, reduction operation, call_site where) {
            by.all_reduce(input, recvbuff, operation, where, stream);
        });
}

collprobeNcclResult_t collprobeReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, int datatype,
    int op, collprobeProbe_t probe, collprobeStream_t stream)
{
    return nccl_call(__func__, probe, collective::reduce_scatter, sendbuff, recvcount, datatype, op,
        [&](c::any_probe& by, const c::buffer& input, reduction operation, call_site where) {
            by.reduce_scatter(input, recvbuff, operation, where, stream);
        });
}

collprobeNcclResult_t collprobeAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, int datatype,
    collprobeProbe_t probe, collprobeStream_t stream)
{
    return nccl_call(__func__, probe, collective::all_gather, sendbuff, sendcount, datatype, collprobeSum,
        [&](c::any_probe& by, const c::buffer& input, reduction, call_site where) {
            by.all_gather(input, recvbuff, where, stream);
        });
}

collprobeNcclResult_t collprobeGroupStart(void)
{
    return nccl_result_of(guarded(__func__, [] {
#if defined(COLLPROBE_C_NCCL)
        c::start_group();
#else
        refuse(without_nccl, status::unsupported);
#endif
    }));
}

collprobeNcclResult_t collprobeGroupEnd(void)
{
    return nccl_result_of(guarded(__func__, [] {
#if defined(COLLPROBE_C_NCCL)
        c::end_group();
#else
        refuse(without_nccl, status::unsupported);
#endif
    }));
}

collprobeNcclResult_t collprobeCopyThenAllGather(const void* source, size_t count, void* destination,
    size_t slotCount, int datatype, collprobeProbe_t probe, collprobeStream_t stream,
    const collprobeStream_t* producers, int producerCount, const collprobeStream_t* consumers, int consumerCount)
{
    return nccl_call(__func__, probe, collective::all_gather, source, count, datatype, collprobeSum,
        [&](c::any_probe& by, const c::buffer& input, reduction, call_site where) {
            require(producerCount >= 0 && (producers != nullptr || producerCount == 0), "producers is null");
            require(consumerCount >= 0 && (consumers != nullptr || consumerCount == 0), "consumers is null");
            require(slotCount >= count, "slotCount is below count");
            require(slotCount <= most_count(input.type, by.ranks()), "slotCount is impossibly large");
            by.copy_then_all_gather(input, destination, slotCount, where, stream,
                {producers, static_cast<std::uint64_t>(producerCount)},
                {consumers, static_cast<std::uint64_t>(consumerCount)});
        });
}

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "layer.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "say.hpp"

namespace collprobe_mpi {
namespace {

template <class Number>
void read(const char* name, Number least, Number& value)
{
    const char* const text = std::getenv(name);
    if (text == nullptr || *text == '\0') return;
    Number read{};
    const char* const end = text + std::strlen(text);
    const std::from_chars_result result = std::from_chars(text, end, read);
    if (result.ec == std::errc() && result.ptr == end && !(read < least)) value = read;
    else if (is_first_process()) say("%s=%s is no number that it can be: it is ignored", name, text);
}

/// As the summary says it: "MPI_Allreduce of MPI_INT".
std::string text_of(const collective_call& call, const char* reason)
{
    std::string text = std::string(call.function) + (*reason != '\0' ? " " : "") + reason;
    if (std::strcmp(reason, "of") == 0) {
        char name[MPI_MAX_OBJECT_NAME] = "";
        int length = 0;
        mpi().Type_get_name(call.type, name, &length);
        text += std::string(" ") + (*name != '\0' ? name : "a derived type");
    } else if (std::strcmp(reason, "with") == 0) {
        constexpr const char* names[] = {"MPI_SUM", "MPI_PROD", "MPI_MAX", "MPI_MIN"};
        const auto& known = mpi().operations;
        const auto at = std::find(std::begin(known), std::end(known), call.op);
        text += std::string(" ") + (at == std::end(known) ? "another operation" : names[at - std::begin(known)]);
    }
    return text;
}

} // namespace

settings settings::from_environment()
{
    const auto text = [](const char* name) {
        const char* const value = std::getenv(name);
        return std::string(value != nullptr ? value : "");
    };
    settings to;
    to.is_enabled = text("COLLPROBE_ENABLE") != "0";
    to.directory = text("COLLPROBE_DIR");
    to.run = text("COLLPROBE_RUN");
    if (to.run.empty()) to.run = to.directory;
    if (text("COLLPROBE_EVERY") != "auto") read("COLLPROBE_EVERY", std::uint64_t{1}, to.every);
    read("COLLPROBE_MIN_BYTES", std::uint64_t{0}, to.least_bytes);
    read("COLLPROBE_STEP_CALLS", std::uint64_t{1}, to.calls_of_step);
    read("COLLPROBE_FALSE_ALARMS", 0.0, to.false_alarms);
    read("COLLPROBE_WAIT", std::uint64_t{0}, to.wait_s);
    return to;
}

const settings& wishes()
{
    static const settings* const read = new settings(settings::from_environment());
    return *read;
}

layer& layer::get()
{
    static layer* const object = new layer;
    return *object;
}

/// MPI_Finalize begins with the attributes of MPI_COMM_SELF, while MPI may be used, whatever language has called it.
void layer::start()
{
    const auto copy_nothing = [](MPI_Comm, int, void*, void*, void*, int* is_copied) {
        *is_copied = 0;
        return MPI_SUCCESS;
    };
    is_started_ = true;
    if (mpi().Comm_create_keyval(copy_nothing, &on_delete, &key_, this) != MPI_SUCCESS
        || mpi().Comm_set_attr(mpi().self, key_, this) != MPI_SUCCESS) {
        is_over_ = true;
    }
}

int layer::on_delete(MPI_Comm, int, void* value, void* extra)
{
    layer& own = *static_cast<layer*>(extra);
    if (value == extra) {
        own.finalize();
    } else if (!own.is_over_) {
        const std::lock_guard lock(own.mutex_);
        own.freed_.push_back(static_cast<communicator*>(value));
    }
    return MPI_SUCCESS;
}

/// Null: nothing of it is looked at.
communicator* layer::find(MPI_Comm comm)
{
    void* value = nullptr;
    int is_there = 0;
    if (comm == mpi().self || mpi().Comm_get_attr(comm, key_, &value, &is_there) != MPI_SUCCESS) return nullptr;
    if (is_there == 0) {
        auto made = std::make_unique<communicator>(comm);
        if (has_mark_) made->mark(mark_);
        value = made.get();
        if (mpi().Comm_set_attr(comm, key_, value) != MPI_SUCCESS) return nullptr;
        communicators_.push_back(std::move(made));
    }
    auto* const found = static_cast<communicator*>(value);
    return found->is_of_one_rank() ? nullptr : found;
}

/// Communicators that the program has freed end their exchange in the course of later calls.
void layer::end_freed(std::unique_lock<std::mutex>& lock)
{
    for (std::size_t at = 0; at < freed_.size();) {
        communicator* const of = freed_[at];
        of->finish(lock);
        if (!of->is_done()) {
            ++at;
            continue;
        }
        of->summarize();
        freed_.erase(freed_.begin() + static_cast<std::ptrdiff_t>(at));
        std::erase_if(communicators_, [&](const auto& each) { return each.get() == of; });
    }
}

open_call layer::begin(const collective_call& call)
{
    if (!wishes().is_enabled) return {};
    std::unique_lock lock(mutex_);
    if (!is_started_) start();
    if (is_over_) return {};
    for (const auto& each : communicators_) each->progress();
    end_freed(lock);
    communicator* const of = find(call.comm);
    return of != nullptr ? of->begin(call, lock) : open_call{};
}

void layer::end(const open_call& call, bool succeeded)
{
    const std::lock_guard lock(mutex_);
    if (!is_over_) call.of->end(call, succeeded);
}

void layer::keep(MPI_Request request, const open_call& call)
{
    const std::lock_guard lock(mutex_);
    kept_.push_back({request, call});
    kept_count_.store(kept_.size(), std::memory_order_relaxed);
}

std::vector<std::size_t> layer::find_kept(std::size_t count, const MPI_Request* requests)
{
    std::vector<std::size_t> found;
    const std::lock_guard lock(mutex_);
    for (std::size_t at = 0; at < count; ++at) {
        const bool is_kept = std::any_of(
            kept_.begin(), kept_.end(), [&](const kept_call& each) { return each.request == requests[at]; });
        if (is_kept) found.push_back(at);
    }
    return found;
}

void layer::end_kept(MPI_Request request, bool succeeded)
{
    const std::lock_guard lock(mutex_);
    // The oldest one: MPI may give several calls that are done at once the same request.
    const auto at = std::find_if(
        kept_.begin(), kept_.end(), [&](const kept_call& each) { return each.request == request; });
    if (at == kept_.end()) return;
    const open_call call = at->call;
    kept_.erase(at);
    kept_count_.store(kept_.size(), std::memory_order_relaxed);
    if (!is_over_) call.of->end(call, succeeded);
}

void layer::drop_kept(const communicator& of)
{
    for (std::size_t at = 0; at < kept_.size();) {
        if (kept_[at].call.of != &of) {
            ++at;
            continue;
        }
        const open_call call = kept_[at].call;
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(at));
        ++late_results_;
        call.of->end(call, false);
    }
    kept_count_.store(kept_.size(), std::memory_order_relaxed);
}

void layer::progress()
{
    const std::lock_guard lock(mutex_);
    if (is_over_) return;
    for (const auto& each : communicators_) each->progress();
}

void layer::mark(std::uint64_t step)
{
    const std::lock_guard lock(mutex_);
    has_mark_ = true;
    mark_ = step;
    for (const auto& each : communicators_) each->mark(step);
}

void layer::count_unseen(const collective_call& call, const char* reason)
{
    for (unseen_calls& each : unseen_) {
        if (each.function == call.function && each.reason == reason && each.type == call.type && each.op == call.op) {
            ++each.count;
            return;
        }
    }
    unseen_.push_back({call.function, reason, call.type, call.op, text_of(call, reason), 1});
}

void layer::finalize()
{
    std::unique_lock lock(mutex_);
    if (is_over_) return;
    for (const auto& each : communicators_) each->finish(lock);
    for (const auto& each : communicators_) each->wait(lock);
    is_over_ = true;
    for (const auto& each : communicators_) each->summarize();
    int rank = 0;
    mpi().Comm_rank(mpi().world, &rank);
    if (rank == 0) summarize();
    communicators_.clear();
}

/// Calls of one text count together: a type may have several handles, and a short call may have any type.
void layer::summarize() const
{
    std::vector<std::pair<std::string, std::uint64_t>> counts;
    const auto add = [&](const std::string& text, std::uint64_t count) {
        const auto at
            = std::find_if(counts.begin(), counts.end(), [&](const auto& each) { return each.first == text; });
        if (at == counts.end()) counts.emplace_back(text, count);
        else at->second += count;
    };
    for (const unseen_calls& each : unseen_) add(each.text, each.count);
    if (late_results_ != 0) add("result(s) of calls that were completed after their step", late_results_);
    if (counts.empty()) return;
    std::string line;
    for (const auto& [text, count] : counts) line += (line.empty() ? "" : ", ") + std::to_string(count) + " " + text;
    say("not looked at: %s", line.c_str());
}

} // namespace collprobe_mpi

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "communicator.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "layer.hpp"
#include "say.hpp"

namespace collprobe_mpi {
namespace {

using clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds pause{20};
/// Before a further one ends. With a fifth step the library would wait, without this thread's help.
constexpr std::uint64_t most_steps_under_way = 2;
/// A communicator that the program makes for a moment costs no probe.
constexpr std::uint64_t calls_before_probe = 16;

std::optional<collprobeDataType_t> type_of(MPI_Datatype type)
{
    const mpi_library& of = mpi();
    if (std::find(std::begin(of.floats), std::end(of.floats), type) != std::end(of.floats)) return collprobeFloat32;
    if (std::find(std::begin(of.doubles), std::end(of.doubles), type) != std::end(of.doubles)) return collprobeFloat64;
    return std::nullopt;
}

/// 0: of the program, or no reduction.
unsigned number_of(const collective_call& call)
{
    const auto& known = mpi().operations;
    const bool reduces = call.what == operation::all_reduce || call.what == operation::reduce_scatter
        || call.what == operation::reduce;
    if (!reduces) return 0;
    const auto at = std::find(std::begin(known), std::end(known), call.op);
    return at == std::end(known) ? 0 : static_cast<unsigned>(at - std::begin(known)) + 1;
}

std::uint64_t bytes_of(const collective_call& call)
{
    int size = 0;
    mpi().Type_size(call.type, &size);
    return call.elements * static_cast<std::uint64_t>(std::max(size, 0));
}

collprobeCall_t kind_of(operation what)
{
    switch (what) {
    case operation::reduce_scatter: return collprobeReduceScatterCall;
    case operation::all_gather: return collprobeAllGatherCall;
    default: return collprobeAllReduceCall;
    }
}

/// For the name of a file.
std::string plain(std::string text)
{
    std::replace_if(
        text.begin(), text.end(),
        [](unsigned char each) { return std::isalnum(each) == 0 && each != '-' && each != '_'; }, '_');
    return text;
}

} // namespace

communicator::communicator(MPI_Comm comm)
{
    const mpi_library& of = mpi();
    int between = 0;
    of.Comm_test_inter(comm, &between);
    is_between_groups_ = between != 0;
    of.Comm_rank(comm, &rank_);
    of.Comm_size(comm, &ranks_);
    if (is_between_groups_) return;
    int likeness = MPI_UNEQUAL;
    of.Comm_compare(comm, of.world, &likeness);
    is_world_ = likeness == MPI_IDENT || likeness == MPI_CONGRUENT;
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length = 0;
    of.Comm_get_name(comm, name, &length);
    name_ = name;
    if (name_.empty()) name_ = is_world_ ? "a copy of MPI_COMM_WORLD" : "a communicator";
    if (is_world_) return;
    MPI_Group own{};
    MPI_Group all{};
    of.Comm_group(comm, &own);
    of.Comm_group(of.world, &all);
    std::vector<int> ranks(static_cast<std::size_t>(ranks_));
    std::iota(ranks.begin(), ranks.end(), 0);
    world_ranks_.resize(ranks.size());
    of.Group_translate_ranks(own, ranks_, ranks.data(), all, world_ranks_.data());
    of.Group_free(&own);
    of.Group_free(&all);
    name_ += " with rank " + std::to_string(world_ranks_.front()) + " of the world as rank 0";
}

communicator::~communicator()
{
    if (exchange_ && !exchange_->has_ended()) exchange_->abandon();
    collprobeDestroy(probe_);
    if (file_ >= 0) ::close(file_);
}

void communicator::mark(std::uint64_t step)
{
    period_.mark(step);
}

const char* communicator::reason_against(const collective_call& call) const
{
    if (call.unseen != nullptr) return call.unseen;
    if (is_between_groups_) return "between two groups";
    if (!type_of(call.type)) return "of";
    if (call.what != operation::all_gather && call.op != mpi().operations[0]) return "with";
    if (bytes_of(call) < wishes().least_bytes) return "that are short";
    if (!is_world_ && calls_ < calls_before_probe) return "first on a communicator";
    return nullptr;
}

/// Ends the step where the call begins the next one.
void communicator::count_step(const collective_call& call, bool is_seen, std::unique_lock<std::mutex>& lock)
{
    std::uint64_t step = step_;
    if (const std::uint64_t calls = wishes().calls_of_step; calls != 0) {
        if (is_seen) step = (calls_ - 1) / calls;
    } else {
        // Not the handle of the type. Of a broadcast each rank may describe the same bytes by another type.
        const bool has_type = call.what != operation::broadcast;
        const unsigned type = has_type ? static_cast<unsigned>(type_of(call.type).value_or(collprobeInt8)) : 0;
        const std::uint64_t bytes = bytes_of(call);
        step = period_.add(
            collprobe_preload::call_signature(static_cast<unsigned>(call.what), type, bytes, number_of(call),
                static_cast<unsigned>(call.root)),
            bytes).step;
    }
    if (is_in_step_ && step == step_) return;
    if (seen_in_step_ != 0) end_step(lock);
    is_in_step_ = true;
    step_ = step;
    is_due_ = steps_begun_++ % wishes().every == 0;
}

open_call communicator::begin(const collective_call& call, std::unique_lock<std::mutex>& lock)
{
    const char* const reason = reason_against(call);
    const bool is_seen = reason == nullptr;
    if (is_seen || std::strcmp(reason, "first on a communicator") == 0) ++calls_;
    count_step(call, is_seen, lock);
    if (!is_seen) layer::get().count_unseen(call, reason);
    if (!is_seen || is_given_up_ || !is_due_) return {};
    if (!exchange_) open(call.comm);
    open_call opened;
    if (!succeeded(collprobeObserveInput(probe_, kind_of(call.what), *type_of(call.type), collprobeSum, call.input,
            call.input_count, nullptr, nullptr, &opened.token))) {
        return {};
    }
    ++seen_in_step_;
    ++calls_seen_;
    opened.of = this;
    opened.result = call.result;
    opened.result_count = call.result_count;
    exchange_->progress();
    return opened;
}

void communicator::end(const open_call& call, bool is_there)
{
    if (is_given_up_) return;
    succeeded(collprobeObserveResult(probe_, call.token, is_there ? call.result : COLLPROBE_NO_BUFFER,
        is_there ? call.result_count : 0, nullptr));
    progress();
}

void communicator::open(MPI_Comm comm)
{
    exchange_ = std::make_unique<exchange>(comm);
    collprobeOptions_t options = COLLPROBE_OPTIONS_INIT;
    options.allGather = [](void* context, const void* send, void* receive, std::size_t bytes) {
        return static_cast<exchange*>(context)->all_gather(send, receive, bytes);
    };
    options.context = exchange_.get();
    options.falseAlarms = wishes().false_alarms;
    options.name = name_.c_str();
    succeeded(collprobeCreate(&probe_, rank_, ranks_, &options));
    if (rank_ != 0 || wishes().directory.empty()) return;
    ::mkdir(wishes().directory.c_str(), 0777);
    const std::string path = wishes().directory + "/mpi-" + plain(name_) + "-" + std::to_string(::getpid()) + "-"
        + std::to_string(layer::get().next_file()) + ".jsonl";
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file_ < 0) say("%s cannot be written: %s", path.c_str(), std::strerror(errno));
}

void communicator::end_step(std::unique_lock<std::mutex>& lock)
{
    seen_in_step_ = 0;
    layer::get().drop_kept(*this);
    if (is_given_up_ || !wait_for_steps(most_steps_under_way, lock)) return;
    const collprobeStep_t seen = COLLPROBE_STEP_INIT;
    if (!succeeded(collprobeEndStep(probe_, step_, &seen, nullptr))) return;
    ++steps_ended_;
    exchange_->progress();
    // A message that the step before left behind goes out before this rank may be gone for long, so that ranks which
    // wait above have only to wait for MPI. The probe's thread hands it over without any other rank's help.
    const auto until = clock::now() + std::chrono::seconds(1);
    while (steps_ended_ - steps_told_ > 1 && !exchange_->is_busy() && !is_given_up_ && clock::now() < until) {
        std::this_thread::sleep_for(pause);
        progress();
    }
    progress();
}

/// Until no more than so many steps have no record. False: it has given up.
bool communicator::wait_for_steps(std::uint64_t most, std::unique_lock<std::mutex>& lock)
{
    const auto until = clock::now() + std::chrono::seconds(wishes().wait_s);
    for (progress(); !is_given_up_ && steps_ended_ - steps_told_ > most; progress()) {
        if (clock::now() > until) {
            give_up("%llu s passed without the other ranks' records: have all ranks made the same calls?",
                static_cast<unsigned long long>(wishes().wait_s));
            break;
        }
        lock.unlock();
        std::this_thread::sleep_for(pause);
        lock.lock();
    }
    return !is_given_up_;
}

void communicator::progress()
{
    if (!exchange_) return;
    exchange_->progress();
    if (!is_given_up_) take_records();
    if (!is_given_up_ && !is_finished_ && exchange_->has_ended()) stop(exchange_->why_it_ended().c_str());
}

/// Looks at nothing any more, for a reason that all ranks have.
void communicator::stop(const char* reason)
{
    is_given_up_ = true;
    exchange_->leave();
    if (rank_ == 0) say("%s: nothing is looked at from here on: %s", name_.c_str(), reason);
}

/// The same for a reason of this rank's own.
void communicator::give_up(const char* format, ...)
{
    if (is_given_up_) return;
    is_given_up_ = true;
    if (exchange_) exchange_->leave();
    char reason[1024];
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    say("%s: rank %d looks at nothing from here on: %s", name_.c_str(), rank_, reason);
}

void communicator::finish(std::unique_lock<std::mutex>& lock)
{
    if (is_finished_) return;
    if (seen_in_step_ != 0) end_step(lock);
    is_finished_ = true;
}

bool communicator::is_done()
{
    if (!exchange_) return true;
    progress();
    if (is_finished_ && (is_given_up_ || steps_told_ == steps_ended_)) exchange_->leave();
    exchange_->progress();
    return exchange_->has_ended();
}

void communicator::wait(std::unique_lock<std::mutex>& lock)
{
    const auto until = clock::now() + std::chrono::seconds(wishes().wait_s);
    while (!is_done()) {
        if (clock::now() > until) {
            exchange_->abandon();
            return;
        }
        lock.unlock();
        std::this_thread::sleep_for(pause);
        lock.lock();
    }
}

void communicator::take_records()
{
    while (steps_told_ != steps_ended_) {
        const collprobeResult_t result = collprobePoll(probe_, 0);
        if (result == collprobeNotReady || exchange_->has_ended()) return;
        if (result == collprobeMismatch) {
            // All ranks know it. Their steps may differ from here on, so none goes on.
            stop(collprobeGetLastError());
            return;
        }
        if (!succeeded(result)) return;
        take_record();
    }
}

void communicator::take_record()
{
    ++steps_told_;
    collprobeFinding_t finding = COLLPROBE_FINDING_INIT;
    news_.clear();
    for (std::uint64_t at = 0; collprobeGetFinding(probe_, at, &finding) == collprobeSuccess; ++at) {
        // The program may end within a step.
        if (is_finished_ && finding.step == step_ && std::strcmp(finding.kind, "call_missing") == 0) continue;
        ++findings_;
        if (rank_ == 0) add_to_news(finding);
    }
    for (const news& each : news_) say_news(each);
    if (file_ < 0) return;
    const char* text = nullptr;
    if (collprobeGetText(probe_, collprobeJson, wishes().run.c_str(), &text) != collprobeSuccess) return;
    std::string line(text);
    if (line.empty() || line.back() != '\n') line += '\n';
    [[maybe_unused]] const ssize_t written = ::write(file_, line.data(), line.size());
}

/// One line for what a step has found in several calls of a rank.
void communicator::add_to_news(const collprobeFinding_t& finding)
{
    const auto is_alike = [&](const auto& each) { return each.rank == finding.rank && each.kind == finding.kind; };
    if (const auto at = std::find_if(news_.begin(), news_.end(), is_alike); at != news_.end()) {
        ++at->more;
        return;
    }
    // What comes step by step is said once, and again where it has paused.
    const auto at = std::find_if(said_.begin(), said_.end(), is_alike);
    const bool goes_on = at != said_.end() && at->last_step + 1 >= steps_told_;
    if (at != said_.end()) at->last_step = steps_told_;
    else said_.push_back({finding.kind, finding.rank, steps_told_});
    news_.push_back({finding.kind, finding.rank, finding.step, finding.text, 0, goes_on});
}

void communicator::say_news(const news& of) const
{
    if (of.is_known) return;
    std::string text = "step " + std::to_string(of.step);
    if (!is_world_) text += " of " + name_;
    text += ": " + of.text;
    if (of.more != 0) text += ", and " + std::to_string(of.more) + " more of its calls";
    if (of.rank >= 0 && static_cast<std::size_t>(of.rank) < world_ranks_.size()) {
        text += "; this is rank " + std::to_string(world_ranks_[static_cast<std::size_t>(of.rank)]) + " of the world";
    }
    say("%s", text.c_str());
}

bool communicator::succeeded(collprobeResult_t result)
{
    if (result == collprobeSuccess) return true;
    give_up("%s", collprobeGetLastError());
    return false;
}

void communicator::summarize() const
{
    if (!exchange_ || rank_ != 0 || (!is_world_ && findings_ == 0)) return;
    const auto number = [](std::uint64_t count) { return static_cast<unsigned long long>(count); };
    say("%s: %llu step(s), %llu call(s) looked at, %llu finding(s)", name_.c_str(), number(steps_told_),
        number(calls_seen_), number(findings_));
}

} // namespace collprobe_mpi

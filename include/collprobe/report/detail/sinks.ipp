// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <stdexcept>

#include <unistd.h>

#include <collprobe/core/version.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/report/sinks.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

COLLPROBE_COLD_INLINE std::uint64_t unix_ns() noexcept
{
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

} // namespace detail

COLLPROBE_COLD_INLINE run_record describe_process(std::string run)
{
    run_record result;
    result.name = std::move(run);
    for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID"}) {
        const char* const found = std::getenv(variable);
        if (found == nullptr || *found == '\0') continue;
        result.job = found;
        break;
    }
    char host[256] = "";
    if (::gethostname(host, sizeof host - 1) == 0) result.host = host;
    result.process = ::getpid();
    result.started_ns = detail::unix_ns();
    result.library = std::to_string(COLLPROBE_VERSION_MAJOR) + '.' + std::to_string(COLLPROBE_VERSION_MINOR) + '.'
        + std::to_string(COLLPROBE_VERSION_PATCH);
    return result;
}

COLLPROBE_COLD_INLINE record_writer::record_writer(
    run_record run, std::vector<sink*> sinks, const sinks_options& options)
    : run_(std::move(run)), sinks_(std::move(sinks)), options_(options),
      ring_(static_cast<std::size_t>(options.room < 1 ? 1 : options.room))
{
    // The thread runs no signal handler of the program; a pipe without a reader, and a limit of the size of files, are
    // errors of a write there, and no signals that end the program.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct restore {
        const sigset_t& mask;
        ~restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } const at_exit{before};
    thread_ = collprobe::detail::thread([this] { work(); });
}

COLLPROBE_COLD_INLINE record_writer::~record_writer() { close(); }

COLLPROBE_COLD_INLINE void record_writer::put(const step_record& record) noexcept
{
    copy_in(record, kind::step, &entry::step);
}
COLLPROBE_COLD_INLINE void record_writer::put(const alarm_record& record) noexcept
{
    copy_in(record, kind::alarm, &entry::alarm);
}
COLLPROBE_COLD_INLINE void record_writer::put(const collprobe::inspection& record) noexcept
{
    copy_in(record, kind::inspection, &entry::inspection);
}

template <class Record>
void record_writer::copy_in(const Record& record, kind what, Record entry::*member) noexcept
{
    bool wanted = false;
    {
        const std::lock_guard lock(mutex_);
        bool fits = !closing_ && size_ < ring_.size();
        if (fits) {
            entry& next = ring_[(first_ + size_) % ring_.size()];
            try {
                next.*member = record;
                next.what = what;
                next.unix_ns = detail::unix_ns();
                next.dropped = dropped_.load(std::memory_order_relaxed);
                ++size_;
                put_.fetch_add(1, std::memory_order_relaxed);
                wanted = size_ == (ring_.size() + 1) / 2;
            } catch (...) { // no memory
                fits = false;
            }
        }
        if (!fits) dropped_.fetch_add(1, std::memory_order_relaxed);
    }
    if (wanted) wake(); // else the thread looks by itself, a few times a second
}

COLLPROBE_COLD_INLINE void record_writer::wake() noexcept
{
    signal_.fetch_add(1, std::memory_order_release);
    collprobe::detail::wake_all(signal_);
}

COLLPROBE_COLD_INLINE void record_writer::flush()
{
    const std::uint64_t wanted = put_.load(std::memory_order_relaxed);
    wake();
    while (true) {
        const std::uint32_t seen = progress_.load(std::memory_order_acquire);
        if (written_.load(std::memory_order_acquire) >= wanted) return;
        collprobe::detail::wait_while(progress_, seen, collprobe::detail::deadline::in_ms(100));
    }
}

COLLPROBE_COLD_INLINE void record_writer::close()
{
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
    }
    wake();
    thread_.join();
}

COLLPROBE_COLD_INLINE std::vector<std::string> record_writer::failures() const
{
    const std::lock_guard lock(mutex_);
    return failures_;
}

COLLPROBE_COLD_INLINE bool record_writer::take(entry& out)
{
    const std::lock_guard lock(mutex_);
    if (size_ == 0) return false;
    std::swap(out, ring_[first_]);
    first_ = (first_ + 1) % ring_.size();
    --size_;
    return true;
}

template <class Call>
void record_writer::for_each_sink(const Call& with)
{
    for (sink*& each : sinks_) call(each, with);
}

template <class Call>
void record_writer::call(sink*& of, const Call& with)
{
    if (of == nullptr) return;
    std::string why;
    try {
        with(*of);
        return;
    } catch (const std::exception& problem) {
        why = problem.what();
    } catch (...) {
        why = "it threw something that is no exception";
    }
    std::string target;
    try {
        target = of->target();
    } catch (...) { // then without
    }
    of = nullptr;
    const std::string text = "'" + target + "' is not written any more: " + why;
    if (options_.tell) std::fprintf(stderr, "collprobe: %s\n", text.c_str());
    const std::lock_guard lock(mutex_);
    failures_.push_back(text);
    failed_.store(true, std::memory_order_relaxed);
}

COLLPROBE_COLD_INLINE void record_writer::work()
{
    constexpr std::int64_t nap_ms = 50; // between two looks
    constexpr std::int64_t flush_ns = 1'000'000'000;
    const auto context = [this](const entry& of) { return record_context{run_, of.unix_ns, of.dropped}; };
    const auto now = [this] { return record_context{run_, detail::unix_ns(), dropped()}; };
    const auto advance = [this](std::uint64_t count) {
        written_.fetch_add(count, std::memory_order_release);
        progress_.fetch_add(1, std::memory_order_release);
        collprobe::detail::wake_all(progress_);
    };

    for (std::size_t i = 0; i < sinks_.size(); ++i) {
        const auto open = [&](sink& each) {
            for (std::size_t j = 0; j < i; ++j) {
                if (sinks_[j] != nullptr && !each.target().empty() && sinks_[j]->target() == each.target()) {
                    throw std::runtime_error("another sink writes it");
                }
            }
            each.open(run_);
        };
        call(sinks_[i], open);
    }
    advance(1);
    entry next;
    std::int64_t flushed = collprobe::detail::deadline::now_ns();
    while (true) {
        const std::uint32_t seen = signal_.load(std::memory_order_acquire);
        bool closing = false;
        {
            const std::lock_guard lock(mutex_);
            closing = closing_;
        }
        std::uint64_t count = 0;
        while (take(next)) {
            const record_context when = context(next);
            switch (next.what) {
            case kind::step: for_each_sink([&](sink& each) { each.on_step(next.step, when); }); break;
            case kind::alarm: for_each_sink([&](sink& each) { each.on_alarm(next.alarm, when); }); break;
            case kind::inspection:
                for_each_sink([&](sink& each) { each.on_inspection(next.inspection, when); });
                break;
            }
            ++count;
        }
        const std::int64_t at = collprobe::detail::deadline::now_ns();
        if (count != 0 || at - flushed >= flush_ns) {
            const record_context when = now();
            for_each_sink([&](sink& each) { each.flush(when); });
            flushed = at;
        }
        advance(count);
        if (closing) break;
        collprobe::detail::wait_while(signal_, seen, collprobe::detail::deadline::in_ms(nap_ms));
    }
    const record_context when = now();
    for_each_sink([&](sink& each) { each.close(when); });
}

} // namespace collprobe::inline COLLPROBE_ABI::report

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

#include <collprobe/core/record.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/core/version.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/thread.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/report/sink.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

/// The room between the thread that has records and the one that writes them.
struct sinks_options {
    int room = 256; ///< records that wait to be written; more are dropped, and counted
    /// Tells each failure once on the standard error: "collprobe: 'out.prom' is not written any more: ...".
    bool tell = true;
};

namespace detail {

COLLPROBE_COLD_INLINE std::uint64_t unix_ns() noexcept
{
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

} // namespace detail

/// Facts about this process: host, process id, start, job (from the variables of Slurm, PBS, LSF, torchrun), the
/// version of the library. The caller completes the rest.
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
/// The same with the facts that a communicator knows: its size and this rank.
template <class Comm>
run_record describe_run(const Comm& comm, std::string run)
{
    run_record result = describe_process(std::move(run));
    result.rank = comm.rank();
    result.ranks = comm.size();
    return result;
}

/// Hands records to sinks, on a thread of its own.
/// Cost of a record: a copy into memory that is used again, under a lock that the writing thread holds only to swap;
/// after the first records no allocation. The caller never waits for a disk.
/// Errors: none reach the caller. A sink that throws is not called again; `failures` has its message. Of two sinks with
/// one path the second is not opened.
/// Not for a child of `fork`, where the thread does not run.
class record_writer {
public:
    /// The sinks must outlive this object.
    record_writer(run_record run, std::vector<sink*> sinks, const sinks_options& options = {})
        : run_(std::move(run)), sinks_(std::move(sinks)), options_(options),
          ring_(static_cast<std::size_t>(options.room < 1 ? 1 : options.room))
    {
        // The thread runs no signal handler of the program; a pipe without a reader, and a limit of the size of files,
        // are errors of a write there, and no signals that end the program.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        struct restore {
            const sigset_t& mask;
            ~restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
        } const at_exit{before};
        thread_ = collprobe::detail::thread([this] { work(); });
    }
    record_writer(const record_writer&) = delete;
    record_writer& operator=(const record_writer&) = delete;
    /// As `close`.
    ~record_writer() { close(); }

    /// Any thread may call these, also several at a time.
    COLLPROBE_COLD_INLINE void put(const step_record& record) noexcept { hold<&entry::step, &sink::on_step>(record); }
    COLLPROBE_COLD_INLINE void put(const finding& record) noexcept { hold<&entry::alarm, &sink::on_alarm>(record); }
    COLLPROBE_COLD_INLINE void put(const inspection& of) noexcept { hold<&entry::inspected, &sink::on_inspection>(of); }
    /// The alarms of a step, as `alarms::judge` returns them.
    COLLPROBE_COLD_INLINE void put(view<const finding> raised) noexcept
    {
        for (const finding& each : raised) put(each);
    }

    /// Waits until the sinks are open and have written all records that were put before.
    COLLPROBE_COLD_INLINE void flush()
    {
        const std::uint64_t wanted = put_.load(std::memory_order_relaxed);
        wake();
        while (true) {
            const std::uint32_t seen = progress_.load(std::memory_order_acquire);
            if (written_.load(std::memory_order_acquire) >= wanted) return;
            collprobe::detail::wait_while(progress_, seen, collprobe::detail::deadline::in_ms(100));
        }
    }

    /// Writes what is there, closes the sinks and ends the thread. Records that are put after that are dropped.
    COLLPROBE_COLD_INLINE void close()
    {
        {
            const std::lock_guard lock(mutex_);
            closing_ = true;
        }
        wake();
        thread_.join();
    }

    const run_record& run() const noexcept { return run_; }
    /// Records that were dropped because `room` others waited.
    std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }
    /// "'out.prom' is not written any more: cannot write ...: No space left on device", for each sink that has failed.
    COLLPROBE_COLD_INLINE std::vector<std::string> failures() const
    {
        const std::lock_guard lock(mutex_);
        return failures_;
    }

private:
    struct entry {
        void (*give)(sink&, const entry&, const record_context&) = nullptr;
        std::uint64_t unix_ns = 0;
        std::uint64_t dropped = 0;
        step_record step;
        finding alarm;
        inspection inspected;
    };

    template <auto member, auto taker, class Record>
    void hold(const Record& record) noexcept
    {
        bool wanted = false;
        try {
            const std::lock_guard lock(mutex_);
            if (closing_ || size_ == ring_.size()) return void(dropped_.fetch_add(1, std::memory_order_relaxed));
            entry& next = ring_[(first_ + size_) % ring_.size()];
            next.*member = record;
            next.give = [](sink& to, const entry& of, const record_context& at) { (to.*taker)(of.*member, at); };
            next.unix_ns = detail::unix_ns();
            next.dropped = dropped();
            ++size_;
            put_.fetch_add(1, std::memory_order_relaxed);
            wanted = size_ == (ring_.size() + 1) / 2;
        } catch (...) { // no memory
            dropped_.fetch_add(1, std::memory_order_relaxed);
        }
        if (wanted) wake(); // else the thread looks by itself, a few times a second
    }
    COLLPROBE_COLD_INLINE void work()
    {
        constexpr std::int64_t nap_ms = 50; // between two looks
        constexpr std::int64_t flush_ns = 1'000'000'000;
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
                const record_context when{run_, next.unix_ns, next.dropped};
                for_each_sink([&](sink& each) { next.give(each, next, when); });
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

    COLLPROBE_COLD_INLINE bool take(entry& out)
    {
        const std::lock_guard lock(mutex_);
        if (size_ == 0) return false;
        std::swap(out, ring_[first_]);
        first_ = --size_ == 0 ? 0 : (first_ + 1) % ring_.size(); // the first ones have memory
        return true;
    }

    template <class Call>
    void for_each_sink(const Call& with)
    {
        for (sink*& each : sinks_) call(each, with);
    }
    template <class Call>
    void call(sink*& of, const Call& with)
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
    }

    COLLPROBE_COLD_INLINE void wake() noexcept
    {
        signal_.fetch_add(1, std::memory_order_release);
        collprobe::detail::wake_all(signal_);
    }

    run_record run_;
    std::vector<sink*> sinks_; ///< null: has failed
    sinks_options options_;

    mutable std::mutex mutex_; ///< of the members up to the next empty line
    std::vector<entry> ring_;
    std::size_t first_ = 0;
    std::size_t size_ = 0;
    bool closing_ = false;
    std::vector<std::string> failures_;

    std::atomic<std::uint64_t> dropped_{0};
    std::atomic<std::uint32_t> signal_{0}; ///< changes when the thread has something to do
    std::atomic<std::uint32_t> progress_{0}; ///< changes when it has done something
    std::atomic<std::uint64_t> put_{1}; ///< the opening counts as one
    std::atomic<std::uint64_t> written_{0};
    collprobe::detail::thread thread_;
};

namespace detail {

template <class... S>
struct owned_sinks {
    std::tuple<S...> owned;
};

} // namespace detail

/// Several sinks as one: `sinks out(describe_run(comm, "run"), json_lines("run.jsonl"), prometheus("run.prom"))`,
/// then `out.put(record)` with each record of the probe and each alarm. The names in the records' call sites must stay
/// valid until `close`, as literals do.
/// Preconditions: put a step before its alarms.
template <class... S>
class sinks : detail::owned_sinks<S...>, public record_writer {
public:
    explicit sinks(run_record run, S... all) : sinks(std::move(run), sinks_options(), std::move(all)...) {}
    sinks(run_record run, const sinks_options& options, S... all)
        : detail::owned_sinks<S...>{{std::move(all)...}},
          record_writer(std::move(run),
              std::apply([](auto&... each) { return std::vector<sink*>{&each...}; }, this->owned), options)
    {
    }
};

} // namespace collprobe::report

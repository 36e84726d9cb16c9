// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/thread.hpp>
#include <collprobe/report/sink.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

/// The room between the thread that has records and the one that writes them.
struct sinks_options {
    int room = 256; ///< records that wait to be written; more are dropped, and counted
    /// Tells each failure once on the standard error: "collprobe: 'out.prom' is not written any more: ...".
    bool tell = true;
};

/// Facts about this process: host, process id, start, job (from the variables of Slurm, PBS, LSF, torchrun), the
/// version of the library. The caller completes the rest.
run_record describe_process(std::string run);
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
    record_writer(run_record run, std::vector<sink*> sinks, const sinks_options& options = {});
    record_writer(const record_writer&) = delete;
    record_writer& operator=(const record_writer&) = delete;
    /// As `close`.
    ~record_writer();

    /// Any thread may call these, also several at a time.
    void put(const step_record& record) noexcept;
    void put(const alarm_record& record) noexcept;
    void put(const inspection& record) noexcept;

    /// Waits until the sinks are open and have written all records that were put before.
    void flush();
    /// Writes what is there, closes the sinks and ends the thread. Records that are put after that are dropped.
    void close();

    const run_record& run() const noexcept { return run_; }
    /// Records that were dropped because `room` others waited.
    std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }
    /// Whether a sink has failed.
    bool has_failed() const noexcept { return failed_.load(std::memory_order_relaxed); }
    /// "'out.prom' is not written any more: cannot write ...: No space left on device", for each sink that has failed.
    std::vector<std::string> failures() const;

private:
    enum class kind : std::uint8_t { step, alarm, inspection };
    struct entry {
        kind what = kind::step;
        std::uint64_t unix_ns = 0;
        std::uint64_t dropped = 0;
        step_record step;
        alarm_record alarm;
        collprobe::inspection inspection;
    };

    template <class Record>
    void copy_in(const Record& record, kind what, Record entry::*member) noexcept;
    void work();
    bool take(entry& out);
    template <class Call>
    void for_each_sink(const Call& with);
    template <class Call>
    void call(sink*& of, const Call& with);
    void wake() noexcept;

    run_record run_;
    std::vector<sink*> sinks_; ///< null: has failed
    sinks_options options_;

    mutable std::mutex mutex_; ///< of the members up to the next empty line
    std::vector<entry> ring_;
    std::size_t first_ = 0;
    std::size_t size_ = 0;
    bool closing_ = false;
    std::vector<std::string> failures_;

    std::atomic<bool> failed_{false};
    std::atomic<std::uint64_t> dropped_{0};
    std::atomic<std::uint32_t> signal_{0}; ///< changes when the thread has something to do
    std::atomic<std::uint32_t> progress_{0}; ///< changes when it has done something
    std::atomic<std::uint64_t> put_{1}; ///< the opening counts as one
    std::atomic<std::uint64_t> written_{0};
    collprobe::detail::thread thread_;
};

/// Several sinks as one: `sinks out(describe_run(comm, "pretraining"), json_lines("steps.jsonl"), html("run.html"))`,
/// then `out.put(record)` with each record of the probe and each alarm. The names in the records' call sites must stay
/// valid until `close`, as literals do.
/// Preconditions: put a step before its alarms.
template <class... S>
class sinks {
public:
    explicit sinks(run_record run, S... all) : sinks(std::move(run), sinks_options(), std::move(all)...) {}
    sinks(run_record run, const sinks_options& options, S... all)
        : sinks_(std::move(all)...),
          writer_(
              std::move(run), std::apply([](auto&... each) { return std::vector<sink*>{&each...}; }, sinks_), options)
    {
    }

    /// See `record_writer`.
    void put(const step_record& record) noexcept { writer_.put(record); }
    void put(const inspection& record) noexcept { writer_.put(record); }
    void put(const alarm_record& record) noexcept { writer_.put(record); }
    /// The alarms of a step, as `alarms::judge` returns them.
    void put(view<const alarm_record> raised) noexcept
    {
        for (const alarm_record& each : raised) writer_.put(each);
    }
    void flush() { writer_.flush(); }
    void close() { writer_.close(); }
    const run_record& run() const noexcept { return writer_.run(); }
    std::uint64_t dropped() const noexcept { return writer_.dropped(); }
    bool has_failed() const noexcept { return writer_.has_failed(); }
    std::vector<std::string> failures() const { return writer_.failures(); }

private:
    std::tuple<S...> sinks_;
    record_writer writer_;
};

} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/sinks.ipp>
#endif

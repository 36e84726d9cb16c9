// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/serial.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/order/detail/engine.hpp>
#include <collprobe/order/stream.hpp>
#include <collprobe/order/stream_hazard.hpp>

/// A checker of stream order. It is not part of `collprobe.hpp`: include this header to use it.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

class process_checker;

} // namespace detail

/// An external object with an identity of its own: an event's handle, a communicator, a mutex.
struct order_object {
    std::uint64_t number = 0;

    order_object(const void* handle) noexcept : number(reinterpret_cast<std::uintptr_t>(handle)) {}
    explicit order_object(std::uint64_t own_number) noexcept : number(own_number) {}
};

/// Finds two accesses to the same bytes that no documented semantics of CUDA and NCCL orders. It finds them at the
/// first execution, independent of timing, with or without a GPU.
///
///     collprobe::stream_order checker;
///     checker.install();            // from here on the library's own calls report (COLLPROBE_STREAM_ORDER=1)
///     train_one_step();             // report foreign calls by order/cuda/ordered.hpp, kernels by `launch`
///     for (const auto& hazard : checker.hazards()) std::puts(hazard.message().c_str());
///
/// Guarantee: assume that every access to some bytes, every allocation and release of them and every ordering call is
/// reported. Then for each byte the first access that is not ordered behind a conflicting one becomes a hazard when it
/// is enqueued. Every hazard names two such accesses. It may hide a later conflict of the same byte: repair it, and run
/// again. Each access that begins in an allocation and ends behind it becomes a hazard. Rules, limits: order/README.md.
/// Threads: any number; one lock. The checker does not wait for a device and calls none.
/// Cost: tens of nanoseconds a call (bench/stream_order_bench.cpp), and a clock entry for each stream or thread: also
/// for one that has ended, until a new one is behind all its work.
class stream_order {
public:
    /// The handling of hazards, and the limits of memory.
    struct options {
        /// Called with each new hazard (once per pair of call sites), by the thread that makes the call, before the
        /// work is enqueued. If it throws, the work is never enqueued, but the checker knows it all the same; `raise`
        /// throws. After the call are told: waits of streams, collectives of a group (at its end), and synchronous
        /// copies from pageable memory. Hazards are collected in any case.
        void (*on_hazard)(const stream_hazard& found, void* context) = nullptr;
        void* context = nullptr;
        /// Whether to take it that cudaFree and cudaFreeHost wait for all work on the device. They mostly do, but CUDA
        /// does not promise it.
        bool free_synchronizes = false;
        /// The number of reports that are kept; further ones are counted, and given to `on_hazard`.
        std::size_t most_reports = 256;
        /// The number of released ranges that are watched for later use.
        std::size_t most_released = 1024;
    };

    /// An `options::on_hazard` that throws `error` `invalid_argument` with the hazard's message.
    static void raise(const stream_hazard& found, void*)
    {
        detail::refuse(found.later.operation, found.message(), found.later.where);
    }

    stream_order() : stream_order(options{}) {}
    explicit stream_order(const options& settings)
        : settings_(settings),
          engine_(detail::next_serial<stream_order>(), settings.most_reports, settings.most_released)
    {
        if (settings_.on_hazard != nullptr) engine_.reports().keep_news();
    }
    stream_order(const stream_order&) = delete;
    stream_order& operator=(const stream_order&) = delete;
    ~stream_order() { uninstall(); }

    /// Makes the library's own calls report to this checker, until `uninstall` or the destructor. Both of these wait
    /// until no call is reporting, so neither may be called in `on_hazard`. Work recorded before `install` is unknown.
    /// \throws error `unsupported` if COLLPROBE_STREAM_ORDER is 0; `invalid_argument` while another is installed.
    void install(call_site where = call_site::current())
    {
        if constexpr (!COLLPROBE_STREAM_ORDER) {
            throw error(status::unsupported,
                "this translation unit is compiled with COLLPROBE_STREAM_ORDER=0, so the library's calls tell nobody",
                {.call = "stream_order::install", .where = where});
        }
        stream_order* none = nullptr;
        if (installed_.compare_exchange_strong(none, this)) return;
        detail::refuse("stream_order::install", "another checker is installed", where);
    }
    void uninstall() noexcept
    {
        stream_order* own = this;
        if (!installed_.compare_exchange_strong(own, nullptr)) return;
        for (unsigned round = 0; calls_.load() != 0; ++round) detail::back_off(round);
    }
    bool installed() const noexcept { return installed_.load() == this; }
    /// Calls `tell(stream_order&)` with the installed checker, if there is one.
    template <class Tell>
    static void tell_installed(const Tell& tell)
    {
        if (installed_.load(std::memory_order_relaxed) != nullptr) {
            const counted_call here;
            if (stream_order* const to = installed_.load()) return tell(*to);
        }
        if (stream_order* const to = of_process_.load(std::memory_order_acquire)) tell(*to);
    }

    // --- Results ---

    std::vector<stream_hazard> hazards() const
    {
        const std::lock_guard lock(guard_);
        return engine_.reports().hazards();
    }
    /// The number of hazards: for each operation, the call sites with which it has one, reported or not.
    std::uint64_t hazard_count() const
    {
        const std::lock_guard lock(guard_);
        return engine_.reports().hazard_count();
    }
    /// Drops the reports, but keeps the knowledge about order and memory.
    void clear_reports()
    {
        const std::lock_guard lock(guard_);
        engine_.reports().clear();
    }
    /// Gives a stream a name, which messages show beside its number.
    void name(const order_stream& stream, std::string text)
    {
        told([&] { engine_.name(stream, std::move(text)); });
    }

    // --- Work ---
    // `what` and the strings of `where` are kept as pointers: pass literals.

    /// Reports work on a stream that reads and writes bytes: a copy, a kernel. Ranges may overlap.
    void launch(const order_stream& on, const memory_ranges& reads, const memory_ranges& writes, const char* what,
        call_site where = call_site::current())
    {
        told([&] { engine_.launch(on, reads, writes, {what, where}, detail::number_of_thread()); });
    }
    /// Reports an access by the calling host thread itself.
    void touch_host(memory_range bytes, memory_access mode, const char* what = "host access",
        call_site where = call_site::current())
    {
        told([&] { engine_.touch_host(bytes, mode, {what, where}, detail::number_of_thread()); });
    }
    /// Reports a collective of one rank. In a group it is kept until the group ends, unless `deferrable` is false: a
    /// communicator of one rank enqueues at once.
    void collective(const order_stream& on, const memory_ranges& reads, const memory_ranges& writes, const char* what,
        bool deferrable = true, call_site where = call_site::current())
    {
        told([&] {
            engine_.collective(on, reads, writes, {what, where}, detail::number_of_thread(), deferrable);
        });
    }
    void group_begin()
    {
        told([&] { engine_.group_begin(detail::number_of_thread()); });
    }
    /// Ends a group. If the group failed and its collectives were not `enqueued`, they are forgotten.
    void group_end(bool enqueued = true)
    {
        told([&] { engine_.group_end(enqueued, detail::number_of_thread()); });
    }

    // --- Order ---

    /// Sets `point` to the work that is on the stream now, and to the knowledge of the enqueuing thread.
    void record(order_point& point, const order_stream& on)
    {
        told([&] { engine_.record(point, on, detail::number_of_thread()); });
    }
    /// Orders later work of the stream behind `point`. A point that was never recorded is a hazard.
    void wait(const order_stream& on, const order_point& point, call_site where = call_site::current())
    {
        told([&, this] {
            if (point.recorded()) engine_.wait(on, point, detail::number_of_thread());
            else engine_.wait_unrecorded(on, {"wait", where});
        });
    }
    /// Reports that the host thread knows `point` to be reached, by a wait or a successful query.
    void reached(const order_point& point)
    {
        told([&] { engine_.reached(point, detail::number_of_thread()); });
    }
    /// Reports that the host thread has waited for all work that is on the stream now. (If other threads enqueue
    /// meanwhile, call `look` before the wait and `reached` after it.)
    void synchronize(const order_stream& on)
    {
        order_point now;
        told([&] {
            engine_.look(now, on);
            engine_.reached(now, detail::number_of_thread());
        });
    }
    /// Sets `point` to the work that is on the stream now, for a host that waits for it. Unlike `record` this enqueues
    /// nothing: the stream learns nothing of the host.
    void look(order_point& point, const order_stream& on)
    {
        told([&] { engine_.look(point, on); });
    }
    /// Sets `point` to the work that is on all streams of a space (`order_stream::space`) now.
    void record_space(order_point& point, stream_space space)
    {
        told([&] { engine_.record_space(point, space); });
    }
    /// `record`, `wait` and `reached` for an event that is identified by a handle.
    void record(order_object event, const order_stream& on)
    {
        told([&] { engine_.record(engine_.event({event.number}), on, detail::number_of_thread()); });
    }
    void wait(const order_stream& on, order_object event, call_site where = call_site::current())
    {
        told([&] {
            const order_point* const point = engine_.find_event({event.number});
            if (point == nullptr) return; // it may have been recorded before anything was told
            if (point->recorded()) engine_.wait(on, *point, detail::number_of_thread());
            else engine_.wait_unrecorded(on, {"wait", where});
        });
    }
    void reached(order_object event)
    {
        told([&] {
            if (const order_point* const point = engine_.find_event({event.number})) {
                engine_.reached(*point, detail::number_of_thread());
            }
        });
    }
    /// The present point of an event that is identified by a handle: for `reached` after a wait, during which another
    /// thread may record the event anew.
    order_point point_of(order_object event)
    {
        const std::lock_guard lock(guard_);
        const order_point* const point = engine_.find_event({event.number});
        return point == nullptr ? order_point{} : *point;
    }
    /// Reports a new event. A wait for it before it is recorded is a hazard. (Of an event of which nothing was told a
    /// wait is neither a hazard nor an order.)
    void event_created(order_object event)
    {
        told([&] { engine_.event_created({event.number}); });
    }
    /// Reports that an event that is identified by a handle stands for `point`.
    void set_event(order_object event, const order_point& point)
    {
        told([&] { engine_.event({event.number}) = point; });
    }
    /// Reports the end of an event, whose handle may be reused.
    void event_ended(order_object event)
    {
        told([&] { engine_.forget_event({event.number}); });
    }
    /// Reports a new stream: its work is behind what the calling thread knows. Of a stream of which this is not told,
    /// the work is behind what the threads know that use it.
    void stream_began(const order_stream& stream)
    {
        told([&] { engine_.stream_began(stream, detail::number_of_thread()); });
    }
    /// Reports the end of a stream, whose number may be reused.
    void stream_ended(const order_stream& stream)
    {
        told([&] { engine_.stream_ended(stream); });
    }
    /// Order between host threads: a thread that acquires a tag is behind all threads that released the tag before.
    /// Call `handoff_release` before a mutex is unlocked, and `handoff_acquire` after it is locked.
    void handoff_release(order_object tag)
    {
        told([&] { engine_.handoff_release({tag.number}, detail::number_of_thread()); });
    }
    void handoff_acquire(order_object tag)
    {
        told([&] { engine_.handoff_acquire({tag.number}, detail::number_of_thread()); });
    }
    /// Sets `point` to the present knowledge of the calling host thread.
    void record_thread(order_point& point)
    {
        told([&] { engine_.record_host(point, detail::number_of_thread()); });
    }
    /// Reports that the calling thread begins behind `parent`, a point of another thread.
    void thread_began(const order_point& parent)
    {
        told([&] { engine_.thread_began(parent, detail::number_of_thread()); });
    }
    /// Reports that the calling thread makes no more calls. The thread that joins it passes `last` to `reached`.
    void thread_ended(order_point& last)
    {
        told([&] { engine_.thread_ended(last, detail::number_of_thread()); });
    }

    // --- Lifetimes ---

    /// Reports that the bytes are new: earlier accesses to them are forgotten, and later ones must end within them.
    /// Bytes of a live allocation remain a part of it, and its end counts.
    void allocate(memory_range bytes)
    {
        told([&] { engine_.allocate(bytes); });
    }
    /// As above, in the order of a stream (cudaMallocAsync): uses must be ordered behind it.
    void allocate(memory_range bytes, const order_stream& on, call_site where = call_site::current())
    {
        told([&] { engine_.allocate_on(on, bytes, {"allocation", where}, detail::number_of_thread()); });
    }
    /// Reports that the host frees the bytes. The calling thread must know all accesses to be done. With `watch`, later
    /// accesses are hazards until the bytes are allocated again; pass false for memory that other allocators share. If
    /// the bytes are a part of an allocation, the rest remains one; without `watch` its bounds are forgotten.
    void release(memory_range bytes, bool watch = true, call_site where = call_site::current(),
        const char* what = "release")
    {
        told([&] { engine_.release(bytes, watch, {what, where}, detail::number_of_thread()); });
    }
    /// Reports that the host frees an allocation, as cudaFree does. With `options::free_synchronizes` the calling
    /// thread has waited for all work of the space when it does so.
    void free(const void* memory, stream_space space, const char* what, call_site where = call_site::current())
    {
        order_point all;
        told([&] {
            const std::uint64_t thread = detail::number_of_thread();
            if (settings_.free_synchronizes) {
                engine_.record_space(all, space);
                engine_.reached(all, thread);
            }
            engine_.release({memory, engine_.allocated_bytes(memory)}, true, {what, where}, thread);
        });
    }
    /// Sets the bounds of memory that has been in use before, which `release` ends.
    void bound(memory_range bytes)
    {
        told([&] { engine_.bound(bytes); });
    }
    /// As above, in the order of a stream (cudaFreeAsync).
    void release(memory_range bytes, const order_stream& on, call_site where = call_site::current())
    {
        told([&] { engine_.release_on(on, bytes, {"release", where}, detail::number_of_thread()); });
    }
    /// The size of the last live allocation at this address, without parts that were released; 0 if there is none.
    std::uint64_t allocated_bytes(const void* memory) const
    {
        const std::lock_guard lock(guard_);
        return engine_.allocated_bytes(memory);
    }

    // --- Captures ---
    // A call whose `order_stream::capture` is not 0 is part of that capture. It is checked against the rest of the
    // capture. It runs when the capture is launched, and is checked against all other work then.

    /// Needed only to name accesses by others between the beginning and the first captured call `half_captured`.
    void capture_begin(std::uint64_t number)
    {
        told([&] { engine_.capture_begin(number); });
    }
    void capture_end(std::uint64_t number)
    {
        told([&] { engine_.capture_end(number); });
    }
    /// Reports a launch of a capture's graph: one operation that reads and writes all bytes of the capture.
    void launch_graph(std::uint64_t capture, const order_stream& on, call_site where = call_site::current())
    {
        told([&] { engine_.launch_graph(capture, on, {"graph launch", where}, detail::number_of_thread()); });
    }
    /// As above for an executable graph, which CUDA also orders behind its own previous launch on any stream.
    void launch_graph(order_object runnable, const order_stream& on, call_site where = call_site::current())
    {
        told([&] {
            const std::uint64_t thread = detail::number_of_thread();
            if (const order_point* const last = engine_.find_event({runnable.number})) {
                engine_.wait(on, *last, thread);
            }
            engine_.launch_graph(engine_.capture_of({runnable.number}), on, {"graph launch", where}, thread);
            if (on.capture == 0) engine_.record(engine_.event({runnable.number}), on, thread);
        });
    }
    /// Forgets a capture, which is launched no more.
    void capture_forget(std::uint64_t number)
    {
        told([&] { engine_.capture_forget(number); });
    }
    /// Connects a graph's handle with the capture that made it; 0 is no capture. A capture that had handles, and has no
    /// more, is forgotten.
    void set_capture_of(order_object graph, std::uint64_t number)
    {
        told([&] { engine_.set_capture_of({graph.number}, number); });
    }
    std::uint64_t capture_of(order_object graph)
    {
        const std::lock_guard lock(guard_);
        return engine_.capture_of({graph.number});
    }

private:
    friend class detail::process_checker;

    template <class Work>
    void told(Work work)
    {
        std::vector<stream_hazard> news;
        {
            const std::lock_guard lock(guard_);
            work();
            if (!engine_.reports().has_news()) return;
            news = engine_.reports().take_news();
        }
        // Without the lock, because `on_hazard` may make calls that report here.
        for (const stream_hazard& each : news) settings_.on_hazard(each, settings_.context);
    }

    /// Lives while a thread tells the installed checker something.
    struct counted_call {
        counted_call() noexcept { calls_.fetch_add(1); }
        counted_call(const counted_call&) = delete;
        ~counted_call() { calls_.fetch_sub(1); }
    };
    static inline std::atomic<stream_order*> installed_{nullptr};
    static inline std::atomic<std::uint64_t> calls_{0};
    /// The one that is told where the program has installed none. It never ends.
    static inline std::atomic<stream_order*> of_process_{nullptr};

    options settings_;
    mutable std::mutex guard_;
    detail::order_engine engine_;
};

} // namespace collprobe

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/mutex.hpp>
#include <collprobe/order/detail/engine.hpp>
#include <collprobe/order/hooks.hpp>
#include <collprobe/order/stream.hpp>
#include <collprobe/order/stream_hazard.hpp>

/// A checker of stream order. Not part of `collprobe.hpp`: include it where it is wanted.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The number of the calling thread; no two threads of the process ever have the same.
inline std::uint64_t& number_of_thread() noexcept
{
    static std::atomic<std::uint64_t> last{0};
    static thread_local std::uint64_t own = last.fetch_add(1, std::memory_order_relaxed) + 1;
    return own;
}

} // namespace detail

/// Something outside that has a name of its own: an event's handle, a communicator, a mutex.
struct order_object {
    std::uint64_t number = 0;

    order_object(const void* handle) noexcept : number(reinterpret_cast<std::uintptr_t>(handle)) {}
    explicit order_object(std::uint64_t own_number) noexcept : number(own_number) {}
};

/// Finds two accesses to the same bytes that no documented semantics of CUDA and NCCL orders: at the first execution,
/// whatever the timing, with or without a GPU.
///
///     collprobe::stream_order checker;
///     checker.install();            // from here on the library's own calls tell it (COLLPROBE_STREAM_ORDER=1)
///     train_one_step();             // foreign calls by order/cuda/ordered.hpp; kernels by `launch`
///     for (const auto& hazard : checker.hazards()) std::puts(hazard.message().c_str());
///
/// Guarantee: if every access to some bytes, every allocation and release of them and every ordering call is told, then
/// for each byte the first access that is not ordered behind a conflicting one is reported when it is enqueued. Every
/// report names two such accesses. A later conflict of the same byte may stay hidden: cure the first, and run again.
/// Rules and limits: order/README.md.
/// Threads: any; one lock. The checker waits for no device, and calls none.
/// Cost: tens of nanoseconds a call (bench/stream_order_bench.cpp), and a clock entry for each live stream or thread.
class stream_order {
public:
    /// What happens to a hazard, and how much is remembered.
    struct options {
        /// Called with each new hazard (not again for the same two call sites), by the thread whose call it
        /// is, before the work is enqueued; may throw, so that it never is. `raise` does. Hazards are
        /// collected in any case.
        void (*on_hazard)(const stream_hazard& found, void* context) = nullptr;
        void* context = nullptr;
        /// Whether waits for what is known anyway are counted.
        bool redundant_waits = true;
        /// How many reports are kept; the rest is counted.
        std::size_t most_reports = 256;
        /// How many released ranges are watched for later use.
        std::size_t most_released = 1024;
    };
    using ranges = std::initializer_list<memory_range>;

    /// An `options::on_hazard` that throws `error` `invalid_argument` with the hazard's message.
    static void raise(const stream_hazard& found, void*)
    {
        throw error(status::invalid_argument, found.message(),
            {.call = found.later.operation, .communicator = {}, .where = found.later.where});
    }

    stream_order() : stream_order(options{}) {}
    explicit stream_order(const options& settings)
        : settings_(settings),
          engine_(serial(), settings.most_reports, settings.most_released, settings.redundant_waits)
    {
        if (settings_.on_hazard != nullptr) engine_.news = &news_;
    }
    stream_order(const stream_order&) = delete;
    stream_order& operator=(const stream_order&) = delete;
    ~stream_order() { uninstall(); }

    /// Lets the library's own calls tell this checker, until `uninstall` or its end, which wait until none is
    /// doing so (hence not within `on_hazard`). What was recorded before is not known. \throws error `unsupported` where
    /// COLLPROBE_STREAM_ORDER is 0; `invalid_argument` while another is installed.
    void install(call_site where = call_site::current());
    void uninstall() noexcept;
    bool installed() const noexcept;
    /// Calls `tell_it(stream_order&)` with the one that is installed, if there is one.
    template <class Tell>
    static void tell_installed(const Tell& tell_it);

    // --- What was found ---

    std::vector<stream_hazard> hazards() const
    {
        const detail::lock_guard lock(guard_);
        return engine_.reports().hazards();
    }
    /// Operations that were one side of a hazard, reported or not.
    std::uint64_t hazard_count() const
    {
        const detail::lock_guard lock(guard_);
        return engine_.reports().hazard_count();
    }
    std::vector<stream_hazard> redundant_waits() const
    {
        const detail::lock_guard lock(guard_);
        return engine_.reports().redundant_waits();
    }
    std::uint64_t redundant_wait_count() const
    {
        const detail::lock_guard lock(guard_);
        return engine_.reports().redundant_count();
    }
    /// Forgets what was found, not what is known.
    void clear_reports()
    {
        const detail::lock_guard lock(guard_);
        engine_.reports().clear();
    }
    /// What messages call a stream beside its number.
    void name(const order_stream& stream, std::string text)
    {
        told([&] { engine_.name(stream, std::move(text)); });
    }

    // --- Work ---
    // `what` and the strings of `where` are kept as pointers: literals.

    /// Work on a stream that reads and writes bytes: a copy, a kernel. Ranges may overlap.
    void launch(const order_stream& on, ranges reads, ranges writes, const char* what,
        call_site where = call_site::current())
    {
        told([&] { engine_.launch(on, list(reads), list(writes), {what, where}, detail::number_of_thread()); });
    }
    /// An access of a host thread itself.
    void touch_host(memory_range bytes, memory_access mode, const char* what = "host access",
        call_site where = call_site::current())
    {
        told([&] { engine_.touch_host(bytes, mode, {what, where}, detail::number_of_thread()); });
    }
    /// A collective of one rank. Within a group it is kept until the group ends, unless `deferrable` is
    /// false: a communicator of one rank enqueues at once.
    void collective(const order_stream& on, order_object communicator, ranges reads, ranges writes, const char* what,
        bool deferrable = true, call_site where = call_site::current())
    {
        told([&] {
            engine_.collective(
                on, {communicator.number}, list(reads), list(writes), {what, where}, detail::number_of_thread(), deferrable);
        });
    }
    void group_begin()
    {
        told([&] { engine_.group_begin(detail::number_of_thread()); });
    }
    /// If it was not `enqueued`, because it failed, its collectives are forgotten.
    void group_end(bool enqueued = true)
    {
        told([&] { engine_.group_end(enqueued, detail::number_of_thread()); });
    }

    // --- Order ---

    /// `point` stands for the work that is on the stream now, and for what the enqueuing thread knows.
    void record(order_point& point, const order_stream& on)
    {
        told([&] { engine_.record(point, on, detail::number_of_thread()); });
    }
    /// Work from now on is behind `point`; one that was never recorded is reported.
    void wait(const order_stream& on, const order_point& point, call_site where = call_site::current())
    {
        told([&] {
            if (point.recorded()) engine_.wait(on, point, {"wait", where}, detail::number_of_thread());
            else engine_.wait_unrecorded(on, {"wait", where});
        });
    }
    /// The host thread has seen that `point` was reached: it has waited, or asked with success.
    void reached(const order_point& point)
    {
        told([&] { engine_.reached(point, detail::number_of_thread()); });
    }
    /// The host thread has waited until the stream was done with all that is on it now. (If others enqueue
    /// meanwhile: `record` before, `reached` after.)
    void synchronize(const order_stream& on)
    {
        order_point now;
        told([&] {
            engine_.record(now, on);
            engine_.reached(now, detail::number_of_thread());
        });
    }
    /// The same with all streams of a space (`order_stream::space`).
    void synchronize_space(std::uint32_t space)
    {
        order_point now;
        told([&] {
            engine_.record_space(now, space);
            engine_.reached(now, detail::number_of_thread());
        });
    }
    /// `point` stands for the work that is on all streams of a space now.
    void record_space(order_point& point, std::uint32_t space)
    {
        told([&] { engine_.record_space(point, space); });
    }
    /// Events that are known by a handle.
    void record(order_object event, const order_stream& on)
    {
        told([&] { engine_.record(engine_.event({event.number}), on, detail::number_of_thread()); });
    }
    void wait(const order_stream& on, order_object event, call_site where = call_site::current())
    {
        told([&] {
            if (const order_point* const point = engine_.find_event({event.number})) {
                engine_.wait(on, *point, {"wait", where}, detail::number_of_thread());
            } else {
                engine_.wait_unrecorded(on, {"wait", where});
            }
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
    /// The handle may become another event's.
    void event_ended(order_object event)
    {
        told([&] { engine_.forget_event({event.number}); });
    }
    /// The stream's number may become another stream's.
    void stream_ended(const order_stream& stream)
    {
        told([&] { engine_.stream_ended(stream); });
    }
    /// Order between host threads: who acquires is behind all who have released the same tag before. Call the
    /// one before a mutex is unlocked, the other after it is locked.
    void handoff_release(order_object tag)
    {
        told([&] { engine_.handoff_release({tag.number}, detail::number_of_thread()); });
    }
    void handoff_acquire(order_object tag)
    {
        told([&] { engine_.handoff_acquire({tag.number}, detail::number_of_thread()); });
    }
    /// `point` stands for what a host thread knows now.
    void record_thread(order_point& point)
    {
        told([&] { engine_.record_host(point, detail::number_of_thread()); });
    }
    /// A thread begins behind `parent`, a point of another thread.
    void thread_began(const order_point& parent)
    {
        told([&] { engine_.thread_began(parent, detail::number_of_thread()); });
    }
    /// A thread makes no more calls; `last` is for who joins it, by `reached`.
    void thread_ended(order_point& last)
    {
        told([&] { engine_.thread_ended(last, detail::number_of_thread()); });
    }

    // --- Lifetimes and generations ---

    /// The bytes are new: nothing is known of them.
    void allocate(memory_range bytes)
    {
        told([&] { engine_.allocate(bytes); });
    }
    /// The same in the order of a stream (cudaMallocAsync): uses must be ordered behind it.
    void allocate(memory_range bytes, const order_stream& on, call_site where = call_site::current())
    {
        told([&] { engine_.allocate_on(on, bytes, {"allocation", where}, detail::number_of_thread()); });
    }
    /// The host frees the bytes: the calling thread must know all accesses to be done. Later ones are reported
    /// until the bytes are allocated again, unless `watch` is false: for memory that other allocators share.
    void release(memory_range bytes, bool watch = true, call_site where = call_site::current())
    {
        told([&] { engine_.release(bytes, watch, {"release", where}, detail::number_of_thread()); });
    }
    /// The same in the order of a stream (cudaFreeAsync).
    void release(memory_range bytes, const order_stream& on, call_site where = call_site::current())
    {
        told([&] { engine_.release_on(on, bytes, {"release", where}, detail::number_of_thread()); });
    }
    /// The size of what was last allocated at this address; 0 if that was not told, or is released.
    std::uint64_t allocated_bytes(const void* memory) const
    {
        const detail::lock_guard lock(guard_);
        return engine_.allocated_bytes(memory);
    }
    /// What was last written there is of this generation; until the next write. Untagged bytes are of
    /// generation 0.
    void tag(memory_range bytes, std::uint64_t generation)
    {
        told([&] { engine_.tag(bytes, generation); });
    }
    /// Reports bytes that are older.
    void require_generation(memory_range bytes, std::uint64_t at_least, const char* what = "require_generation",
        call_site where = call_site::current())
    {
        told([&] { engine_.require_generation(bytes, at_least, {what, where}, detail::number_of_thread()); });
    }

    // --- Captures ---
    // A call whose `order_stream::capture` is not 0 is part of that capture: checked against the rest of it, and
    // launched with it.

    /// Needed only for what others touch between the beginning and the first captured call.
    void capture_begin(std::uint64_t number)
    {
        told([&] { engine_.capture_begin(number); });
    }
    void capture_end(std::uint64_t number)
    {
        told([&] { engine_.capture_end(number); });
    }
    /// A launch of what a capture holds: one operation that reads and writes all its bytes.
    void launch_graph(std::uint64_t capture, const order_stream& on, call_site where = call_site::current())
    {
        told([&] { engine_.launch_graph(capture, on, {"graph launch", where}, detail::number_of_thread()); });
    }
    /// The same of an executable graph, which CUDA also puts behind its own last launch, on whatever stream.
    void launch_graph(order_object runnable, const order_stream& on, call_site where = call_site::current())
    {
        told([&] {
            if (const order_point* const last = engine_.find_event({runnable.number})) engine_.follow(on, *last);
            engine_.launch_graph(engine_.capture_of({runnable.number}), on, {"graph launch", where}, detail::number_of_thread());
            engine_.record(engine_.event({runnable.number}), on);
        });
    }
    /// No more launches of it.
    void capture_forget(std::uint64_t number)
    {
        told([&] { engine_.capture_forget(number); });
    }
    /// Handles of graphs that came of a capture; 0 is none.
    void set_capture_of(order_object graph, std::uint64_t number)
    {
        told([&] { engine_.capture_of({graph.number}) = number; });
    }
    std::uint64_t capture_of(order_object graph)
    {
        const detail::lock_guard lock(guard_);
        return engine_.capture_of({graph.number});
    }

private:
    static std::uint64_t serial() noexcept
    {
        static std::atomic<std::uint64_t> last{0};
        return last.fetch_add(1, std::memory_order_relaxed) + 1;
    }
    static detail::memory_ranges list(ranges from) noexcept { return {from.begin(), from.size()}; }

    template <class Work>
    void told(Work work)
    {
        std::vector<stream_hazard> news;
        {
            const detail::lock_guard lock(guard_);
            work();
            if (news_.empty()) return;
            std::swap(news, news_);
        }
        // Without the lock: it may make calls that are told here.
        for (const stream_hazard& each : news) settings_.on_hazard(each, settings_.context);
    }

    options settings_;
    mutable detail::mutex guard_;
    detail::order_engine engine_;
    std::vector<stream_hazard> news_;
};

#if !COLLPROBE_STREAM_ORDER
inline void stream_order::install(call_site where)
{
    throw error(status::unsupported,
        "this translation unit is compiled with COLLPROBE_STREAM_ORDER=0, so the library's calls tell nobody",
        {.call = "stream_order::install", .communicator = {}, .where = where});
}
inline void stream_order::uninstall() noexcept {}
inline bool stream_order::installed() const noexcept { return false; }
template <class Tell>
void stream_order::tell_installed(const Tell&)
{
}
#endif

} // namespace collprobe

#if COLLPROBE_STREAM_ORDER
#include <collprobe/order/detail/engine_sink.hpp>
#endif

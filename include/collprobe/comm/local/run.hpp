// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/thread.hpp>
#include <collprobe/order/hooks.hpp>

namespace collprobe::inline COLLPROBE_ABI::local {

namespace detail {

/// Runs `fn(communicator&)` for each rank of `all` on a thread of its own, after `enter(rank)`; see `run`.
template <class Communicator>
void run_ranks(const basic_group<Communicator>& all, collprobe::detail::function_ref<void(int)> enter,
    collprobe::detail::function_ref<void(Communicator&)> fn)
{
    std::atomic<int> failures{0};
    struct failure {
        int number = -1;
        bool consequence = false;
        std::exception_ptr cause;
        [[no_unique_address]] order_hooks::point end; ///< of the rank's thread
    };
    std::vector<failure> failed(static_cast<std::size_t>(all.size()));

    const auto body = [&, begin = order_hooks::thread_now()](int rank) noexcept {
        failure& own = failed[static_cast<std::size_t>(rank)];
        const order_hooks::thread_calls here(begin, own.end);
        try {
            enter(rank);
            Communicator comm = all.communicator(rank);
            fn(comm);
            return;
        } catch (const error& known) {
            own.consequence = known.code() == status::peer_failure;
            own.cause = std::current_exception();
        } catch (...) {
            own.cause = std::current_exception();
        }
        own.number = failures.fetch_add(1, std::memory_order_relaxed);
        all.fail(rank, own.cause);
    };
    {
        std::vector<collprobe::detail::thread> threads;
        threads.reserve(static_cast<std::size_t>(all.size()));
        try {
            for (int rank = 0; rank < all.size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
        } catch (...) {
            // The ranks that run already would wait for ranks that never start.
            all.fail(static_cast<int>(threads.size()), std::current_exception());
            for (collprobe::detail::thread& thread : threads) thread.join();
            for (const failure& each : failed) order_hooks::reached(each.end);
            throw;
        }
    }
    const failure* first = nullptr;
    for (const failure& each : failed) {
        order_hooks::reached(each.end);
        if (!each.cause) continue;
        const bool better = first == nullptr || (first->consequence && !each.consequence)
            || (first->consequence == each.consequence && each.number < first->number);
        if (better) first = &each;
    }
    if (first != nullptr) std::rethrow_exception(first->cause);
}

} // namespace detail

/// Runs `fn(communicator&)` once for each of `ranks` ranks, each on a thread of its own, and returns when all are
/// done. The threads share `fn`. If one of them throws, the group and all communicators that were split from it fail,
/// so that no other rank waits for the rank. Then `run` rethrows the first cause: the original exception, not an
/// error that a peer got as a consequence.
/// Precondition: streams that `fn` owns are destroyed before the buffers that their work uses, also when it throws:
/// declare the streams after the buffers.
/// \throws error as `group` does; the exceptions of `fn`.
template <class Fn>
void run(int ranks, const options& settings, Fn&& fn, call_site where = call_site::current())
{
    detail::run_ranks<communicator>(group(ranks, settings, where), [](int) {}, [&fn](communicator& comm) { fn(comm); });
}

/// The same with default options.
template <class Fn>
    requires(!std::is_convertible_v<Fn, options>)
void run(int ranks, Fn&& fn, call_site where = call_site::current())
{
    run(ranks, options{}, std::forward<Fn>(fn), where);
}

} // namespace collprobe::local

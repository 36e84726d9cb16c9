// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/overlap.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/order/hooks.hpp>
#include <collprobe/reduce/contract.hpp>
#include <collprobe/reduce/detail/exchange.hpp>
#include <collprobe/reduce/detail/fixed_point.hpp>
#include <collprobe/reduce/reduction_outcome.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The memory and the algorithm of a `reproducible` communicator. Equal on all ranks.
struct reproducible_options {
    /// Device memory for terms in transit. Larger buffers are reduced in pieces. With one leaf a piece takes a quarter
    /// of this memory, on the host half, and each of its messages carries 1/n of it. 0: 256 KiB a rank, but at least
    /// 16 MiB.
    std::uint64_t scratch_bytes = 0;
    /// The algorithm of sums under a contract. Without a contract (`unspecified`) all sums are `native`.
    reduction_algorithm algorithm = reduction_algorithm::automatic;
    /// `automatic` uses `one_shot` if all terms of a call together have at most this many bytes.
    std::uint64_t one_shot_bytes = 64 << 10;
};

/// A communicator whose floating-point sums and averages keep a contract. It satisfies the communicator concept and
/// forwards everything else: integer reductions (which are exact), min and max, and data movement.
/// One rank adds all terms of an element, in the order of the ranks and their leaves, in the contract's accumulator. It
/// divides the sum (average) and rounds it to the element type. Non-finite terms follow IEEE 754 for each addition; at
/// `order_invariant` and above they follow `exact_sum`. README.md describes the algorithms.
/// Preconditions: one thread at a time. Captured calls share the object's memory: while a call is captured there is no
/// other call of the object, and a graph must not run at the same time as another call or graph of the object.
/// Stream behaviour: enqueued on the call's stream and on a stream of this object, for which the call's stream waits.
/// The host neither waits nor allocates. Calls may be captured.
/// Errors: those of the wrapped communicator; `invalid_argument` for buffers or scratch memory of a wrong size;
/// `unsupported` for a request that the contract does not cover (such as a product of floating-point numbers), and
/// inside an NCCL group.
/// Cost: for S bytes of buffer, messages of 2 S (n-1)/n bytes a rank, (leaves + 1) S (n-1)/n with leaves; for small
/// buffers leaves * S (n-1). Each rank reads its part of n * leaves terms once and writes it once.
template <communicator Comm, class Contract = contract<reproducibility::size_invariant>>
class reproducible : public adaptor<reproducible<Comm, Contract>, Comm> {
    using base_type = adaptor<reproducible, Comm>;
    using base_type::comm_;

public:
    using typename base_type::device;
    using typename base_type::stream_ref;
    using base_type::rank;
    using base_type::size;

    /// Whether sums of T can keep the contract; integers are always exact.
    template <element T>
    static constexpr bool contract_holds_for = [] {
        if constexpr (floating_element<T>) return Contract::template possible<T>;
        else return true;
    }();
    template <element T>
    static constexpr bool reduces = contract_holds_for<T> && base_type::template reduces<T>;

    /// Takes ownership of the communicator and allocates the scratch memory.
    /// \throws error `invalid_argument` if `scratch_bytes` is too small for one leaf of each rank; `unsupported` for
    ///   the algorithm `native` with a contract, because `native` keeps none.
    explicit reproducible(Comm comm, Contract = {}, reproducible_options options = {},
        call_site where = call_site::current())
        : base_type(std::move(comm)), options_(options)
    {
        if (options_.scratch_bytes == 0) options_.scratch_bytes = default_scratch_bytes();
        const caller who(comm_, "reproducible", where);
        if (Contract::level != reproducibility::unspecified && options_.algorithm == reduction_algorithm::native) {
            who.fail(status::unsupported,
                std::string("the algorithm native is what the communicator does: it does not keep the contract ")
                    + name(Contract::level));
        }
        if (options_.scratch_bytes < least_memory(1)) who.fail(status::invalid_argument, too_little_memory(1));
        const auto scope = comm_.device_scope();
        memory_ = detail::in_flight<detail::exchange_memory<device>>(base_type::timeout_ms(), options_.scratch_bytes);
    }
    /// Legal while calls are under way. A moved-from object can only be destroyed or assigned to.
    reproducible(reproducible&&) = default;
    reproducible& operator=(reproducible&& other) noexcept { return detail::replace(*this, std::move(other)); }
    /// Waits until no work uses the scratch memory, at most the communicator's time-out; after that it is leaked.
    /// Graphs of captured calls must not be launched any more.
    ~reproducible() = default;

    /// `all_reduce`: element i of every rank's `receive` becomes the sum or average of element i of all leaves of all
    /// ranks. Shapes: `send.count() == leaves * receive.count()`; `receive` is the first leaf or disjoint from `send`.
    /// `reduce_scatter`: rank r's `receive` becomes part r of that. The algorithm is `exchange`. Shapes:
    /// `send.count() == leaves * size() * receive.count()`; `receive` is part r of the first leaf or disjoint from
    /// `send`. Other calls have an empty outcome.
    template <element T>
    reduction_outcome make(const collective_call& call, stream_ref stream)
    {
        if constexpr (floating_element<T> && contract_holds_for<T>) {
            if (is_ours(call)) return reduce<T>(call, stream);
        }
        if (call.leaves != 1) {
            caller(comm_, call.what, call.where)
                .fail(status::unsupported, "leaves come with sums and averages under a contract only");
        }
        comm_.template make<T>(call, stream);
        return call.reduces() ? forwarded<T>(call) : reduction_outcome();
    }

private:
    using caller = detail::caller<Comm>;

    std::uint64_t ranks() const noexcept { return static_cast<std::uint64_t>(comm_.size()); }

    /// Whether this object computes the call, as it does sums and averages of floating-point numbers. Refuses products.
    bool is_ours(const collective_call& call) const
    {
        if (Contract::level == reproducibility::unspecified || !call.reduces()) return false;
        if (call.operation == reduction::product) {
            caller(comm_, call.what, call.where)
                .fail(status::unsupported,
                    "a product of floating-point numbers depends on its order: there is no contract for it");
        }
        return call.operation == reduction::sum || call.operation == reduction::average;
    }

    template <element T>
    reduction_outcome forwarded(const collective_call& call) const noexcept
    {
        const bool exact = !floating_element<T> || call.operation == reduction::min || call.operation == reduction::max;
        const std::uint64_t combined = ranks() - 1;
        const bool scaled = call.operation == reduction::average && combined != 0;
        const std::uint64_t passes = call.what == collective::all_reduce ? 2 : 1;
        return {.level = exact ? reproducibility::correctly_rounded : reproducibility::unspecified,
            .algorithm = reduction_algorithm::native,
            .in = accumulation::native,
            .terms = ranks(),
            .roundings_per_element = exact ? 0 : combined + (scaled ? ranks() : 0),
            .bytes_sent = passes * call.send_count * sizeof(T) / ranks() * combined,
            .collectives = 1};
    }

    template <floating_element T>
    reduction_outcome reduce(const collective_call& call, stream_ref stream)
    {
        constexpr accumulation in = Contract::template accumulator<T>;
        const view<const T> send = call.sent<T>();
        const view<T> receive = call.received<T>();
        check_arguments(call, send, receive, stream);
        order_hooks::access(stream, name(call.what), send, receive, call.where);
        const order_hooks::silent inner_work;
        const bool scatters = call.what == collective::reduce_scatter;
        const std::uint64_t leaf_count = receive.count() * (scatters ? ranks() : 1);
        const std::uint64_t leaves = call.leaves;
        const std::uint64_t terms = ranks() * leaves;
        const auto divisor = static_cast<std::uint32_t>(call.operation == reduction::average ? terms : 1);
        const reduction_algorithm how = choose(call, send.size_bytes());
        const auto scope = comm_.device_scope();
        detail::exchange_memory<device>& memory = *memory_;
        typename device::event& done = memory_->use.wait_for_last(stream, call.where);
        reduction_outcome outcome{.level = detail::strongest<T>(in, terms), .algorithm = how, .in = in, .terms = terms,
            .roundings_per_element = in == accumulation::native ? terms - 1 + (divisor != 1) : 1};

        detail::enqueue_marked(done, stream, [&, this] {
            if constexpr (keeps_fixed_point) {
                if (how == reduction_algorithm::fixed_point) {
                    using fixed = detail::fixed_point<T, Comm>;
                    fixed::all_reduce(comm_, memory, send.data(), leaf_count, leaves, divisor, receive,
                        stream, call.where);
                    outcome.level = reproducibility::order_invariant;
                    outcome.in = accumulation::exact;
                    outcome.roundings_per_element = 1;
                    outcome.collectives = 2 * fixed::pieces(memory, leaf_count);
                    outcome.bytes_sent = 2 * fixed::element_bytes * leaf_count / ranks() * (ranks() - 1);
                    return;
                }
            }
            detail::term_exchange<in, T, Comm> work(comm_, memory,
                {send.data(), leaf_count, leaves, divisor, receive, scatters},
                stream, call.where);
            const detail::exchange_traffic sent
                = how == reduction_algorithm::one_shot ? work.run_at_once() : work.run();
            outcome.bytes_sent = sent.bytes;
            outcome.collectives = sent.collectives;
        });
        return outcome;
    }

    reduction_algorithm choose(const collective_call& call, std::uint64_t bytes) const
    {
        using enum reduction_algorithm;
        if (call.what == collective::reduce_scatter) return exchange;
        if (options_.algorithm != automatic) return options_.algorithm;
        // With 2 ranks `one_shot` sends no more for larger buffers either, but `exchange` halves the additions.
        return ranks() == 1 || bytes <= options_.one_shot_bytes / ranks() ? one_shot : exchange;
    }

    static constexpr bool keeps_fixed_point = Contract::level <= reproducibility::order_invariant;

    template <floating_element T>
    void check_arguments(const collective_call& call, view<const T> send, view<T> receive, stream_ref stream)
    {
        const caller who(comm_, call.what, call.where);
        const std::uint64_t leaves = call.leaves;
        const auto refuse = [&](const std::string& message, status code = status::invalid_argument) {
            who.fail(code, message);
        };
        who.require_immediate();
        if (leaves == 0) refuse("leaves must be at least 1");
        if (leaves > 0xffffffff / ranks()) {
            refuse("leaves is " + std::to_string(leaves) + ": with " + std::to_string(ranks())
                + " ranks that is more than 2^32 - 1 terms");
        }
        check_argument(send, "send", call, stream, who);
        check_argument(receive, "receive", call, stream, who);
        const bool scatters = call.what == collective::reduce_scatter;
        const std::uint64_t runs = leaves * (scatters ? ranks() : 1); // number of runs of receive's length in send
        if (send.count() % runs != 0 || send.count() / runs != receive.count()) {
            refuse("send has " + std::to_string(send.count()) + " elements, " + std::to_string(leaves)
                + " leaves for receive's " + std::to_string(receive.count()) + " need "
                + std::to_string(runs) + " times as many as receive");
        }
        const std::uint64_t own = scatters ? static_cast<std::uint64_t>(comm_.rank()) * receive.count() : 0;
        if (detail::overlap(send, receive) && receive.data() != send.data() + own)
            refuse(detail::flaw_of_place("receive", receive.data(), "send", send.data(), own, sizeof(T)));
        const std::uint64_t terms = ranks() * leaves;
        constexpr accumulation in = Contract::template accumulator<T>;
        if (detail::strongest<T>(in, terms) < Contract::level) {
            refuse(std::string(name(in)) + " keeps " + name(Contract::level) + " for up to "
                    + std::to_string(detail::exact_terms_in_float64<T>) + " terms of " + element_traits<T>::name
                    + ", and there are " + std::to_string(terms),
                status::unsupported);
        }
        if (options_.algorithm == reduction_algorithm::fixed_point) {
            if (!keeps_fixed_point) {
                refuse("fixed_point rounds each term: it does not keep correctly_rounded", status::unsupported);
            }
            if (scatters) refuse("fixed_point is an algorithm of all_reduce", status::unsupported);
            if (terms > detail::max_fixed_point_terms) {
                refuse("fixed_point adds at most 2^20 - 1 terms", status::unsupported);
            }
        }
        if (options_.scratch_bytes < least_memory(leaves)) refuse(too_little_memory(leaves));
    }

    template <class T>
    void check_argument(
        view<T> buffer, const char* argument, const collective_call& call, stream_ref stream, const caller& who)
    {
        comm_.check_buffer(buffer, argument, call.what, stream, call.where);
        who.require_readable(buffer, argument);
    }

    std::uint64_t default_scratch_bytes() const noexcept
    {
        const std::uint64_t by_ranks = ranks() * (256 << 10);
        return by_ranks > 16 << 20 ? by_ranks : 16 << 20;
    }
    std::uint64_t least_memory(std::uint64_t leaves) const noexcept
    {
        return detail::term_exchange<accumulation::exact, double, Comm>::least_memory(ranks(), leaves);
    }
    std::string too_little_memory(std::uint64_t leaves) const
    {
        return "scratch_bytes is " + std::to_string(options_.scratch_bytes) + ": " + std::to_string(ranks())
            + " ranks with " + std::to_string(leaves) + " leaves need " + std::to_string(least_memory(leaves));
    }

    reproducible_options options_;
    detail::in_flight<detail::exchange_memory<device>> memory_;
};

template <class Comm>
reproducible(Comm) -> reproducible<Comm>;
template <class Comm, class Contract>
reproducible(Comm, Contract) -> reproducible<Comm, Contract>;
template <class Comm, class Contract>
reproducible(Comm, Contract, reproducible_options) -> reproducible<Comm, Contract>;

} // namespace collprobe

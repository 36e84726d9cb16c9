// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/comm/adaptor.hpp>
#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/collective_arguments.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/overlap.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/order/hooks.hpp>
#include <collprobe/reduce/contract.hpp>
#include <collprobe/reduce/detail/exchange.hpp>
#include <collprobe/reduce/detail/fixed_point.hpp>

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
class reproducible : public adaptor<Comm> {
    using base_type = adaptor<Comm>;
    using base_type::comm_;

public:
    using typename base_type::device;
    using typename base_type::stream_ref;
    using base_type::rank;
    using base_type::size;

    /// Whether sums of T can keep the contract; integers are always exact.
    template <element T>
    static constexpr bool contract_holds_for = [] {
        if constexpr (floating_element<T>) {
            return Contract::template possible<T> && has_all_to_all<Comm, T> && has_all_gather<Comm, T>;
        } else {
            return true;
        }
    }();

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
        const auto scope = detail::enter_device(comm_);
        memory_ = detail::in_flight<detail::exchange_memory<device>>(base_type::timeout_ms(), options_.scratch_bytes);
    }
    /// Legal while calls are under way. A moved-from object can only be destroyed or assigned to.
    reproducible(reproducible&&) = default;
    reproducible& operator=(reproducible&& other) noexcept { return detail::replace(*this, std::move(other)); }
    /// Waits until no work uses the scratch memory, at most the communicator's time-out; after that it is leaked.
    /// Graphs of captured calls must not be launched any more.
    ~reproducible() = default;

    /// Element i of every rank's `receive` becomes the sum or average of element i of all leaves of all ranks.
    /// Shapes: `send.count() == leaves * receive.count()`; `receive` is the first leaf or disjoint from `send`.
    template <element T>
        requires(has_all_reduce<Comm, T> && contract_holds_for<T>)
    reduction_outcome all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, const reduction_extras& extras, call_site where = call_site::current())
    {
        const job<collective::all_reduce, T> what{send, receive, operation, receive.count(), extras, where};
        if constexpr (floating_element<T>) {
            if (is_ours(what)) return reduce(what, stream);
        }
        require_plain(what);
        comm_.all_reduce(send, receive, operation, stream, where);
        return forwarded(what, 2 * send.size_bytes());
    }
    template <element T>
        requires(has_all_reduce<Comm, T> && contract_holds_for<T>)
    reduction_outcome all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, call_site where = call_site::current())
    {
        return all_reduce(send, receive, operation, stream, reduction_extras{}, where);
    }

    /// Rank r's `receive` becomes part r of the sum or average of all leaves of all ranks. The algorithm is `exchange`.
    /// Shapes: `send.count() == leaves * size() * receive.count()`; `receive` is part r of the first leaf or
    /// disjoint from `send`.
    template <element T>
        requires(has_reduce_scatter<Comm, T> && contract_holds_for<T>)
    reduction_outcome reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive,
        reduction operation, stream_ref stream, const reduction_extras& extras,
        call_site where = call_site::current())
    {
        const job<collective::reduce_scatter, T> what{
            send, receive, operation, receive.count() * ranks(), extras, where};
        if constexpr (floating_element<T>) {
            if (is_ours(what)) return reduce(what, stream);
        }
        require_plain(what);
        comm_.reduce_scatter(send, receive, operation, stream, where);
        return forwarded(what, send.size_bytes());
    }
    template <element T>
        requires(has_reduce_scatter<Comm, T> && contract_holds_for<T>)
    reduction_outcome reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive,
        reduction operation, stream_ref stream, call_site where = call_site::current())
    {
        return reduce_scatter(send, receive, operation, stream, reduction_extras{}, where);
    }

private:
    using caller = detail::caller<Comm>;

    template <collective Call, element T>
    struct job {
        static constexpr collective call = Call;
        view<const T> send;
        view<T> receive;
        reduction operation;
        std::uint64_t leaf_count; ///< elements in one leaf
        reduction_extras extras;
        call_site where;
    };

    std::uint64_t ranks() const noexcept { return static_cast<std::uint64_t>(comm_.size()); }

    /// Whether this object computes the reduction, as it does for sums and averages. Refuses products of floating-point
    /// numbers.
    template <collective Call, floating_element T>
    bool is_ours(const job<Call, T>& what) const
    {
        if (Contract::level == reproducibility::unspecified) return false;
        if (what.operation == reduction::product) {
            caller(comm_, what.call, what.where)
                .fail(status::unsupported,
                    "a product of floating-point numbers depends on its order: there is no contract for it");
        }
        return what.operation == reduction::sum || what.operation == reduction::average;
    }

    template <collective Call, element T>
    void require_plain(const job<Call, T>& what) const
    {
        if (what.extras.leaves == 1) return;
        caller(comm_, what.call, what.where)
            .fail(status::unsupported, "leaves come with sums and averages under a contract only");
    }

    template <collective Call, element T>
    reduction_outcome forwarded(const job<Call, T>& what, std::uint64_t ring_bytes) const noexcept
    {
        const bool exact = !floating_element<T> || what.operation == reduction::min || what.operation == reduction::max;
        const std::uint64_t combined = ranks() - 1;
        const bool scaled = what.operation == reduction::average && combined != 0;
        return {.level = exact ? reproducibility::correctly_rounded : reproducibility::unspecified,
            .algorithm = reduction_algorithm::native,
            .in = accumulation::native,
            .terms = ranks(),
            .roundings_per_element = exact ? 0 : combined + (scaled ? ranks() : 0),
            .bytes_sent = ring_bytes / ranks() * combined,
            .collectives = 1};
    }

    template <collective Call, floating_element T>
    reduction_outcome reduce(const job<Call, T>& what, stream_ref stream)
    {
        constexpr accumulation in = Contract::template accumulator<T>;
        check_arguments(what, stream);
        order_hooks::access(stream, name(Call), what.send, what.receive, what.where);
        const order_hooks::silent inner_work;
        const std::uint64_t leaves = what.extras.leaves;
        const std::uint64_t terms = ranks() * leaves;
        const auto divisor = static_cast<std::uint32_t>(what.operation == reduction::average ? terms : 1);
        const reduction_algorithm how = choose(what);
        const auto scope = detail::enter_device(comm_);
        detail::exchange_memory<device>& memory = *memory_;
        typename device::event& done = memory_->use.wait_for_last(stream, what.where);
        reduction_outcome outcome{.level = detail::strongest<T>(in, terms), .algorithm = how, .in = in, .terms = terms,
            .roundings_per_element = in == accumulation::native ? terms - 1 + (divisor != 1) : 1};

        const detail::parts_of_one<Comm> parts(comm_, what.send.count(), element_traits<T>::type);
        detail::enqueue_marked(done, stream, [&, this] {
            if constexpr (Call == collective::all_reduce && has_fixed_point<T>) {
                if (how == reduction_algorithm::fixed_point) {
                    using fixed = detail::fixed_point<T, Comm>;
                    fixed::all_reduce(comm_, memory, what.send.data(), what.leaf_count, leaves, divisor, what.receive,
                        stream, what.where);
                    outcome.level = reproducibility::order_invariant;
                    outcome.in = accumulation::exact;
                    outcome.roundings_per_element = 1;
                    outcome.collectives = 2 * fixed::pieces(memory, what.leaf_count);
                    outcome.bytes_sent = 2 * fixed::element_bytes * what.leaf_count / ranks() * (ranks() - 1);
                    return;
                }
            }
            detail::term_exchange<in, T, Comm> work(comm_, memory,
                {what.send.data(), what.leaf_count, leaves, divisor, what.receive, Call == collective::reduce_scatter},
                stream, what.where);
            const detail::exchange_traffic sent
                = how == reduction_algorithm::one_shot ? work.run_at_once() : work.run();
            outcome.bytes_sent = sent.bytes;
            outcome.collectives = sent.collectives;
        });
        return outcome;
    }

    template <collective Call, floating_element T>
    reduction_algorithm choose(const job<Call, T>& what) const
    {
        using enum reduction_algorithm;
        if constexpr (Call == collective::reduce_scatter) return exchange;
        if (options_.algorithm != automatic) return options_.algorithm;
        // With 2 ranks `one_shot` sends no more for larger buffers either, but `exchange` halves the additions.
        return ranks() == 1 || what.send.size_bytes() <= options_.one_shot_bytes / ranks() ? one_shot : exchange;
    }

    /// Whether the communicator adds the integers that fixed point needs, and fixed point keeps the contract.
    template <floating_element T>
    static constexpr bool has_fixed_point = Contract::level <= reproducibility::order_invariant
        && has_all_reduce<Comm, std::int64_t> && has_all_reduce<Comm, detail::exponent_code<T>>;

    template <collective Call, floating_element T>
    void check_arguments(const job<Call, T>& what, stream_ref stream)
    {
        const caller who(comm_, what.call, what.where);
        const std::uint64_t leaves = what.extras.leaves;
        // An unsupported request fails on all ranks. Other errors may be on one rank, while its peers wait.
        const auto refuse = [&](const std::string& message, status code = status::invalid_argument) {
            if (code == status::unsupported) who.fail(code, message);
            who.refuse(what.call, stream, message, code);
        };
        who.require_immediate();
        if (leaves == 0) refuse("leaves must be at least 1");
        if (leaves > 0xffffffff / ranks()) {
            refuse("leaves is " + std::to_string(leaves) + ": with " + std::to_string(ranks())
                + " ranks that is more than 2^32 - 1 terms");
        }
        check_argument(what.send, "send", what, stream, who);
        check_argument(what.receive, "receive", what, stream, who);
        constexpr bool scatters = Call == collective::reduce_scatter;
        const std::uint64_t runs = leaves * (scatters ? ranks() : 1); // number of runs of receive's length in send
        if (what.send.count() % runs != 0 || what.send.count() / runs != what.receive.count()) {
            refuse("send has " + std::to_string(what.send.count()) + " elements, " + std::to_string(leaves)
                + " leaves for receive's " + std::to_string(what.receive.count()) + " need "
                + std::to_string(runs) + " times as many as receive");
        }
        const std::uint64_t own = scatters ? static_cast<std::uint64_t>(comm_.rank()) * what.receive.count() : 0;
        if (detail::overlap(what.send, what.receive) && what.receive.data() != what.send.data() + own)
            refuse(detail::flaw_of_place("receive", what.receive.data(), "send", what.send.data(), own, sizeof(T)));
        const std::uint64_t terms = ranks() * leaves;
        constexpr accumulation in = Contract::template accumulator<T>;
        if (detail::strongest<T>(in, terms) < Contract::level) {
            refuse(std::string(name(in)) + " keeps " + name(Contract::level) + " for up to "
                    + std::to_string(detail::exact_terms_in_float64<T>) + " terms of " + element_traits<T>::name
                    + ", and there are " + std::to_string(terms),
                status::unsupported);
        }
        if (options_.algorithm == reduction_algorithm::fixed_point) {
            if (Contract::level > reproducibility::order_invariant) {
                refuse("fixed_point rounds each term: it does not keep correctly_rounded", status::unsupported);
            }
            if (scatters) refuse("fixed_point is an algorithm of all_reduce", status::unsupported);
            if (!has_fixed_point<T>) {
                refuse("fixed_point needs a communicator that adds integers", status::unsupported);
            }
            if (terms > detail::max_fixed_point_terms) {
                refuse("fixed_point adds at most 2^20 - 1 terms", status::unsupported);
            }
        }
        if (options_.scratch_bytes < least_memory(leaves)) refuse(too_little_memory(leaves));
    }

    /// Lets the wrapped communicator refuse a bad buffer, because it can notify the peers. If it does not refuse, this
    /// object does.
    template <collective Call, floating_element T, class View>
    void check_argument(
        View buffer, const char* argument, const job<Call, T>& what, stream_ref stream, const caller& who)
    {
        detail::check_buffer(comm_, buffer, argument, what.call, stream, what.where);
        if (buffer.readable()) return;
        if constexpr (Call == collective::all_reduce) {
            comm_.all_reduce(what.send, what.receive, what.operation, stream, what.where);
        } else {
            comm_.reduce_scatter(what.send, what.receive, what.operation, stream, what.where);
        }
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

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/detail/names.hpp>
#include <collprobe/detail/overlap.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The calls of a communicator in which all ranks take part. (`barrier` and `split` move no data, so a probed call
/// never is one of them.)
enum class collective : std::uint8_t {
    all_reduce,
    reduce_scatter,
    all_gather,
    all_to_all,
    broadcast,
    barrier,
    split,
};

template <>
inline constexpr auto names_of<collective> = name_list<collective::split>{"all_reduce", "reduce_scatter",
    "all_gather", "all_to_all", "broadcast", "barrier", "split"};

/// The function that a reduction computes of the n values of an element. `average` is the sum over n, as NCCL defines
/// it. For integers it is the sum, then a truncating division; for floating point each value times 1/n, then the sum.
enum class reduction : std::uint8_t { sum, average, min, max, product };

template <>
inline constexpr auto names_of<reduction> = name_list<reduction::product>{"sum", "average", "min", "max", "product"};

/// The reduction of another library's type, such as `ncclRedOp_t`. A specialisation has `of(Foreign)`. A value without
/// a reduction becomes one above `product`, which every call refuses.
template <class Foreign>
struct foreign_reduction {};

/// The argument of a call: a reduction, or that of another library.
class reduction_argument {
public:
    constexpr reduction_argument(reduction operation) noexcept : operation_(operation) {}
    template <class Foreign>
        requires requires(Foreign operation) { foreign_reduction<Foreign>::of(operation); }
    constexpr reduction_argument(Foreign operation) noexcept : operation_(foreign_reduction<Foreign>::of(operation))
    {
    }
    constexpr operator reduction() const noexcept { return operation_; }

private:
    reduction operation_;
};

/// The color of a rank that joins no part of a `split`.
inline constexpr int no_color = -1;

/// The optional arguments of a single reduction, beside its buffers.
struct reduction_extras {
    /// The number of leaves (micro-batch gradients) that each rank sends: `send` has them one after the other. A sum
    /// is over all leaves of all ranks; an average divides by their number. From `size_invariant` on, if the leaves
    /// are equal and dealt out in equal runs, the result's bits do not depend on the number of ranks.
    std::uint64_t leaves = 1;
};

/// One rank's call of a collective. Counts are elements; the type of the memory is a value here.
struct collective_call {
    collective what = collective::barrier;
    element_type type = element_type::uint8;
    reduction operation = reduction::sum;
    int root = -1;
    const void* send = nullptr;
    std::uint64_t send_count = 0;
    void* receive = nullptr;
    std::uint64_t receive_count = 0;
    call_site where{};
    std::uint64_t leaves = 1; ///< `reduction_extras::leaves`

    /// The buffers. T is the type that `type` names.
    template <class T>
    view<const T> sent() const noexcept
    {
        return {static_cast<const T*>(send), send_count};
    }
    template <class T>
    view<T> received() const noexcept
    {
        return {static_cast<T*>(receive), receive_count};
    }
    std::uint64_t element_bytes() const noexcept { return static_cast<std::uint64_t>(bytes_of(type)); }
    bool reduces() const noexcept { return what == collective::all_reduce || what == collective::reduce_scatter; }
    /// Whether the rank's `send` is read.
    bool sends(int rank) const noexcept { return what != collective::broadcast || rank == root; }
    view<const unsigned char> bytes_sent(int rank) const noexcept
    {
        return {static_cast<const unsigned char*>(send), sends(rank) ? send_count * element_bytes() : 0};
    }
    view<const unsigned char> bytes_received() const noexcept
    {
        return {static_cast<const unsigned char*>(receive), receive_count * element_bytes()};
    }
};

namespace detail {

/// The buffers of a collective that hold a part for each rank.
struct collective_shape {
    bool send_has_parts;
    bool receive_has_parts;
    const char* rule; ///< the shape in words, for messages
};
constexpr collective_shape shape_of(collective call) noexcept
{
    switch (call) {
    case collective::reduce_scatter: return {true, false, "size() times as many to send as to receive"};
    case collective::all_gather: return {false, true, "size() times as many to receive as to send"};
    case collective::all_to_all: return {true, true, "equal counts that are a multiple of size()"};
    case collective::all_reduce:
    case collective::broadcast:
    case collective::barrier:
    case collective::split: break;
    }
    return {false, false, "equal counts"};
}

/// The count on which the ranks must agree: the elements of a part, if the buffer has parts.
inline std::uint64_t agreed_count(const collective_call& call, int size) noexcept
{
    return call.receive_count / (shape_of(call.what).receive_has_parts ? static_cast<std::uint64_t>(size) : 1);
}

/// The reason why `count` elements of `element_bytes` bytes at `data` cannot be used, to be put after the name of an
/// argument; empty if there is none.
COLLPROBE_COLD_INLINE std::string flaw_of_buffer(const void* data, std::uint64_t count, std::uint64_t element_bytes)
{
    if (count == 0) return {};
    if (data == nullptr) return " is null with count " + std::to_string(count);
    if (reinterpret_cast<std::uintptr_t>(data) % element_bytes != 0) {
        return " is not aligned to " + std::to_string(element_bytes) + " bytes";
    }
    if (count > static_cast<std::uint64_t>(INT64_MAX) / element_bytes) {
        return " has the impossible count " + std::to_string(count);
    }
    return {};
}

template <class T>
std::string flaw_of_buffer(view<T> buffer)
{
    return flaw_of_buffer(buffer.data(), buffer.count(), alignof(T));
}

/// The flaw of two buffers that overlap and are not as in place, where `part` begins `elements` elements behind the
/// begin of `whole`: "send and receive overlap: in place send is receive + 16 elements, 0x1040, and it is 0x1000,
/// receive + 0 elements". The arguments that have "_name" are those of the call.
COLLPROBE_COLD_INLINE std::string flaw_of_place(
    const char* part_name, const void* part, const char* whole_name, const void* whole,
    std::uint64_t elements, std::uint64_t element_bytes)
{
    const auto is = reinterpret_cast<std::uintptr_t>(part);
    const auto begin = reinterpret_cast<std::uintptr_t>(whole);
    const auto offset = [&](bool behind, std::uint64_t count) {
        return std::string(whole_name) + (behind ? " + " : " - ") + std::to_string(count) + " elements";
    };
    return std::string("send and receive overlap: in place ") + part_name + " is " + offset(true, elements) + ", "
        + hexadecimal(begin + elements * element_bytes) + ", and it is " + hexadecimal(is) + ", "
        + offset(is >= begin, (is >= begin ? is - begin : begin - is) / element_bytes);
}

/// The error in the arguments of a collective of `size` ranks, the same for every communicator; empty if there is
/// none.
COLLPROBE_COLD_INLINE std::string flaw_of_arguments(const collective_call& call, int rank, int size)
{
    const std::uint64_t bytes = call.element_bytes();
    if (call.operation > reduction::product) {
        return "operation " + std::to_string(static_cast<int>(call.operation)) + " is no reduction";
    }
    if (call.what == collective::broadcast && (call.root < 0 || call.root >= size)) {
        return "root " + std::to_string(call.root) + " is not a rank: there are " + std::to_string(size);
    }
    const bool sends = call.sends(rank);
    if (sends) {
        const std::string flaw = flaw_of_buffer(call.send, call.send_count, bytes);
        if (!flaw.empty()) return "send" + flaw;
    }
    const std::string flaw = flaw_of_buffer(call.receive, call.receive_count, bytes);
    if (!flaw.empty()) return "receive" + flaw;
    if (!sends) return {};
    if (call.leaves != 1) {
        return "leaves is " + std::to_string(call.leaves) + ", and the communicator takes one of each rank";
    }

    const collective_shape shape = shape_of(call.what);
    const auto ranks = static_cast<std::uint64_t>(size);
    const std::uint64_t send_parts = shape.send_has_parts ? ranks : 1;
    const std::uint64_t receive_parts = shape.receive_has_parts ? ranks : 1;
    if (call.send_count % send_parts != 0 || call.receive_count % receive_parts != 0
        || call.send_count / send_parts != call.receive_count / receive_parts) {
        return std::string("not ") + shape.rule + ": send.count() is " + std::to_string(call.send_count)
            + ", receive.count() is " + std::to_string(call.receive_count) + ", size() is " + std::to_string(size);
    }
    // In place: this rank's part of the one buffer is the other.
    const std::uint64_t own_part = call.send_count / send_parts * static_cast<std::uint64_t>(rank);
    const auto* const send = static_cast<const unsigned char*>(call.send);
    const auto* const receive = static_cast<const unsigned char*>(call.receive);
    const bool in_place = call.what != collective::all_to_all
        && send + (shape.send_has_parts ? own_part * bytes : 0)
            == receive + (shape.receive_has_parts ? own_part * bytes : 0);
    if (in_place || !overlap(send, call.send_count * bytes, receive, call.receive_count * bytes)) return {};
    if (call.what == collective::all_to_all) return "send and receive overlap, and all_to_all has no form in place";
    if (shape.send_has_parts) return flaw_of_place("receive", receive, "send", send, own_part, bytes);
    return flaw_of_place("send", send, "receive", receive, shape.receive_has_parts ? own_part : 0, bytes);
}

} // namespace detail
} // namespace collprobe

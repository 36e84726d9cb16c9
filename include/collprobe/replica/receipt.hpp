// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/scan/tensor_part.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// What a receipt knows of one box of a tensor.
struct receipt_part {
    tensor_box box;
    detail::digest_state state; ///< at the box's place in the tensor
    std::uint64_t content = 0; ///< the digest of the box as a tensor of its own
    std::vector<detail::digest_state> casts; ///< in the order of the tensor's `casts`
    std::vector<int> ranks; ///< that hold it with these bits, ascending; may be empty
};

/// What a receipt knows of one tensor. If ranks hold other bits in the same box, it has a part for each.
struct receipt_tensor {
    std::string name;
    std::string type; ///< "float", "bfloat16": as `name(element_type)`
    int element_bytes = 0;
    tensor_shape shape;
    std::vector<element_cast> casts;
    std::vector<receipt_part> parts; ///< in the order of their boxes

    /// The state of the whole tensor. Precondition: `find_gaps` finds nothing.
    COLLPROBE_COLD_INLINE detail::digest_state whole() const noexcept
    {
        detail::digest_state all;
        for (const receipt_part& each : parts) all.merge(each.state);
        return all;
    }
};

/// Digests of a model's tensors, to be held against those of another program, topology or time. They do not depend on
/// how the tensors are cut, and come to a line of text for each tensor.
/// Every rank adds the parts that it holds. Receipts of ranks are merged: from their texts, or by `gather_receipts`.
/// `verify` then compares tensors part by part. A receipt finds errors; it does not resist an attacker who builds
/// a collision (`digest_state` has the probabilities).
class receipt {
public:
    static constexpr std::uint64_t no_step = ~std::uint64_t{0};
    static constexpr int most_ranks = 1 << 20; ///< ranks are less

    receipt() = default;
    explicit receipt(std::uint64_t step_number, int rank = -1) noexcept : step(step_number), rank_(rank) {}

    std::uint64_t step = no_step; ///< of the training, or `no_step`

    /// Reads a part in host memory and adds it to the tensor of that name. With `casts` the receipt can be held against
    /// that of an engine which has the tensor in 16 bits; of the casts to one type the first is the one that is right.
    /// `type`: another name where the library has no such type, as "int16" for a part of two-byte elements.
    /// \throws error `mismatch` if the tensor has another type, shape or casts; `invalid_argument` for a name that is
    /// empty or no UTF-8, the name of a type with another size, more than 16 casts, or a rank of `most_ranks` or more.
    /// Cost: one read of the part.
    void add(std::string_view name, const tensor_part& part, view<const element_cast> casts = {},
        std::string_view type = {}, call_site where = call_site::current());
    /// Adds the parts of another rank.
    /// \throws error `mismatch` if the steps differ, or a tensor's type, shape or casts; then nothing was added.
    void merge(const receipt& other, call_site where = call_site::current());

    view<const receipt_tensor> tensors() const noexcept { return {tensors_.data(), tensors_.size()}; } ///< by name
    /// Null if there is none.
    const receipt_tensor* find(std::string_view name) const noexcept;

    /// The receipt as a file's text: `report::replace_file(path, sums.text())` (replica/README.md has the format).
    /// \throws error `invalid_argument` if its parts have more than 2^28 ranks together.
    std::string text(call_site where = call_site::current()) const;
    /// \throws error `invalid_argument` with the line's number for a text that `text` did not write: damaged, cut off,
    /// or of another version.
    static receipt read(std::string_view text, call_site where = call_site::current());

private:
    std::size_t place_of(std::string_view name) const noexcept; ///< of a tensor, or where it would be
    receipt_tensor& tensor_for(receipt_tensor description, const call_site& where);

    int rank_ = -1;
    std::vector<receipt_tensor> tensors_;
};

/// What `verify` finds.
enum class receipt_problem : std::uint8_t {
    other_step, ///< the receipts are of different steps
    missing, ///< a tensor is expected and not there
    unexpected, ///< a tensor is there and not expected
    other_type, ///< and no cast of one to the other is known
    other_shape,
    gap, ///< no part has the box; without it `other_box` cannot be compared
    overlap, ///< two parts, of different boxes, have elements in common
    replicas_differ, ///< ranks hold other bits in the same box, and none of them, or nobody, has the expected ones
    altered, ///< other bits in the box
    zeros, ///< only zeros in the box, where others are expected
    stale, ///< the bits of an older receipt
    moved, ///< the bits that are expected in `other_box` of `other`
    other_rounding, ///< the right numbers, by another rounding than is stated
};

struct receipt_finding {
    receipt_problem problem = receipt_problem::altered;
    std::string tensor;
    /// The smallest box that the parts of both receipts can tell. All of it may be wrong, or a part.
    tensor_box box;
    std::vector<int> ranks; ///< that hold the box, if the receipt knows
    std::string other; ///< a tensor, type or shape, as `problem` says
    std::string expected; ///< the type or shape
    tensor_box other_box;
    std::uint64_t expected_step = receipt::no_step;
    std::uint64_t found_step = receipt::no_step; ///< of the receipt, or of the older one whose bits these are
    element_cast cast;
};

/// A sentence: `"wte" [128,0]+[64,512], rank 2: other bits than expected`.
std::string describe(const receipt_finding& finding);

/// Gaps, overlaps and replicas that differ: empty if the parts of each tensor tile it exactly.
std::vector<receipt_finding> find_gaps(const receipt& of);

/// Holds a receipt against the expected one. Empty: every tensor is there, with the expected bits, or as the stated
/// cast of them has it. README.md says what is compared where the receipts cut tensors otherwise. `older`: receipts of
/// earlier steps, to recognise data that was not updated.
/// \throws error `invalid_argument` if `expected` has gaps, overlaps or replicas that differ.
/// Cost: for equal tensors, the number of parts; for others, the product of their numbers of parts. If replicas
/// differ, at most 4096 choices among them are tried.
std::vector<receipt_finding> verify(const receipt& expected, const receipt& found, view<const receipt> older = {},
    call_site where = call_site::current());

namespace detail {

inline constexpr std::size_t most_casts = 16;

/// In double quotes, on one line: a quote, a backslash and control characters as \xHH, in JSON as \u00HH. Other bytes
/// stay.
COLLPROBE_COLD_INLINE std::string quoted_name(std::string_view name, const char* escape = "\\x")
{
    std::string text = "\"";
    for (const char c : name) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte != 0x7f && c != '"' && c != '\\') text += c;
        else (text += escape) += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
    }
    return text + '"';
}

/// The memory of an all-gather of `count` elements from each rank.
template <class Device, class T>
struct gathered_elements {
    typename Device::template buffer<T> mine;
    typename Device::template buffer<T> all;
    typename Device::template host_buffer<T> out;
    typename Device::template host_buffer<T> in;
    typename Device::event done;

    gathered_elements(std::uint64_t count, std::uint64_t ranks)
        : mine(count), all(count * ranks), out(count), in(count * ranks)
    {
    }
    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, done); }
};

/// Every rank's elements, on the host. Blocks.
template <class T, communicator Comm>
std::vector<T> gather_on_host(
    Comm& comm, const T* from, std::uint64_t count, stream_ref_of<Comm> stream, call_site where)
{
    using device = typename Comm::device;
    in_flight<gathered_elements<device, T>> memory(comm.timeout_ms(), count, static_cast<std::uint64_t>(comm.size()));
    for (std::uint64_t i = 0; i < count; ++i) memory->out[i] = from[i];
    enqueue_marked(memory->done, stream, [&] {
        device::copy(stream, view<const T>(memory->out), view<T>(memory->mine), where);
        comm.all_gather(view<const T>(memory->mine), view<T>(memory->all), stream, where);
        device::copy(stream, view<const T>(memory->all), view<T>(memory->in), where);
    });
    comm.synchronize(stream, where);
    return std::vector<T>(memory->in.data(), memory->in.data() + memory->in.size());
}

} // namespace detail

/// The merged receipts of all ranks, on every rank. Collective; blocks the host until it is done.
/// \throws error `mismatch` as `receipt::merge`, on all ranks; those of the communicator.
/// Cost: two all-gathers, of 8 bytes and of the longest text; memory for the texts of all ranks.
template <communicator Comm>
receipt gather_receipts(
    Comm& comm, const receipt& own, stream_ref_of<Comm> stream, call_site where = call_site::current())
{
    const auto scope = comm.device_scope();
    const std::string text = own.text();
    const std::uint64_t size = text.size();
    const std::vector<std::uint64_t> sizes = detail::gather_on_host(comm, &size, 1, stream, where);
    const std::uint64_t longest = *std::max_element(sizes.begin(), sizes.end());
    std::vector<std::uint8_t> padded(text.begin(), text.end());
    padded.resize(static_cast<std::size_t>(longest));
    const std::vector<std::uint8_t> texts = detail::gather_on_host(comm, padded.data(), longest, stream, where);
    receipt merged(own.step);
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
        const auto* const from = reinterpret_cast<const char*>(texts.data()) + rank * longest;
        merged.merge(receipt::read({from, static_cast<std::size_t>(sizes[rank])}, where), where);
    }
    return merged;
}

} // namespace collprobe

#include <collprobe/replica/detail/receipt.hpp>

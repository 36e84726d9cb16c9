// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include <collprobe/core/element.hpp>
#include <collprobe/replica/receipt.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

inline bool same_bits(const digest_state& a, const digest_state& b) noexcept
{
    return a.first == b.first && a.second == b.second && a.bytes == b.bytes;
}

/// -1, 0 or 1 by the numbers from the first dimension on.
inline int order_of(const tensor_shape& a, const tensor_shape& b) noexcept
{
    for (int d = 0; d < a.dimensions; ++d)
        if (a.size[d] != b.size[d]) return a.size[d] < b.size[d] ? -1 : 1;
    return 0;
}

inline bool comes_before(const tensor_box& a, const tensor_box& b) noexcept
{
    const int first = order_of(a.first, b.first);
    return first != 0 ? first < 0 : order_of(a.extent, b.extent) < 0;
}

/// Adds what some ranks hold of a box: to a part with the same bits, or as a new one.
COLLPROBE_COLD_INLINE void add_part(receipt_tensor& to, const receipt_part& part)
{
    const auto at = std::lower_bound(to.parts.begin(), to.parts.end(), part,
        [](const receipt_part& a, const receipt_part& b) { return comes_before(a.box, b.box); });
    auto same = at;
    for (; same != to.parts.end() && same->box == part.box; ++same) {
        if (!same_bits(same->state, part.state) || same->content != part.content) continue;
        std::vector<int> ranks;
        std::set_union(same->ranks.begin(), same->ranks.end(), part.ranks.begin(), part.ranks.end(),
            std::back_inserter(ranks));
        same->ranks = std::move(ranks);
        return;
    }
    to.parts.insert(same, part);
}

/// The parts of a tensor with the same box stand side by side: calls `use` with the first and the end of each such run.
template <class Use>
void for_each_cell(const receipt_tensor& of, const Use& use)
{
    for (std::size_t first = 0; first < of.parts.size();) {
        std::size_t end = first + 1;
        while (end < of.parts.size() && of.parts[end].box == of.parts[first].box) ++end;
        use(first, end);
        first = end;
    }
}

/// The smallest box around both.
COLLPROBE_COLD_INLINE tensor_box around(tensor_box box, const tensor_box& other) noexcept
{
    for (int d = 0; d < box.first.dimensions; ++d) {
        const std::uint64_t end
            = std::max(box.first.size[d] + box.extent.size[d], other.first.size[d] + other.extent.size[d]);
        box.first.size[d] = std::min(box.first.size[d], other.first.size[d]);
        box.extent.size[d] = end - box.first.size[d];
    }
    return box;
}

/// What is left of the whole when all boxes are cut out of it: the fewest boxes that are easily found, in their order.
COLLPROBE_COLD_INLINE std::vector<tensor_box> boxes_without_part(const receipt_tensor& of)
{
    tensor_box all{of.shape, of.shape};
    for (std::uint64_t& each : all.first.size) each = 0;
    std::vector<tensor_box> left;
    if (all.extent.elements() != 0) left.push_back(all);
    for (const receipt_part& part : of.parts) {
        std::vector<tensor_box> rest;
        for (tensor_box from : left) {
            const tensor_box common = intersection(from, part.box);
            if (common.extent.elements() == 0) {
                rest.push_back(from);
                continue;
            }
            for (int d = 0; d < of.shape.dimensions; ++d) {
                const std::uint64_t begin = from.first.size[d];
                const std::uint64_t cut = common.first.size[d];
                const std::uint64_t cut_end = cut + common.extent.size[d];
                tensor_box before = from;
                before.extent.size[d] = cut - begin;
                tensor_box behind = from;
                behind.first.size[d] = cut_end;
                behind.extent.size[d] = begin + from.extent.size[d] - cut_end;
                if (before.extent.size[d] != 0) rest.push_back(before);
                if (behind.extent.size[d] != 0) rest.push_back(behind);
                from.first.size[d] = cut;
                from.extent.size[d] = common.extent.size[d];
            }
        }
        left = std::move(rest);
    }
    if (left.empty()) return left;
    tensor_box box = left.front();
    std::uint64_t elements = 0;
    for (const tensor_box& each : left) {
        box = around(box, each);
        elements += each.extent.elements();
    }
    if (elements == box.extent.elements()) return {box};
    // Boxes that differ in one dimension alone, and touch there, are one.
    for (int d = of.shape.dimensions - 1; d >= 0; --d) {
        const auto without = [d](tensor_box other) {
            other.first.size[d] = other.extent.size[d] = 0;
            return other;
        };
        std::sort(left.begin(), left.end(), [&](const tensor_box& a, const tensor_box& b) {
            const tensor_box x = without(a), y = without(b);
            return x == y ? a.first.size[d] < b.first.size[d] : comes_before(x, y);
        });
        std::vector<tensor_box> joined;
        for (const tensor_box& each : left) {
            tensor_box* const last = joined.empty() ? nullptr : &joined.back();
            if (last != nullptr && without(*last) == without(each)
                && last->first.size[d] + last->extent.size[d] == each.first.size[d])
                last->extent.size[d] += each.extent.size[d];
            else joined.push_back(each);
        }
        left = std::move(joined);
    }
    std::sort(left.begin(), left.end(), comes_before);
    return left;
}

inline receipt_finding about(receipt_problem problem, const receipt_tensor& tensor)
{
    receipt_finding made;
    made.problem = problem;
    made.tensor = tensor.name;
    return made;
}

/// Whether a tensor's parts tile it, each box counted once. If not, `overlap` has the first overlap, if there is one.
COLLPROBE_COLD_INLINE bool parts_tile(const receipt_tensor& of, std::optional<receipt_finding>& overlap)
{
    std::vector<const receipt_part*> cells;
    std::uint64_t elements = 0;
    for_each_cell(of, [&](std::size_t first, std::size_t) {
        cells.push_back(&of.parts[first]);
        elements += of.parts[first].box.extent.elements(); // may wrap: the overlaps are found first
    });
    // In the order of the dimension with most places a box meets few others.
    int along = 0;
    std::size_t most = 0;
    for (int d = 0; d < of.shape.dimensions; ++d) {
        std::vector<std::uint64_t> places;
        for (const receipt_part* each : cells) places.push_back(each->box.first.size[d]);
        std::sort(places.begin(), places.end());
        const auto different = static_cast<std::size_t>(std::unique(places.begin(), places.end()) - places.begin());
        if (different > most) {
            most = different;
            along = d;
        }
    }
    std::sort(cells.begin(), cells.end(), [along](const receipt_part* a, const receipt_part* b) {
        const std::uint64_t of_a = a->box.first.size[along];
        const std::uint64_t of_b = b->box.first.size[along];
        return of_a != of_b ? of_a < of_b : a < b;
    });
    for (std::size_t i = 0; i < cells.size(); ++i) {
        const tensor_box& box = cells[i]->box;
        for (std::size_t k = i + 1; k < cells.size(); ++k) {
            const tensor_box& other = cells[k]->box;
            if (other.first.size[along] >= box.first.size[along] + box.extent.size[along]) break;
            if (intersection(box, other).extent.elements() == 0) continue;
            receipt_finding found = about(receipt_problem::overlap, of);
            found.box = box;
            found.ranks = cells[i]->ranks;
            found.other_box = other;
            overlap = found;
            return false;
        }
    }
    return elements == of.shape.elements();
}

/// Appends the gaps of a tensor's parts, or an overlap. Returns whether there are none.
COLLPROBE_COLD_INLINE bool find_gaps_of(const receipt_tensor& of, std::vector<receipt_finding>& to)
{
    std::optional<receipt_finding> overlap;
    if (parts_tile(of, overlap)) return true;
    if (overlap) {
        to.push_back(*overlap);
        return false;
    }
    for (const tensor_box& box : boxes_without_part(of)) {
        receipt_finding found = about(receipt_problem::gap, of);
        found.box = box;
        to.push_back(found);
    }
    return false;
}

inline void add_ranks(receipt_finding& to, const receipt_part& of)
{
    std::vector<int> all;
    std::set_union(to.ranks.begin(), to.ranks.end(), of.ranks.begin(), of.ranks.end(), std::back_inserter(all));
    to.ranks = std::move(all);
}

COLLPROBE_COLD_INLINE void find_replicas_that_differ(const receipt_tensor& of, std::vector<receipt_finding>& to)
{
    for_each_cell(of, [&](std::size_t first, std::size_t end) {
        if (end == first + 1) return;
        receipt_finding found = about(receipt_problem::replicas_differ, of);
        found.box = of.parts[first].box;
        for (std::size_t i = first; i < end; ++i) add_ranks(found, of.parts[i]);
        to.push_back(found);
    });
}

/// Whether `whole` is the state of the tensor.
COLLPROBE_COLD_INLINE bool is_complete(const receipt_tensor& of)
{
    std::optional<receipt_finding> overlap;
    bool replicas_differ = false;
    for_each_cell(of, [&](std::size_t first, std::size_t end) { replicas_differ |= end > first + 1; });
    return !replicas_differ && parts_tile(of, overlap);
}

/// "[128,0]".
COLLPROBE_COLD_INLINE std::string shape_text(const tensor_shape& shape)
{
    std::string text = "[";
    for (int d = 0; d < shape.dimensions; ++d) text += (d == 0 ? "" : ",") + std::to_string(shape.size[d]);
    return text + ']';
}

/// "0-3,7"; "-" for none.
COLLPROBE_COLD_INLINE std::string ranks_text(const std::vector<int>& ranks)
{
    std::string text;
    for (std::size_t i = 0; i < ranks.size();) {
        std::size_t end = i + 1;
        while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
        text += (i == 0 ? "" : ",") + std::to_string(ranks[i]);
        if (end - i > 1) text += '-' + std::to_string(ranks[end - 1]);
        i = end;
    }
    return text.empty() ? "-" : text;
}

constexpr const char* rounding_name(cast_rounding rounding) noexcept
{
    return rounding == cast_rounding::nearest_even ? "nearest_even" : "toward_zero";
}

} // namespace detail

namespace detail {

inline receipt_tensor without_parts(const receipt_tensor& of)
{
    return {of.name, of.type, of.element_bytes, of.shape, of.casts, {}};
}

COLLPROBE_COLD_INLINE void require_same(const receipt_tensor& a, const receipt_tensor& b, const call_site& where)
{
    const auto text = [](const receipt_tensor& of) {
        return of.type + " of " + std::to_string(of.element_bytes) + " bytes " + shape_text(of.shape);
    };
    std::string difference;
    if (text(a) != text(b)) difference = " is " + text(a) + " in one part of the receipt and " + text(b);
    else if (a.casts != b.casts) difference = " has other casts in one part of the receipt than";
    else return;
    throw error(status::mismatch, "the tensor " + quoted_name(a.name) + difference + " in another",
        {.call = "receipt", .where = where});
}

/// The bytes of an element of the type with that name; 0 if the library has no such type.
inline int bytes_of_named(std::string_view type) noexcept
{
    for (int i = 0; bytes_of(static_cast<element_type>(i)) != 0; ++i)
        if (type == name(static_cast<element_type>(i))) return bytes_of(static_cast<element_type>(i));
    return 0;
}

} // namespace detail

COLLPROBE_COLD_INLINE receipt_tensor& receipt::tensor_for(receipt_tensor description, const call_site& where)
{
    const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), description.name,
        [](const receipt_tensor& tensor, const std::string& wanted) { return tensor.name < wanted; });
    if (at == tensors_.end() || at->name != description.name) return *tensors_.insert(at, std::move(description));
    detail::require_same(*at, description, where);
    return *at;
}

COLLPROBE_COLD_INLINE void receipt::add(std::string_view name, const tensor_part& part,
    view<const element_cast> casts, std::string_view type, call_site where)
{
    const part_digests digests = digest_part(part, casts, where);
    detail::require(!name.empty(), "receipt", "a tensor without a name", where);
    const bool known = std::all_of(type.begin(), type.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    });
    detail::require(known, "receipt", "a type's name has letters, digits and underscores alone", where);
    const std::string type_name(type.empty() ? collprobe::name(part.type) : type);
    const int bytes = detail::bytes_of_named(type_name);
    detail::require(bytes == 0 || bytes == bytes_of(part.type), "receipt",
        "the type's name is that of a type with another size", where);
    detail::require(casts.count() <= detail::most_casts, "receipt", "more than 16 casts", where);
    detail::require(rank_ < most_ranks, "receipt", "a rank of 2^20 or more", where);
    receipt_tensor& to = tensor_for({std::string(name), type_name, bytes_of(part.type), part.shape,
                                        {casts.begin(), casts.end()}, {}},
        where);
    if (part.box.extent.elements() == 0) return;
    receipt_part made{part.box, digests.state, digests.content.finish(), digests.casts, {}};
    if (rank_ >= 0) made.ranks.push_back(rank_);
    detail::add_part(to, made);
}

COLLPROBE_COLD_INLINE void receipt::merge(const receipt& other, call_site where)
{
    if (step != other.step) {
        const auto words = [](std::uint64_t number) { return number == no_step ? "no" : std::to_string(number); };
        throw error(status::mismatch,
            "receipts of different steps: " + words(step) + " and " + words(other.step),
            {.call = "receipt", .where = where});
    }
    for (const receipt_tensor& each : other.tensors_)
        if (const receipt_tensor* const own = find(each.name)) detail::require_same(*own, each, where);
    for (const receipt_tensor& each : other.tensors_) {
        receipt_tensor& to = tensor_for(detail::without_parts(each), where);
        for (const receipt_part& part : each.parts) detail::add_part(to, part);
    }
}

COLLPROBE_COLD_INLINE const receipt_tensor* receipt::find(std::string_view name) const noexcept
{
    const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
        [](const receipt_tensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
    return at == tensors_.end() || at->name != name ? nullptr : &*at;
}

COLLPROBE_COLD_INLINE std::vector<receipt_finding> find_gaps(const receipt& of)
{
    std::vector<receipt_finding> found;
    for (const receipt_tensor& each : of.tensors()) {
        (void)detail::find_gaps_of(each, found);
        detail::find_replicas_that_differ(each, found);
    }
    return found;
}

COLLPROBE_COLD_INLINE std::string describe(const receipt_finding& finding)
{
    const auto step_text = [](std::uint64_t step) {
        return step == receipt::no_step ? std::string("an unknown step") : "step " + std::to_string(step);
    };
    const auto box_text = [](const tensor_box& box) {
        return detail::shape_text(box.first) + '+' + detail::shape_text(box.extent);
    };
    if (finding.problem == receipt_problem::other_step) {
        return "the receipt is of " + step_text(finding.found_step) + ", expected is "
            + step_text(finding.expected_step);
    }
    std::string text = detail::quoted_name(finding.tensor);
    if (finding.problem >= receipt_problem::gap) text += ' ' + box_text(finding.box);
    if (!finding.ranks.empty())
        text += (finding.ranks.size() == 1 ? ", rank " : ", ranks ") + detail::ranks_text(finding.ranks);
    switch (finding.problem) {
    case receipt_problem::other_step: break;
    case receipt_problem::missing: return text + ": missing";
    case receipt_problem::unexpected: return text + ": not expected";
    case receipt_problem::other_type:
        return text + ": the type is " + finding.other + ", expected is " + finding.expected
            + ", and no cast between them is known";
    case receipt_problem::other_shape:
        return text + ": the shape is " + finding.other + ", expected is " + finding.expected;
    case receipt_problem::gap:
        text += ": no rank has this part";
        if (finding.other_box != tensor_box{})
            text += "; without it " + box_text(finding.other_box) + " cannot be compared";
        return text;
    case receipt_problem::overlap: return text + ": overlaps with the part " + box_text(finding.other_box);
    case receipt_problem::replicas_differ:
        if (finding.ranks.size() > 1) return text + ": not the same bits on all ranks that hold it";
        return text + ": added more than once, with different bits";
    case receipt_problem::altered: return text + ": other bits than expected";
    case receipt_problem::zeros: return text + ": all zeros";
    case receipt_problem::stale: return text + ": the bits of " + step_text(finding.found_step);
    case receipt_problem::moved:
        return text + ": the bits that " + detail::quoted_name(finding.other) + ' ' + box_text(finding.other_box)
            + " should have";
    case receipt_problem::other_rounding:
        return text + ": cast to " + name(finding.cast.type) + " by " + detail::rounding_name(finding.cast.rounding)
            + ", another rounding than is stated";
    }
    return text;
}

} // namespace collprobe

#include <collprobe/replica/detail/receipt_text.hpp>
#include <collprobe/replica/detail/verify_receipt.hpp>

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <compare>
#include <iterator>
#include <utility>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/printable.hpp>
#include <collprobe/replica/receipt.hpp>

/// How a receipt is filled, merged and described: its parts, their boxes, and the gaps between them.
namespace collprobe::inline COLLPROBE_ABI {
namespace detail {

inline bool same_bits(const digest_state& a, const digest_state& b) noexcept
{
    return a.first == b.first && a.second == b.second && a.bytes == b.bytes;
}

/// By the numbers from the first dimension on: first those of the first index, then those of the extent.
inline bool comes_before(const tensor_box& a, const tensor_box& b) noexcept
{
    const auto order = [](const tensor_shape& x, const tensor_shape& y) {
        return std::lexicographical_compare_three_way(
            x.size, x.size + x.dimensions, y.size, y.size + y.dimensions);
    };
    const auto first = order(a.first, b.first);
    return first != 0 ? first < 0 : order(a.extent, b.extent) < 0;
}

COLLPROBE_COLD_INLINE void add_ranks(std::vector<int>& to, const std::vector<int>& more)
{
    std::vector<int> all;
    std::set_union(to.begin(), to.end(), more.begin(), more.end(), std::back_inserter(all));
    to = std::move(all);
}

/// Adds what some ranks hold of a box: to a part with the same bits, or as a new one.
COLLPROBE_COLD_INLINE void add_part(receipt_tensor& to, const receipt_part& part)
{
    const auto at = std::lower_bound(to.parts.begin(), to.parts.end(), part,
        [](const receipt_part& a, const receipt_part& b) { return comes_before(a.box, b.box); });
    auto same = at;
    for (; same != to.parts.end() && same->box == part.box; ++same) {
        if (same_bits(same->state, part.state) && same->content == part.content)
            return add_ranks(same->ranks, part.ranks);
    }
    to.parts.insert(same, part);
}

/// The parts of one box: what ranks that hold it have there, one part if they all have the same bits.
using box_parts = view<const receipt_part>;

/// A tensor's boxes in their order, each with its parts.
COLLPROBE_COLD_INLINE std::vector<box_parts> boxes_of(const receipt_tensor& of)
{
    std::vector<box_parts> all;
    for (const receipt_part& part : of.parts) {
        if (all.empty() || all.back()[0].box != part.box) all.emplace_back(&part, 1);
        else all.back() = {all.back().data(), all.back().count() + 1};
    }
    return all;
}

inline tensor_box whole_box(const tensor_shape& shape) noexcept
{
    tensor_box all{shape, shape};
    for (std::uint64_t& each : all.first.size) each = 0;
    return all;
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
    std::vector<tensor_box> left;
    if (of.shape.elements() != 0) left.push_back(whole_box(of.shape));
    for (const receipt_part& part : of.parts) {
        std::vector<tensor_box> rest;
        for (tensor_box from : left) {
            const tensor_box common = intersection(from, part.box);
            if (common.extent.elements() == 0) {
                rest.push_back(from);
                continue;
            }
            for (int d = 0; d < of.shape.dimensions; ++d) {
                tensor_box before = from, behind = from;
                before.extent.size[d] = common.first.size[d] - from.first.size[d];
                behind.first.size[d] = common.first.size[d] + common.extent.size[d];
                behind.extent.size[d] = from.first.size[d] + from.extent.size[d] - behind.first.size[d];
                if (before.extent.size[d] != 0) rest.push_back(before);
                if (behind.extent.size[d] != 0) rest.push_back(behind);
                from.first.size[d] = common.first.size[d];
                from.extent.size[d] = common.extent.size[d];
            }
        }
        left = std::move(rest);
    }
    // Two boxes that fill the smallest box around them are one.
    for (std::size_t before = left.size() + 1; left.size() < before;) {
        before = left.size();
        for (std::size_t i = 0; i < left.size(); ++i) {
            for (std::size_t k = i + 1; k < left.size(); ++k) {
                const tensor_box both = around(left[i], left[k]);
                if (both.extent.elements() != left[i].extent.elements() + left[k].extent.elements()) continue;
                left[i] = both;
                left.erase(left.begin() + static_cast<std::ptrdiff_t>(k--));
            }
        }
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

/// Appends the gaps of a tensor's parts, each box counted once; or, if boxes have elements in common, two that do.
/// Returns whether the parts tile the tensor.
COLLPROBE_COLD_INLINE bool find_gaps_of(const receipt_tensor& of, std::vector<receipt_finding>& to)
{
    const std::vector<box_parts> boxes = boxes_of(of);
    const std::vector<tensor_box> gaps = boxes_without_part(of);
    std::uint64_t left = of.shape.elements(); // less than 2^63, so that all numbers here fit
    for (const tensor_box& each : gaps) left -= each.extent.elements();
    bool overlap = false;
    for (const box_parts& each : boxes) {
        const std::uint64_t elements = each[0].box.extent.elements();
        overlap = overlap || elements > left;
        left -= overlap ? 0 : elements;
    }
    for (std::size_t i = 0; overlap && i < boxes.size(); ++i) {
        for (std::size_t k = i + 1; k < boxes.size(); ++k) {
            if (intersection(boxes[i][0].box, boxes[k][0].box).extent.elements() == 0) continue;
            to.push_back(about(receipt_problem::overlap, of));
            to.back().box = boxes[i][0].box;
            to.back().ranks = boxes[i][0].ranks;
            to.back().other_box = boxes[k][0].box;
            return false;
        }
    }
    for (const tensor_box& box : gaps) {
        to.push_back(about(receipt_problem::gap, of));
        to.back().box = box;
    }
    return gaps.empty();
}

/// Whether `whole` is the state of the tensor.
COLLPROBE_COLD_INLINE bool is_complete(const receipt_tensor& of)
{
    std::vector<receipt_finding> gaps;
    return boxes_of(of).size() == of.parts.size() && find_gaps_of(of, gaps);
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

COLLPROBE_COLD_INLINE std::string cast_text(const element_cast& cast)
{
    return std::string(name(cast.type)) + ' ' + name(cast.rounding);
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

/// Why no receipt can have the tensor; null if one can.
COLLPROBE_COLD_INLINE const char* reason_against(const receipt_tensor& of)
{
    if (of.name.empty()) return "a tensor without a name";
    if (utf8_text(of.name) != of.name) return "a name that is no UTF-8";
    constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    if (of.type.empty() || of.type.find_first_not_of(letters) != std::string::npos)
        return "a type's name has letters, digits and underscores alone";
    const int bytes = of.element_bytes;
    if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) return "elements have 1, 2, 4 or 8 bytes";
    const int named = bytes_of_named(of.type);
    if (named != 0 && named != bytes) return "the type's name is that of a type with another size";
    if (of.casts.size() > most_casts) return "more than 16 casts";
    return is_possible(of.shape, bytes) ? nullptr : "a tensor of 2^63 bytes or more";
}

} // namespace detail

COLLPROBE_COLD_INLINE std::size_t receipt::place_of(std::string_view name) const noexcept
{
    const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
        [](const receipt_tensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
    return static_cast<std::size_t>(at - tensors_.begin());
}

COLLPROBE_COLD_INLINE const receipt_tensor* receipt::find(std::string_view name) const noexcept
{
    const std::size_t place = place_of(name);
    return place == tensors_.size() || tensors_[place].name != name ? nullptr : &tensors_[place];
}

COLLPROBE_COLD_INLINE receipt_tensor& receipt::tensor_for(receipt_tensor description, const call_site& where)
{
    const auto at = tensors_.begin() + static_cast<std::ptrdiff_t>(place_of(description.name));
    if (at == tensors_.end() || at->name != description.name) return *tensors_.insert(at, std::move(description));
    detail::require_same(*at, description, where);
    return *at;
}

COLLPROBE_COLD_INLINE void receipt::add(std::string_view name, const tensor_part& part,
    view<const element_cast> casts, std::string_view type, call_site where)
{
    const part_digests digests = digest_part(part, casts, where);
    detail::require(rank_ < most_ranks, "receipt", "a rank of 2^20 or more", where);
    receipt_tensor description{std::string(name), std::string(type.empty() ? collprobe::name(part.type) : type),
        bytes_of(part.type), part.shape, {casts.begin(), casts.end()}, {}};
    if (const char* const reason = detail::reason_against(description)) detail::refuse("receipt", reason, where);
    receipt_tensor& to = tensor_for(std::move(description), where);
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
        receipt_tensor& to
            = tensor_for({each.name, each.type, each.element_bytes, each.shape, each.casts, {}}, where);
        for (const receipt_part& part : each.parts) detail::add_part(to, part);
    }
}

COLLPROBE_COLD_INLINE std::vector<receipt_finding> find_gaps(const receipt& of)
{
    std::vector<receipt_finding> found;
    for (const receipt_tensor& each : of.tensors()) {
        (void)detail::find_gaps_of(each, found);
        for (const detail::box_parts& parts : detail::boxes_of(each)) {
            if (parts.count() == 1) continue;
            found.push_back(detail::about(receipt_problem::replicas_differ, each));
            found.back().box = parts[0].box;
            for (const receipt_part& part : parts) detail::add_ranks(found.back().ranks, part.ranks);
        }
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
        return text + ": cast to " + name(finding.cast.type) + " by " + name(finding.cast.rounding)
            + ", another rounding than is stated";
    }
    return text;
}

} // namespace collprobe

#include <collprobe/replica/detail/receipt_text.hpp>
#include <collprobe/replica/detail/verify_receipt.hpp>

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

/// The first box without a part, if there is one: what is left of the whole when all boxes are cut out of it.
COLLPROBE_COLD_INLINE std::optional<tensor_box> box_without_part(const receipt_tensor& of)
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
    if (left.empty()) return {};
    return *std::min_element(left.begin(), left.end(), comes_before);
}

inline receipt_finding about(receipt_problem problem, const receipt_tensor& tensor)
{
    receipt_finding made;
    made.problem = problem;
    made.tensor = tensor.name;
    return made;
}

/// Appends the gaps and overlaps of a tensor's parts. Returns whether there are none.
COLLPROBE_COLD_INLINE bool find_gaps_of(const receipt_tensor& of, std::vector<receipt_finding>& to)
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
    std::stable_sort(cells.begin(), cells.end(), [along](const receipt_part* a, const receipt_part* b) {
        return a->box.first.size[along] < b->box.first.size[along];
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
            to.push_back(found);
            return false;
        }
    }
    if (elements == of.shape.elements()) return true;
    receipt_finding found = about(receipt_problem::gap, of);
    found.box = box_without_part(of).value_or(tensor_box{});
    to.push_back(found);
    return false;
}

COLLPROBE_COLD_INLINE bool has_replicas_that_differ(
    const receipt_tensor& of, std::vector<receipt_finding>& to)
{
    const std::size_t before = to.size();
    for_each_cell(of, [&](std::size_t first, std::size_t end) {
        if (end == first + 1) return;
        receipt_finding found = about(receipt_problem::replicas_differ, of);
        found.box = of.parts[first].box;
        for (std::size_t i = first; i < end; ++i)
            found.ranks.insert(found.ranks.end(), of.parts[i].ranks.begin(), of.parts[i].ranks.end());
        std::sort(found.ranks.begin(), found.ranks.end());
        to.push_back(found);
    });
    return to.size() != before;
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

/// In double quotes, on one line: a quote, a backslash and control characters as \xHH. Other bytes stay.
COLLPROBE_COLD_INLINE std::string quoted(std::string_view name)
{
    std::string text = "\"";
    for (const char c : name) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte != 0x7f && c != '"' && c != '\\') text += c;
        else (text += "\\x") += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
    }
    return text + '"';
}

constexpr const char* rounding_name(cast_rounding rounding) noexcept
{
    return rounding == cast_rounding::nearest_even ? "nearest_even" : "toward_zero";
}

} // namespace detail

COLLPROBE_COLD_INLINE detail::digest_state receipt_tensor::whole() const noexcept
{
    detail::digest_state all;
    for (const receipt_part& each : parts) all.merge(each.state);
    return all;
}

COLLPROBE_COLD_INLINE receipt_tensor& receipt::tensor_for(
    receipt_tensor description, const char* call, const call_site& where)
{
    const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), description.name,
        [](const receipt_tensor& tensor, const std::string& wanted) { return tensor.name < wanted; });
    if (at == tensors_.end() || at->name != description.name) return *tensors_.insert(at, std::move(description));
    if (at->type != description.type || at->element_bytes != description.element_bytes
        || at->shape != description.shape || at->casts != description.casts) {
        throw error(status::mismatch, "the tensor '" + description.name + "' is " + at->type + ' '
                + detail::shape_text(at->shape) + " in one part of the receipt and " + description.type + ' '
                + detail::shape_text(description.shape) + " in another, or has other casts there",
            {.call = call, .where = where});
    }
    return *at;
}

COLLPROBE_COLD_INLINE void receipt::add(std::string_view name, const tensor_part& part,
    view<const element_cast> casts, std::string_view type, call_site where)
{
    add(name, part, digest_part_and_casts(part, casts, where), casts, type, where);
}

COLLPROBE_COLD_INLINE void receipt::add(std::string_view name, const tensor_part& part, const part_digests& digests,
    view<const element_cast> casts, std::string_view type, call_site where)
{
    detail::require(!name.empty(), "receipt", "a tensor without a name", where);
    detail::require(casts.count() == digests.casts.size(), "receipt", "not as many digests as casts", where);
    const bool known = std::all_of(type.begin(), type.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    });
    detail::require(known, "receipt", "a type's name has letters, digits and underscores alone", where);
    const std::string type_name(type.empty() ? collprobe::name(part.type) : type);
    receipt_tensor& to = tensor_for({std::string(name), type_name, bytes_of(part.type), part.shape,
                                        {casts.begin(), casts.end()}, {}},
        "receipt", where);
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
    for (const receipt_tensor& each : other.tensors_) {
        receipt_tensor description = each;
        description.parts.clear();
        receipt_tensor& to = tensor_for(std::move(description), "receipt", where);
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
        (void)detail::has_replicas_that_differ(each, found);
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
    std::string text = detail::quoted(finding.tensor);
    if (finding.problem >= receipt_problem::gap) text += ' ' + box_text(finding.box);
    if (!finding.ranks.empty())
        text += (finding.ranks.size() == 1 ? ", rank " : ", ranks ") + detail::ranks_text(finding.ranks);
    switch (finding.problem) {
    case receipt_problem::other_step: break;
    case receipt_problem::missing: return text + ": missing";
    case receipt_problem::unexpected: return text + ": not expected";
    case receipt_problem::other_type:
        return text + ": the type is " + finding.other + ", and no cast to it is known";
    case receipt_problem::other_shape: return text + ": the shape is " + finding.other;
    case receipt_problem::gap: return text + ": no rank has this part";
    case receipt_problem::overlap: return text + ": overlaps with the part " + box_text(finding.other_box);
    case receipt_problem::replicas_differ: return text + ": not the same bits on all ranks that hold it";
    case receipt_problem::altered: return text + ": other bits than expected";
    case receipt_problem::zeros: return text + ": all zeros";
    case receipt_problem::stale: return text + ": the bits of " + step_text(finding.found_step);
    case receipt_problem::moved:
        return text + ": the bits that " + detail::quoted(finding.other) + ' ' + box_text(finding.other_box)
            + " should have";
    case receipt_problem::other_rounding:
        return text + ": cast to " + name(finding.cast.type) + " by " + detail::rounding_name(finding.cast.rounding)
            + ", another rounding than is stated";
    }
    return text;
}

} // namespace collprobe

#include <collprobe/replica/detail/receipt_text.ipp>
#include <collprobe/replica/detail/verify_receipt.ipp>

namespace collprobe::inline COLLPROBE_ABI {

COLLPROBE_COLD_INLINE std::vector<receipt_finding> verify(
    const receipt& expected, const receipt& found, view<const receipt> older, call_site where)
{
    const std::vector<receipt_finding> gaps = find_gaps(expected);
    if (!gaps.empty()) detail::refuse("verify", "the expected receipt: " + describe(gaps[0]), where);
    detail::receipt_verifier verifier(expected, older);
    if (expected.step != found.step && expected.step != receipt::no_step && found.step != receipt::no_step) {
        receipt_finding finding;
        finding.problem = receipt_problem::other_step;
        finding.expected_step = expected.step;
        finding.found_step = found.step;
        verifier.findings.push_back(finding);
    }
    for (const receipt_tensor& each : expected.tensors()) {
        const receipt_tensor* const other = found.find(each.name);
        if (other != nullptr) verifier.compare(each, *other);
        else verifier.findings.push_back(detail::about(receipt_problem::missing, each));
    }
    for (const receipt_tensor& each : found.tensors()) {
        if (expected.find(each.name) == nullptr)
            verifier.findings.push_back(detail::about(receipt_problem::unexpected, each));
    }
    return std::move(verifier.findings);
}

} // namespace collprobe

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <collprobe/replica/receipt.hpp>

/// One receipt against another.
namespace collprobe::inline COLLPROBE_ABI {
namespace detail {

/// The digest of some bits, and where they belong. `type`: of the bits, that of the tensor or of a cast.
struct known_content {
    std::uint64_t content;
    std::size_t place; // of equal contents the first in the receipt is named
    std::string_view type;
    const receipt_tensor* tensor;
    tensor_box box;
};

/// Which digests of two receipts are of the same type: -1 that of the tensor itself, else a cast.
struct same_type {
    int expected = -1;
    int found = -1;
};

/// The first one is what is stated, the others tell that the rounding is another.
COLLPROBE_COLD_INLINE std::vector<same_type> comparable_types(
    const receipt_tensor& expected, const receipt_tensor& found)
{
    std::vector<same_type> types;
    if (expected.type == found.type) return {{}};
    for (std::size_t i = 0; i < expected.casts.size(); ++i)
        if (name(expected.casts[i].type) == found.type) types.push_back({static_cast<int>(i), -1});
    for (std::size_t i = 0; i < found.casts.size(); ++i)
        if (name(found.casts[i].type) == expected.type) types.push_back({-1, static_cast<int>(i)});
    return types;
}

inline const digest_state& state_of(const receipt_part& part, int cast) noexcept
{
    return cast < 0 ? part.state : part.casts[static_cast<std::size_t>(cast)];
}

/// Parts without common elements: a region of a tensor.
using part_list = std::vector<const receipt_part*>;

COLLPROBE_COLD_INLINE digest_state state_of(const part_list& parts, int cast) noexcept
{
    digest_state state;
    for (const receipt_part* each : parts) state.merge(state_of(*each, cast));
    return state;
}

inline std::uint64_t elements_of(const part_list& parts) noexcept
{
    std::uint64_t elements = 0;
    for (const receipt_part* each : parts) elements += each->box.extent.elements();
    return elements;
}

COLLPROBE_COLD_INLINE part_list all_parts(const receipt_tensor& of)
{
    part_list all;
    for (const receipt_part& each : of.parts) all.push_back(&each);
    return all;
}

COLLPROBE_COLD_INLINE tensor_box box_around(const part_list& parts) noexcept
{
    tensor_box box = parts.front()->box;
    for (const receipt_part* each : parts) box = around(box, each->box);
    return box;
}

/// The state of a region, given as parts of another receipt, if some parts of the tensor tile it.
COLLPROBE_COLD_INLINE std::optional<digest_state> state_of_region(
    const receipt_tensor& of, const part_list& region, int cast)
{
    digest_state state;
    std::uint64_t covered = 0;
    for (const box_parts& parts : boxes_of(of)) {
        std::uint64_t common = 0;
        for (const receipt_part* each : region) common += intersection(each->box, parts[0].box).extent.elements();
        if (common == 0) continue;
        if (parts.count() > 1 || common != parts[0].box.extent.elements()) return {};
        covered += common;
        state.merge(state_of(parts[0], cast));
    }
    if (covered != elements_of(region)) return {};
    return state;
}

/// A region that both receipts can tell as a whole: some parts of the one have the same elements as some of the other.
struct comparable_region {
    part_list expected;
    std::vector<box_parts> found;

    /// One part of each box.
    part_list first_found() const
    {
        part_list parts;
        for (const box_parts& each : found) parts.push_back(&each[0]);
        return parts;
    }
};

/// The finest ones: parts with common elements belong together.
COLLPROBE_COLD_INLINE std::vector<comparable_region> find_comparable(
    const receipt_tensor& expected, const receipt_tensor& found)
{
    const std::vector<box_parts> boxes = boxes_of(found);
    const std::size_t own = expected.parts.size();
    std::vector<std::size_t> group(own + boxes.size());
    for (std::size_t i = 0; i < group.size(); ++i) group[i] = i;
    const auto root = [&](std::size_t i) {
        while (group[i] != i) i = group[i] = group[group[i]];
        return i;
    };
    for (std::size_t i = 0; i < own; ++i) {
        for (std::size_t k = 0; k < boxes.size(); ++k) {
            const tensor_box common = intersection(expected.parts[i].box, boxes[k][0].box);
            if (common.extent.elements() != 0) group[root(i)] = root(own + k);
        }
    }
    std::vector<comparable_region> all;
    std::vector<std::size_t> place(group.size(), ~std::size_t{0});
    for (std::size_t i = 0; i < group.size(); ++i) {
        std::size_t& at = place[root(i)];
        if (at == ~std::size_t{0}) {
            at = all.size();
            all.emplace_back();
        }
        if (i < own) all[at].expected.push_back(&expected.parts[i]);
        else all[at].found.push_back(boxes[i - own]);
    }
    return all;
}

class receipt_verifier {
public:
    receipt_verifier(const receipt& expected, view<const receipt> older) : older_(older)
    {
        for (const receipt_tensor& tensor : expected.tensors()) {
            if (tensor.parts.empty()) continue;
            const auto know = [&](std::uint64_t content, std::string_view type, const tensor_box& box) {
                contents_.push_back({content, contents_.size(), type, &tensor, box});
            };
            const part_list parts = all_parts(tensor);
            const tensor_box box = box_around(parts);
            know(tensor.whole().finish(), tensor.type, box);
            for (const receipt_part* part : parts)
                if (parts.size() > 1) know(part->content, tensor.type, part->box);
            for (std::size_t i = 0; i < tensor.casts.size(); ++i) {
                if (is_stated(tensor, i))
                    know(state_of(parts, static_cast<int>(i)).finish(), name(tensor.casts[i].type), box);
            }
        }
        std::sort(contents_.begin(), contents_.end(), [](const known_content& a, const known_content& b) {
            return a.content != b.content ? a.content < b.content : a.place < b.place;
        });
    }

    void compare(const receipt_tensor& expected, const receipt_tensor& found)
    {
        expected_ = &expected;
        found_ = &found;
        types_ = comparable_types(expected, found);
        if (expected.shape != found.shape || types_.empty()) {
            const bool other_shape = expected.shape != found.shape;
            receipt_finding finding
                = about(other_shape ? receipt_problem::other_shape : receipt_problem::other_type, expected);
            finding.expected = other_shape ? shape_text(expected.shape) : expected.type;
            finding.other = other_shape ? shape_text(found.shape) : found.type;
            findings.push_back(finding);
            return;
        }
        const std::size_t before = findings.size();
        const bool complete = find_gaps_of(found, findings);
        if (!complete && findings.back().problem == receipt_problem::overlap) return;
        const part_list wanted = all_parts(expected);
        const part_list there = all_parts(found);
        const digest_state all_wanted = state_of(wanted, types_[0].expected);
        if (complete && same_bits(all_wanted, state_of(there, types_[0].found))) return; // replicas would add bytes
        std::vector<comparable_region> differ;
        std::size_t parts_that_differ = 0;
        for (comparable_region& region : find_comparable(expected, found)) {
            const part_list parts = region.first_found();
            if (elements_of(region.expected) != elements_of(parts)) {
                if (!parts.empty()) add_to_gaps(before, region);
            } else if (!compare_replicas(region)) {
                parts_that_differ += parts.size();
                differ.push_back(std::move(region));
            }
        }
        // If every part differs, the tensor may be known as a whole, however it is cut.
        if (complete && parts_that_differ == there.size() && name_problem(wanted, there)) return;
        for (const comparable_region& region : differ) name_region(region);
    }

    std::vector<receipt_finding> findings;

private:
    /// Of the casts to one type the first is the one that is right.
    static bool is_stated(const receipt_tensor& of, std::size_t cast) noexcept
    {
        for (std::size_t i = 0; i < cast; ++i)
            if (of.casts[i].type == of.casts[cast].type) return false;
        return true;
    }

    /// Where parts are missing, those beside them that are there cannot be compared.
    void add_to_gaps(std::size_t first, const comparable_region& region)
    {
        const tensor_box box = box_around(region.expected);
        for (std::size_t i = first; i < findings.size(); ++i) {
            receipt_finding& gap = findings[i];
            bool meets = false;
            for (const receipt_part* each : region.expected)
                meets = meets || intersection(each->box, gap.box).extent.elements() != 0;
            if (meets) gap.other_box = gap.other_box == tensor_box{} ? box : around(gap.other_box, box);
        }
    }

    /// One part of each box, so that together they have the expected bits; empty if there are none among the first
    /// 4096 choices.
    part_list right_choice(const comparable_region& region) const
    {
        const digest_state wanted = state_of(region.expected, types_[0].expected);
        part_list choice = region.first_found();
        for (int tries = 0; tries < 4096; ++tries) {
            if (same_bits(wanted, state_of(choice, types_[0].found))) return choice;
            std::size_t i = 0; // the next choice, as a counter has the next number
            for (; i < choice.size() && ++choice[i] == region.found[i].end(); ++i)
                choice[i] = region.found[i].begin();
            if (i == choice.size()) break;
        }
        return {};
    }

    /// Names the replicas that are wrong. Returns false if the region differs, and more is to be said of it.
    bool compare_replicas(const comparable_region& region)
    {
        const part_list right = right_choice(region);
        for (std::size_t at = 0; at < region.found.size(); ++at) {
            const box_parts& replicas = region.found[at];
            if (replicas.count() == 1) continue;
            receipt_finding finding = about(receipt_problem::replicas_differ, *expected_);
            finding.box = replicas[0].box;
            for (const receipt_part& part : replicas) {
                add_ranks(finding.ranks, part.ranks);
                if (!right.empty() && right[at] != &part) name_parts({}, {&part});
            }
            if (right.empty()) findings.push_back(finding);
        }
        return !right.empty() || (region.found.size() == 1 && region.found[0].count() > 1);
    }

    /// What is wrong with a region that differs. Of its parts it is not known which ones are wrong.
    void name_region(const comparable_region& region)
    {
        part_list parts;
        for (const box_parts& replicas : region.found)
            for (const receipt_part& each : replicas) parts.push_back(&each);
        if (parts.size() == region.found.size()) name_parts(region.expected, parts);
        else findings.push_back(about_parts(parts)); // with replicas
    }
    void name_parts(const part_list& wanted, const part_list& parts)
    {
        if (!name_problem(wanted, parts)) findings.push_back(about_parts(parts));
    }
    receipt_finding about_parts(const part_list& parts) const
    {
        receipt_finding finding = about(receipt_problem::altered, *expected_);
        finding.box = box_around(parts);
        for (const receipt_part* each : parts) add_ranks(finding.ranks, each->ranks);
        return finding;
    }

    /// Appends a finding if the bits of a region are known. `wanted`: the expected parts of the region, or empty.
    bool name_problem(const part_list& wanted, const part_list& parts)
    {
        receipt_finding finding = about_parts(parts);
        const digest_state bits = state_of(parts, -1);
        const bool zeros = bits.first == 0 && bits.second == 0;
        if (zeros) finding.problem = receipt_problem::zeros;
        const bool known = is_other_rounding(finding, wanted, parts) || zeros || is_stale(finding, parts)
            || is_moved(finding, parts);
        if (known) findings.push_back(finding);
        return known;
    }

    bool is_other_rounding(receipt_finding& finding, const part_list& wanted, const part_list& parts) const
    {
        for (std::size_t i = 1; !wanted.empty() && i < types_.size(); ++i) {
            const auto [of_expected, of_found] = types_[i];
            if (!same_bits(state_of(wanted, of_expected), state_of(parts, of_found))) continue;
            finding.problem = receipt_problem::other_rounding;
            finding.cast = of_expected >= 0 ? expected_->casts[static_cast<std::size_t>(of_expected)]
                                            : found_->casts[static_cast<std::size_t>(of_found)];
            return true;
        }
        return false;
    }

    bool is_stale(receipt_finding& finding, const part_list& parts) const
    {
        for (const receipt& old : older_) {
            const receipt_tensor* const tensor = old.find(finding.tensor);
            if (tensor == nullptr || tensor->shape != found_->shape) continue;
            for (const auto& [of_old, cast] : comparable_types(*tensor, *found_)) {
                bool is_compared = false;
                for (const same_type& type : types_) is_compared = is_compared || type.found == cast;
                if (!is_compared) continue;
                const auto before = state_of_region(*tensor, parts, of_old);
                if (!before || !same_bits(*before, state_of(parts, cast))) continue;
                finding.problem = receipt_problem::stale;
                finding.found_step = old.step;
                return true;
            }
        }
        return false;
    }

    /// Of casts, digests of contents are known of whole tensors alone.
    bool is_moved(receipt_finding& finding, const part_list& parts) const
    {
        const bool whole = elements_of(parts) == found_->shape.elements();
        for (const same_type& type : types_) {
            const int cast = type.found;
            if (!whole && (parts.size() > 1 || cast >= 0)) continue;
            const std::uint64_t content = whole ? state_of(parts, cast).finish() : parts[0]->content;
            const std::string_view of = cast < 0 ? std::string_view(found_->type)
                                                 : name(found_->casts[static_cast<std::size_t>(cast)].type);
            auto at = std::lower_bound(contents_.begin(), contents_.end(), content,
                [](const known_content& a, std::uint64_t wanted) { return a.content < wanted; });
            for (; at != contents_.end() && at->content == content; ++at) {
                if (at->type != of || at->box.extent != finding.box.extent) continue;
                finding.problem = receipt_problem::moved;
                finding.other = at->tensor->name;
                finding.other_box = at->box;
                return true;
            }
        }
        return false;
    }

    view<const receipt> older_;
    std::vector<known_content> contents_; ///< of what is expected, by digest
    const receipt_tensor* expected_ = nullptr; ///< under comparison
    const receipt_tensor* found_ = nullptr;
    std::vector<same_type> types_; ///< of the two
};

} // namespace detail

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

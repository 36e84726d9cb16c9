// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/replica/receipt.hpp>

/// One receipt against another.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The digest of some bits, and where they belong.
struct known_content {
    std::uint64_t content;
    const receipt_tensor* tensor;
    tensor_box box;
};

/// Which digests of two receipts are of the same type: -1 that of the tensor itself, else a cast.
struct same_type {
    int expected = -1;
    int found = -1;
};

inline const digest_state& state_of(const receipt_part& part, int cast) noexcept
{
    return cast < 0 ? part.state : part.casts[static_cast<std::size_t>(cast)];
}

inline tensor_box whole_box(const receipt_tensor& of) noexcept
{
    tensor_box box{of.shape, of.shape};
    for (std::uint64_t& each : box.first.size) each = 0;
    return box;
}

/// The state of a region of `elements` elements, given as boxes without common elements, if some parts tile it.
COLLPROBE_COLD_INLINE std::optional<digest_state> state_of_region(
    const receipt_tensor& of, const std::vector<tensor_box>& region, std::uint64_t elements)
{
    digest_state state;
    std::uint64_t covered = 0;
    bool whole_parts = true;
    for_each_cell(of, [&](std::size_t first, std::size_t end) {
        const receipt_part& part = of.parts[first];
        std::uint64_t common = 0;
        for (const tensor_box& box : region) common += intersection(box, part.box).extent.elements();
        if (common == 0) return;
        whole_parts = whole_parts && end == first + 1 && common == part.box.extent.elements();
        covered += common;
        state.merge(part.state);
    });
    if (!whole_parts || covered != elements) return {};
    return state;
}

/// Boxes that both receipts can tell as a whole: some parts of the one have the same elements as some of the other.
struct comparable_boxes {
    std::vector<const receipt_part*> expected;
    std::vector<std::pair<std::size_t, std::size_t>> found; ///< runs of parts with the same box
};

/// The finest ones: parts with common elements belong together.
COLLPROBE_COLD_INLINE std::vector<comparable_boxes> find_comparable(
    const receipt_tensor& expected, const receipt_tensor& found)
{
    std::vector<std::pair<std::size_t, std::size_t>> cells;
    for_each_cell(found, [&](std::size_t first, std::size_t end) { cells.emplace_back(first, end); });
    const std::size_t own = expected.parts.size();
    std::vector<std::size_t> group(own + cells.size());
    for (std::size_t i = 0; i < group.size(); ++i) group[i] = i;
    const auto root = [&](std::size_t i) {
        while (group[i] != i) i = group[i] = group[group[i]];
        return i;
    };
    for (std::size_t i = 0; i < own; ++i) {
        for (std::size_t k = 0; k < cells.size(); ++k) {
            const tensor_box& other = found.parts[cells[k].first].box;
            if (intersection(expected.parts[i].box, other).extent.elements() != 0) group[root(i)] = root(own + k);
        }
    }
    std::vector<comparable_boxes> all;
    std::vector<std::size_t> place(group.size(), ~std::size_t{0});
    for (std::size_t i = 0; i < group.size(); ++i) {
        std::size_t& at = place[root(i)];
        if (at == ~std::size_t{0}) {
            at = all.size();
            all.emplace_back();
        }
        if (i < own) all[at].expected.push_back(&expected.parts[i]);
        else all[at].found.push_back(cells[i - own]);
    }
    return all;
}

class receipt_verifier {
public:
    receipt_verifier(const receipt& expected, view<const receipt> older) : older_(older)
    {
        for (const receipt_tensor& tensor : expected.tensors()) {
            if (tensor.parts.empty()) continue;
            contents_.push_back({tensor.whole().finish(), &tensor, whole_box(tensor)});
            for (const receipt_part& part : tensor.parts) {
                if (tensor.parts.size() > 1) contents_.push_back({part.content, &tensor, part.box});
            }
        }
        std::stable_sort(contents_.begin(), contents_.end(),
            [](const known_content& a, const known_content& b) { return a.content < b.content; });
    }

    void compare(const receipt_tensor& expected, const receipt_tensor& found)
    {
        if (expected.shape != found.shape) {
            receipt_finding finding = about(receipt_problem::other_shape, expected);
            finding.other = shape_text(found.shape);
            findings.push_back(finding);
            return;
        }
        const std::vector<same_type> types = comparable_types(expected, found);
        if (types.empty()) {
            receipt_finding finding = about(receipt_problem::other_type, expected);
            finding.other = found.type;
            findings.push_back(finding);
            return;
        }
        const std::size_t before = findings.size();
        if (!find_gaps_of(found, findings) && findings.back().problem == receipt_problem::overlap) return;
        digest_state all_expected, all_found;
        for (const receipt_part& each : expected.parts) all_expected.merge(state_of(each, types[0].expected));
        for (const receipt_part& each : found.parts) all_found.merge(state_of(each, types[0].found));
        if (findings.size() == before && same_bits(all_expected, all_found)) return; // replicas would add bytes
        for (const comparable_boxes& boxes : find_comparable(expected, found)) {
            std::uint64_t of_expected = 0;
            std::uint64_t of_found = 0;
            for (const receipt_part* each : boxes.expected) of_expected += each->box.extent.elements();
            for (const auto& cell : boxes.found) of_found += found.parts[cell.first].box.extent.elements();
            if (of_expected == of_found) compare_boxes(expected, found, boxes, types); // else there is a gap
        }
    }

    std::vector<receipt_finding> findings;

private:
    /// The first one is what is stated, the others tell that the rounding is another.
    static std::vector<same_type> comparable_types(const receipt_tensor& expected, const receipt_tensor& found)
    {
        std::vector<same_type> types;
        if (expected.type == found.type) return {{}};
        for (std::size_t i = 0; i < expected.casts.size(); ++i)
            if (name(expected.casts[i].type) == found.type) types.push_back({static_cast<int>(i), -1});
        for (std::size_t i = 0; i < found.casts.size(); ++i)
            if (name(found.casts[i].type) == expected.type) types.push_back({-1, static_cast<int>(i)});
        return types;
    }

    /// What is found, if of the runs of replicas the one at `at` is taken by its part `part`.
    static digest_state found_state(const receipt_tensor& found, const comparable_boxes& boxes, int cast,
        std::size_t at = ~std::size_t{0}, std::size_t part = 0)
    {
        digest_state state;
        for (std::size_t i = 0; i < boxes.found.size(); ++i)
            state.merge(state_of(found.parts[i == at ? part : boxes.found[i].first], cast));
        return state;
    }

    void compare_boxes(const receipt_tensor& expected, const receipt_tensor& found, const comparable_boxes& boxes,
        const std::vector<same_type>& types)
    {
        const auto expected_state = [&](const same_type& type) {
            digest_state state;
            for (const receipt_part* each : boxes.expected) state.merge(state_of(*each, type.expected));
            return state;
        };
        std::vector<std::size_t> several; // runs of parts with the same box
        for (std::size_t i = 0; i < boxes.found.size(); ++i)
            if (boxes.found[i].second - boxes.found[i].first > 1) several.push_back(i);
        const digest_state wanted = expected_state(types[0]);
        if (several.size() == 1) {
            const auto& run = boxes.found[several[0]];
            bool any = false;
            for (std::size_t part = run.first; part < run.second; ++part)
                any = any || same_bits(wanted, found_state(found, boxes, types[0].found, several[0], part));
            for (std::size_t part = run.first; any && part < run.second; ++part) {
                if (!same_bits(wanted, found_state(found, boxes, types[0].found, several[0], part)))
                    name_part(expected, found, found.parts[part], types[0], true);
            }
            if (any) return;
        }
        for (const std::size_t at : several) {
            receipt_finding finding = about(receipt_problem::replicas_differ, expected);
            finding.box = found.parts[boxes.found[at].first].box;
            for (std::size_t i = boxes.found[at].first; i < boxes.found[at].second; ++i)
                add_ranks(finding, found.parts[i]);
            findings.push_back(finding);
        }
        if (!several.empty() || same_bits(wanted, found_state(found, boxes, types[0].found))) return;
        name_boxes(expected, found, boxes, types, expected_state);
    }

    /// What is wrong with boxes that differ: of all together, if it can be told, else of single parts.
    template <class State>
    void name_boxes(const receipt_tensor& expected, const receipt_tensor& found, const comparable_boxes& boxes,
        const std::vector<same_type>& types, const State& expected_state)
    {
        receipt_finding finding = about(receipt_problem::altered, expected);
        std::vector<tensor_box> region;
        std::uint64_t elements = 0;
        for (const receipt_part* each : boxes.expected) {
            region.push_back(each->box);
            elements += each->box.extent.elements();
        }
        finding.box = around(region);
        for (const auto& cell : boxes.found) add_ranks(finding, found.parts[cell.first]);
        for (std::size_t i = 1; i < types.size(); ++i) {
            if (!same_bits(expected_state(types[i]), found_state(found, boxes, types[i].found))) continue;
            finding.problem = receipt_problem::other_rounding;
            finding.cast = types[i].expected >= 0 ? expected.casts[static_cast<std::size_t>(types[i].expected)]
                                                  : found.casts[static_cast<std::size_t>(types[i].found)];
            findings.push_back(finding);
            return;
        }
        const digest_state state = found_state(found, boxes, -1);
        if (boxes.found.size() == 1) {
            name_part(expected, found, found.parts[boxes.found[0].first], types[0], true);
            return;
        }
        const bool all = elements == expected.shape.elements();
        if (name_problem(finding, found, types[0], state, all ? state.finish() : 0, all, region)) return;
        bool named = false;
        for (const auto& cell : boxes.found)
            named = name_part(expected, found, found.parts[cell.first], types[0], false) || named;
        if (!named) findings.push_back(finding);
    }

    /// Returns false if it appends nothing: if it knows no more than that the part differs, and `anyway` is false.
    bool name_part(const receipt_tensor& expected, const receipt_tensor& found, const receipt_part& part,
        const same_type& type, bool anyway)
    {
        receipt_finding finding = about(receipt_problem::altered, expected);
        finding.box = part.box;
        finding.ranks = part.ranks;
        if (name_problem(finding, found, type, part.state, part.content, true, {part.box})) return true;
        if (anyway) findings.push_back(finding);
        return anyway;
    }

    /// Appends the finding if the state of a region is one that is known.
    bool name_problem(receipt_finding& finding, const receipt_tensor& found, const same_type& type,
        const digest_state& state, std::uint64_t content, bool has_content, const std::vector<tensor_box>& region)
    {
        if (state.first == 0 && state.second == 0) {
            finding.problem = receipt_problem::zeros;
            findings.push_back(finding);
            return true;
        }
        std::uint64_t elements = 0;
        for (const tensor_box& each : region) elements += each.extent.elements();
        for (const receipt& old : older_) {
            const receipt_tensor* const tensor = old.find(finding.tensor);
            if (tensor == nullptr || tensor->shape != found.shape || tensor->type != found.type) continue;
            const std::optional<digest_state> before = state_of_region(*tensor, region, elements);
            if (!before || !same_bits(*before, state)) continue;
            finding.problem = receipt_problem::stale;
            finding.found_step = old.step;
            findings.push_back(finding);
            return true;
        }
        if (!has_content || type.expected >= 0 || type.found >= 0) return false;
        const auto less = [](const known_content& a, const known_content& b) { return a.content < b.content; };
        const known_content wanted{content, nullptr, {}};
        const auto [first, end] = std::equal_range(contents_.begin(), contents_.end(), wanted, less);
        for (auto at = first; at != end; ++at) {
            if (at->tensor->type != found.type || at->box.extent != finding.box.extent) continue;
            finding.problem = receipt_problem::moved;
            finding.other = at->tensor->name;
            finding.other_box = at->box;
            findings.push_back(finding);
            return true;
        }
        return false;
    }

    static void add_ranks(receipt_finding& to, const receipt_part& of)
    {
        std::vector<int> all;
        std::set_union(
            to.ranks.begin(), to.ranks.end(), of.ranks.begin(), of.ranks.end(), std::back_inserter(all));
        to.ranks = std::move(all);
    }

    /// The smallest box around all.
    static tensor_box around(const std::vector<tensor_box>& region)
    {
        tensor_box box = region.front();
        for (const tensor_box& each : region) {
            for (int d = 0; d < box.first.dimensions; ++d) {
                const std::uint64_t end = std::max(
                    box.first.size[d] + box.extent.size[d], each.first.size[d] + each.extent.size[d]);
                box.first.size[d] = std::min(box.first.size[d], each.first.size[d]);
                box.extent.size[d] = end - box.first.size[d];
            }
        }
        return box;
    }

    view<const receipt> older_;
    std::vector<known_content> contents_; ///< of what is expected, by digest
};

} // namespace collprobe::detail

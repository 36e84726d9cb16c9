// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <collprobe/detail/printable.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/report/words.hpp>

#include "answer.hpp"

/// The answer as a screen of tables, as JSON lines and as CSV.
namespace summation {

using collprobe::report::short_number;

/// "linear, ring and 5 more"
inline std::string orders_text(const std::vector<order_choice>& orders, std::size_t most)
{
    std::string all;
    const std::size_t shown = orders.size() > most ? most - 1 : orders.size();
    for (std::size_t i = 0; i < shown; ++i) all += (i == 0 ? "" : ", ") + orders[i].text();
    return shown == orders.size() ? all : all + " and " + std::to_string(orders.size() - shown) + " more";
}

/// Methods of one accumulation whose sums have the same bits for every number of ranks and every permutation: one line of
/// a table. Only times can tell them apart.
struct alike_methods {
    std::size_t first = 0; ///< the fastest of them
    std::vector<order_choice> orders;
};

inline std::vector<alike_methods> alike(const answer& of)
{
    const auto same = [&](std::size_t a, std::size_t b) {
        const accumulation in = of.asked.methods[a].in;
        return in == of.asked.methods[b].in && in != accumulation::native && of.same_everywhere(a, b);
    };
    std::vector<alike_methods> all;
    for (std::size_t m = 0; m < of.asked.methods.size(); ++m) {
        const auto at = std::find_if(all.begin(), all.end(), [&](const auto& each) { return same(each.first, m); });
        if (at == all.end()) {
            all.push_back({m, {of.asked.methods[m].order}});
            continue;
        }
        at->orders.push_back(of.asked.methods[m].order);
        if (of.table()[m].nanoseconds < of.table()[at->first].nanoseconds) at->first = m;
    }
    return all;
}

inline std::string line_name(const answer& of, const alike_methods& line)
{
    const accumulation in = of.asked.methods[line.first].in;
    if (in == accumulation::exact) return "exact";
    if (line.orders.size() == 1) return text(of.asked.methods[line.first]);
    return std::string(collprobe::name(in)) + ' '
        + (line.orders.size() == of.asked.methods.size() ? "all" : orders_text(line.orders, 2));
}

/// A number that may be undefined.
inline std::string number_or_dash(const std::string& text, double value) { return is_nan(value) ? "-" : text; }

inline std::string method_table(const answer& of)
{
    collprobe::report::text_table table;
    table.row("method").cell("differ").cell("median ulp").cell("99.9 %").cell("largest").cell("at element")
        .cell("relative error").cell("bias").cell("overflow").cell("ns an element");
    for (const alike_methods& line : alike(of)) {
        const method_measures& own = of.table()[line.first];
        table.row(line_name(of, line)).cell(percent(own.differ, of.counted()))
            .cell(std::to_string(own.distances.quantile(0.5))).cell(std::to_string(own.distances.quantile(0.999)))
            .cell(std::to_string(own.largest.ulp))
            .cell(own.largest.found ? std::to_string(own.largest.index) : "-")
            .cell(number_or_dash(short_number(own.relative_error()), own.relative_error()))
            .cell(number_or_dash(number_text("%+.1f", own.bias()), own.bias()))
            .cell(std::to_string(own.overflows)).cell(number_text("%.2f", of.per_element(line.first)));
    }
    return table.text();
}

/// The terms of the element with the largest error of all methods.
inline std::string worst_text(const answer& of)
{
    std::size_t worst = 0;
    for (std::size_t m = 0; m < of.worst.size(); ++m) {
        if (of.table()[m].largest.ulp > of.table()[worst].largest.ulp) worst = m;
    }
    const worst_element& element = of.worst[worst];
    if (element.terms.empty()) return {};
    const char* const format = of.type == element_type::float64 ? "%.17g" : "%.9g"; // so that other numbers look other
    std::string terms;
    constexpr std::size_t most = 8;
    for (std::size_t k = 0; k < std::min(most, element.terms.size()); ++k) {
        terms += (k == 0 ? "" : " + ") + number_text(format, element.terms[k]);
    }
    if (element.terms.size() > most) terms += " + ... (" + std::to_string(element.terms.size()) + " terms)";
    return "largest error in ulp, " + text(of.asked.methods[worst]) + ", element "
        + std::to_string(of.table()[worst].largest.index) + ": " + terms + "\n    gave "
        + number_text(format, element.result) + "; correctly rounded " + number_text(format, element.right) + "\n";
}

/// A, B, ... Z, A1, ...
inline std::string letter(std::size_t group)
{
    const std::string one(1, static_cast<char>('A' + group % 26));
    return group < 26 ? one : one + std::to_string(group / 26);
}

inline std::string agreement_table(const answer& of)
{
    const auto groups = of.groups();
    std::string all;
    for (std::size_t g = 0; g < groups.size(); ++g) {
        std::string members;
        for (std::size_t k = 0; k < groups[g].size();) {
            const accumulation in = of.asked.methods[groups[g][k]].in;
            std::vector<order_choice> orders;
            for (; k < groups[g].size() && of.asked.methods[groups[g][k]].in == in; ++k) {
                orders.push_back(of.asked.methods[groups[g][k]].order);
            }
            members += (members.empty() ? "" : "; ") + std::string(collprobe::name(in))
                + (in == accumulation::exact ? "" : ' ' + orders_text(orders, 4));
        }
        all += letter(g) + "  " + members + "\n";
    }
    if (groups.size() < 2) return all;
    collprobe::report::text_table table;
    constexpr std::size_t most = 14;
    const std::size_t shown = std::min(groups.size(), most);
    table.row("elements that differ");
    for (std::size_t g = 1; g < shown; ++g) table.cell(letter(g));
    for (std::size_t a = 0; a + 1 < shown; ++a) {
        table.row(letter(a));
        for (std::size_t b = 1; b < shown; ++b) {
            table.cell(b <= a ? "" : percent(of.different(groups[a][0], groups[b][0]), of.counted()));
        }
    }
    all += '\n' + table.text();
    if (shown < groups.size()) all += "(" + collprobe::report::detail::counted(groups.size() - shown, "further group") + ": --json)\n";
    return all;
}

inline std::string ranks_table(const answer& of)
{
    collprobe::report::text_table table;
    table.row("elements changed (largest ulp)");
    for (std::size_t r = 1; r < of.asked.ranks.size(); ++r) {
        table.cell(std::to_string(of.asked.ranks[r - 1]) + " -> " + std::to_string(of.asked.ranks[r]));
    }
    for (const alike_methods& line : alike(of)) {
        table.row(line_name(of, line));
        for (const auto& changes : of.found.changes) {
            const difference& own = changes[line.first];
            table.cell(own.changed == 0 ? "0"
                                        : percent(own.changed, of.counted()) + " (" + std::to_string(own.largest.ulp) + ")");
        }
    }
    return table.text();
}

inline std::string permutation_table(const answer& of)
{
    collprobe::report::text_table table;
    table.row("method").cell("elements with several results").cell("results an element, mean").cell("most")
        .cell("largest spread, ulp").cell("at element");
    for (const alike_methods& line : alike(of)) {
        const permutation_measures& own = of.found.permuted[line.first];
        const double mean = own.elements == 0 ? 0 : static_cast<double>(own.distinct) / static_cast<double>(own.elements);
        table.row(line_name(of, line)).cell(percent(own.changed, own.elements)).cell(number_text("%.2f", mean))
            .cell(std::to_string(own.most_distinct)).cell(std::to_string(own.spread.ulp))
            .cell(own.spread.found ? std::to_string(own.spread.index) : "-");
    }
    return table.text();
}

/// What was left out of the numbers; empty if nothing was.
inline std::string left_out_text(const answer& of)
{
    std::string all;
    if (of.found.not_finite != 0) {
        all += collprobe::report::detail::counted(of.found.not_finite, "element")
            + (of.rounded ? std::string(", rounded to ") + collprobe::name(of.type) + ',' : std::string())
            + (of.found.not_finite == 1 ? " has" : " have") + " NaN or infinity, the first in '"
            + detail::printable(of.first_bad_row)
            + "' at element " + std::to_string(of.found.first_not_finite.element) + ": left out\n";
    }
    if (of.found.too_large != 0) {
        all += collprobe::report::detail::counted(of.found.too_large, "element")
            + (of.found.too_large == 1 ? " has a sum" : " have sums") + " beyond the largest number of the type: left out\n";
    }
    return all;
}

/// Lines of at most 116 bytes.
inline std::string wrapped(const std::string& text)
{
    std::string all;
    std::size_t length = 0;
    for (std::size_t first = 0; first < text.size();) {
        const std::size_t end = std::min(text.find(' ', first), text.size());
        if (length != 0) all += length + 1 + end - first > 116 ? '\n' : ' ';
        length = all.empty() || all.back() == '\n' ? end - first : length + 1 + end - first;
        all += text.substr(first, end - first);
        first = end + 1;
    }
    return all + '\n';
}

inline std::string screen(const answer& of)
{
    const int ranks = of.asked.ranks.back();
    std::string all = "# summation_order: " + (of.leaves ? std::to_string(of.rows) + " leaves on " : std::string())
        + std::to_string(ranks) + " ranks, " + collprobe::report::detail::counted(of.elements, "element") + " of " + collprobe::name(of.type)
        + ", from " + detail::printable(of.what) + "\n" + left_out_text(of);
    all += "\nby method, against the correctly rounded sum (bias: mean error over its standard error)\n\n" + method_table(of)
        + worst_text(of) + "\nwhich agree in every bit\n\n" + agreement_table(of);
    if (of.asked.ranks.size() > 1) all += "\nby number of ranks, the same rows dealt to them\n\n" + ranks_table(of);
    if (of.asked.permutations > 0) {
        all += "\nover " + collprobe::report::detail::counted(static_cast<std::uint64_t>(of.asked.permutations), "permutation")
            + " of the ranks\n\n" + permutation_table(of);
    }
    return all + '\n' + wrapped(conclusion(of));
}

/// Objects, one a line, with a member `kind`: input, method (for each number of ranks), pair, change, permutations,
/// conclusion.
inline std::string json_lines(const answer& of)
{
    std::string out;
    const auto line = [&](const char* kind, auto members) {
        collprobe::report::detail::json_writer json(out);
        json.open('{').key("kind").text(kind);
        members(json);
        json.close('}');
        out += '\n';
    };
    const auto order_number = [&](auto& json, const std::string& key, std::size_t m, int ranks) {
        const order_choice& own = of.asked.methods[m].order;
        if (own.entry().has_number) json.key(key).integer(static_cast<std::uint64_t>(own.number_for(ranks)));
    };
    const auto describe = [&](auto& json, std::size_t m, int ranks, const std::string& prefix = "") {
        const method& own = of.asked.methods[m];
        json.key(prefix + "order").text(own.order.word());
        order_number(json, prefix + "order_number", m, ranks);
        json.key(prefix + "accumulation").text(collprobe::name(own.in));
    };
    const auto number = [](auto& json, const char* key, double value) { // absent where there is none, or beyond double
        if (is_finite(value)) json.key(key).number(value);
    };
    const auto integer = [](auto& json, const char* key, auto value) {
        json.key(key).integer(static_cast<std::uint64_t>(value));
    };
    line("input", [&](auto& json) {
        json.key("from").text(of.what).key("type").text(collprobe::name(of.type));
        integer(json, "rows", of.rows);
        integer(json, "elements", of.elements);
        integer(json, "not_finite", of.found.not_finite);
        if (of.found.not_finite != 0) {
            json.key("first_not_finite").text(of.first_bad_row);
            integer(json, "first_not_finite_index", of.found.first_not_finite.element);
        }
        integer(json, "sums_too_large", of.found.too_large);
        number(json, "noise", of.noise().value());
    });
    for (std::size_t r = 0; r < of.asked.ranks.size(); ++r) {
        const bool last = r + 1 == of.asked.ranks.size();
        for (std::size_t m = 0; m < of.asked.methods.size(); ++m) {
            const method_measures& own = of.found.by_ranks[r][m];
            line("method", [&](auto& json) {
                json.key("type").text(collprobe::name(of.type));
                describe(json, m, of.asked.ranks[r]);
                integer(json, "ranks", of.asked.ranks[r]);
                integer(json, "elements", of.elements);
                integer(json, "differ", own.differ);
                integer(json, "median_ulp", own.distances.quantile(0.5));
                integer(json, "ulp_99_9", own.distances.quantile(0.999));
                integer(json, "largest_ulp", own.largest.ulp);
                integer(json, "largest_index", own.largest.index);
                number(json, "relative_error", own.relative_error());
                number(json, "bias", own.bias());
                integer(json, "overflows", own.overflows);
                json.key("ns_per_element").number(own.nanoseconds / static_cast<double>(of.elements));
                json.key("digest").bits(own.digest());
                if (!last) return;
                number(json, "error_over_noise", of.error_over_noise(m));
                if (of.worst[m].terms.empty()) return;
                json.key("largest_terms").numbers(of.worst[m].terms).key("largest_result").number(of.worst[m].result)
                    .key("largest_right").number(of.worst[m].right);
            });
        }
    }
    for (std::size_t a = 0; a < of.asked.methods.size(); ++a) {
        for (std::size_t b = a + 1; b < of.asked.methods.size(); ++b) {
            line("pair", [&](auto& json) {
                json.key("type").text(collprobe::name(of.type));
                describe(json, a, of.asked.ranks.back());
                describe(json, b, of.asked.ranks.back(), "other_");
                integer(json, "ranks", of.asked.ranks.back());
                integer(json, "differ", of.different(a, b));
            });
        }
    }
    for (std::size_t r = 0; r < of.found.changes.size(); ++r) {
        for (std::size_t m = 0; m < of.asked.methods.size(); ++m) {
            const difference& own = of.found.changes[r][m];
            line("change", [&](auto& json) {
                json.key("type").text(collprobe::name(of.type));
                describe(json, m, of.asked.ranks[r + 1]);
                order_number(json, "from_order_number", m, of.asked.ranks[r]);
                integer(json, "from_ranks", of.asked.ranks[r]);
                integer(json, "ranks", of.asked.ranks[r + 1]);
                integer(json, "changed", own.changed);
                integer(json, "largest_ulp", own.largest.ulp);
                integer(json, "largest_index", own.largest.index);
            });
        }
    }
    for (std::size_t m = 0; of.asked.permutations > 0 && m < of.asked.methods.size(); ++m) {
        const permutation_measures& own = of.found.permuted[m];
        line("permutations", [&](auto& json) {
            json.key("type").text(collprobe::name(of.type));
            describe(json, m, of.asked.ranks.back());
            integer(json, "ranks", of.asked.ranks.back());
            integer(json, "permutations", of.asked.permutations);
            integer(json, "changed", own.changed);
            integer(json, "distinct", own.distinct);
            integer(json, "most_distinct", own.most_distinct);
            integer(json, "largest_ulp", own.spread.ulp);
            integer(json, "largest_index", own.spread.index);
        });
    }
    line("conclusion", [&](auto& json) { json.key("text").text(conclusion(of)); });
    return out;
}

inline std::string csv(const answer& of)
{
    std::string out = "type,order,accumulation,ranks,elements,differ,median_ulp,ulp_99_9,largest_ulp,largest_index,"
                      "relative_error,bias,overflows,ns_per_element,digest\n";
    for (std::size_t r = 0; r < of.asked.ranks.size(); ++r) {
        for (std::size_t m = 0; m < of.asked.methods.size(); ++m) {
            const method_measures& own = of.found.by_ranks[r][m];
            out += std::string(collprobe::name(of.type)) + ',' + of.asked.methods[m].order.text() + ','
                + collprobe::name(of.asked.methods[m].in);
            for (const std::uint64_t each : {static_cast<std::uint64_t>(of.asked.ranks[r]), of.elements, own.differ,
                     own.distances.quantile(0.5), own.distances.quantile(0.999), own.largest.ulp, own.largest.index}) {
                out += ',' + std::to_string(each);
            }
            const auto number = [](const char* format, double value) { // empty where it does not exist
                return is_nan(value) ? std::string() : number_text(format, value);
            };
            out += ',' + number("%.9g", own.relative_error()) + ',' + number("%.6g", own.bias()) + ','
                + std::to_string(own.overflows) + ','
                + number_text("%.4g", own.nanoseconds / static_cast<double>(of.elements)) + ','
                + detail::hexadecimal(own.digest()) + '\n';
        }
    }
    return out;
}

} // namespace summation

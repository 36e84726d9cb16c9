// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <collprobe/report/words.hpp>

namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// A table in a box that scrolls. Texts are escaped here.
class table_writer {
public:
    /// A heading that begins with ">" is of numbers, aligned right.
    table_writer(
        std::string& out, const char* label, const std::vector<std::string>& headings, const char* style = "")
        : out_(out)
    {
        out_ += std::string("<div class=\"scroll ") + style
            + "\" role=\"region\" tabindex=\"0\" aria-label=\"" + html_text(label) + "\"><table><thead><tr>";
        for (const std::string& heading : headings) {
            is_number_.push_back(heading[0] == '>');
            out_ += std::string(is_number_.back() ? "<th class=\"n\"" : "<th") + " scope=\"col\">"
                + html_text(std::string_view(heading).substr(is_number_.back() ? 1 : 0)) + "</th>";
        }
        out_ += "</tr></thead><tbody>";
    }
    table_writer(const table_writer&) = delete;
    table_writer& operator=(const table_writer&) = delete;
    ~table_writer() { out_ += std::string(column_ == 0 ? "" : "</tr>") + "</tbody></table></div>\n"; }

    /// Cells fill rows from left to right. The first of a row is its heading.
    void cell(std::string_view text) { raw(html_text(text)); }
    void raw(const std::string& markup)
    {
        if (column_ == is_number_.size()) {
            out_ += "</tr>";
            column_ = 0;
        }
        const char* const tag = column_ == 0 ? "th" : "td";
        if (column_ == 0) out_ += "<tr>";
        out_ += std::string("<") + tag + (column_ == 0 ? " scope=\"row\"" : "")
            + (is_number_[column_] ? " class=\"n\">" : ">") + markup + "</" + tag + '>';
        ++column_;
    }

private:
    std::string& out_;
    std::vector<bool> is_number_;
    std::size_t column_ = 0;
};

} // namespace collprobe::inline COLLPROBE_ABI::report::detail

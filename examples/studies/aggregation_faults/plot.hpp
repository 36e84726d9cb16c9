// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <collprobe/report/table.hpp>

#include "../digits/svg.hpp"
#include "options.hpp"
#include "report.hpp"

namespace aggregation_faults {

using trainer::svg::at;
using trainer::svg::stroke;
using trainer::svg::words;

/// Accuracy over sigma^2 as an SVG picture, a panel for each number of ranks.
class accuracy_picture {
public:
    accuracy_picture(const std::vector<run_result>& runs, const options& given) : runs_(runs), given_(given)
    {
        low_ = high_ = std::log10(given.sigma2.front());
        for (const double sigma2 : given.sigma2) {
            low_ = std::fmin(low_, std::log10(sigma2));
            high_ = std::fmax(high_, std::log10(sigma2));
        }
        if (high_ - low_ < 1e-9) high_ = low_ + 1;
    }

    std::string text() const
    {
        std::string out;
        double left = 60;
        for (const int ranks : given_.ranks) {
            out += panel(ranks, left);
            left += width + 70;
        }
        std::size_t line = 0;
        for (const run_plan& plan : rows_of(runs_, given_.ranks.front())) {
            const double y = 40 + 20 * static_cast<double>(line);
            out += "<line x1='" + at(left) + "' y1='" + at(y) + "' x2='" + at(left + 24) + "' y2='" + at(y) + "' "
                + stroke(line) + "/>\n" + words(left + 32, y + 4, "start", label(plan));
            ++line;
        }
        return trainer::svg::document(left + 190, height + 90, out);
    }

private:
    static constexpr double width = 300;
    static constexpr double height = 260;
    static constexpr double top = 30;

    double x_of(double left, double sigma2) const { return left + width * (std::log10(sigma2) - low_) / (high_ - low_); }
    static double y_of(double percent) { return top + height * (1 - percent / 100); }

    std::string panel(int ranks, double left) const
    {
        std::string out = words(left + width / 2, top - 10, "middle", std::to_string(ranks) + " ranks: test accuracy, %");
        for (int percent = 0; percent <= 100; percent += 20) {
            const double y = y_of(percent);
            out += "<line x1='" + at(left) + "' y1='" + at(y) + "' x2='" + at(left + width) + "' y2='" + at(y)
                + "' stroke='#dddddd'/>\n" + words(left - 6, y + 4, "end", std::to_string(percent));
        }
        for (const double sigma2 : given_.sigma2) {
            out += words(x_of(left, sigma2), top + height + 18, "middle", collprobe::report::short_number(sigma2));
        }
        out += words(left + width / 2, top + height + 38, "middle", "variance of the noise in each rank's gradient");
        std::size_t line = 0;
        for (const run_plan& plan : rows_of(runs_, ranks)) {
            std::string points;
            for (const double sigma2 : given_.sigma2) {
                points += at(x_of(left, sigma2)) + "," + at(y_of(median(cell_of(runs_, plan, sigma2), accuracy_of))) + " ";
            }
            out += "<polyline points='" + points + "' " + stroke(line++) + "/>\n";
        }
        return out;
    }

    const std::vector<run_result>& runs_;
    const options& given_;
    double low_ = 0;
    double high_ = 0;
};

inline std::string accuracy_plot(const std::vector<run_result>& runs, const options& given)
{
    return accuracy_picture(runs, given).text();
}

} // namespace aggregation_faults

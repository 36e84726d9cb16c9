// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../digits/svg.hpp"
#include "options.hpp"
#include "report.hpp"

namespace quantised_training {

using trainer::svg::at;
using trainer::svg::stroke;
using trainer::svg::words;

/// Accuracy and noise ratio over the steps as an SVG picture: two panels, a line for each run with the first seed and
/// nearest rounding, or the rules of DeepSpeed.
class steps_picture {
public:
    steps_picture(const std::vector<run_result>& runs, const options& given) : steps_(static_cast<double>(given.steps))
    {
        for (const run_result& run : runs) {
            const bool shown = run.plan.how == scheme::deepspeed
                ? run.plan.defects == all_defects || run.plan.defects == node_divisor
                : run.plan.roundings == variant::nearest;
            if (shown && run.plan.seed == given.seeds.front()) shown_.push_back(&run);
        }
    }

    std::string text() const
    {
        std::string out = panel(60, "test accuracy, %") + panel(60 + width + 80, "noise ratio");
        for (const int percent : {0, 20, 40, 60, 80, 100}) out += level(60, percent / 100.0, std::to_string(percent));
        for (int power = lowest; power <= highest; ++power) {
            out += level(60 + width + 80, of_power(power), collprobe::report::short_number(std::pow(10, power)));
        }
        const double left = 60 + 2 * (width + 80) - 50;
        for (std::size_t line = 0; line < shown_.size(); ++line) {
            const run_result& run = *shown_[line];
            std::vector<double> accuracy;
            for (const auto& [step, value] : run.curve) accuracy.push_back(value);
            out += polyline(60, accuracy, line);
            out += polyline(60 + width + 80, smoothed(run.noise_ratios), line);
            const double y = 40 + 20 * static_cast<double>(line);
            out += "<line x1='" + at(left) + "' y1='" + at(y) + "' x2='" + at(left + 24) + "' y2='" + at(y) + "' "
                + stroke(line) + "/>\n" + words(left + 32, y + 4, "start", title(run));
        }
        return trainer::svg::document(left + 360, height + 80, out);
    }

private:
    static constexpr double width = 300;
    static constexpr double height = 260;
    static constexpr double top = 30;
    static constexpr int lowest = -5;
    static constexpr int highest = 1;

    static std::string title(const run_result& run)
    {
        return run.plan.label() + (run.plan.how == scheme::fp32 ? "" : std::string(": ") + name(run.verdict));
    }
    static double of_power(double power) { return (power - lowest) / (highest - lowest); }
    static double y_of(double share) { return top + height * (1 - std::clamp(share, 0.0, 1.0)); }

    /// The mean of powers in 40 stretches.
    static std::vector<double> smoothed(const std::vector<double>& ratios)
    {
        const std::size_t stretches = std::min<std::size_t>(40, ratios.size());
        std::vector<double> means;
        for (std::size_t k = 0; k < stretches; ++k) {
            double sum = 0;
            double count = 0;
            for (std::size_t i = k * ratios.size() / stretches; i < (k + 1) * ratios.size() / stretches; ++i) {
                if (!(ratios[i] > 0)) continue;
                sum += std::log10(ratios[i]);
                ++count;
            }
            if (count > 0) means.push_back(of_power(sum / count));
        }
        return means;
    }
    static std::string polyline(double left, const std::vector<double>& shares, std::size_t line)
    {
        std::string points;
        for (std::size_t i = 0; i < shares.size(); ++i) {
            const double x = left + width * static_cast<double>(i + 1) / static_cast<double>(shares.size());
            points += at(x) + "," + at(y_of(shares[i])) + " ";
        }
        return "<polyline points='" + points + "' " + stroke(line) + "/>\n";
    }
    std::string panel(double left, const std::string& title) const
    {
        return words(left + width / 2, top - 10, "middle", title) + words(left, top + height + 18, "middle", "0")
            + words(left + width, top + height + 18, "middle", formatted("%.0f", steps_))
            + words(left + width / 2, top + height + 38, "middle", "steps");
    }
    static std::string level(double left, double share, const std::string& what)
    {
        const double y = y_of(share);
        return "<line x1='" + at(left) + "' y1='" + at(y) + "' x2='" + at(left + width) + "' y2='" + at(y)
            + "' stroke='#dddddd'/>\n" + words(left - 6, y + 4, "end", what);
    }

    double steps_;
    std::vector<const run_result*> shown_;
};

} // namespace quantised_training

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

/// What the studies' pictures are made of.
namespace trainer::svg {

/// A coordinate.
inline std::string at(double value)
{
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", value);
    return text;
}
inline std::string words(double x, double y, const char* anchor, const std::string& what)
{
    return "<text x='" + at(x) + "' y='" + at(y) + "' text-anchor='" + anchor + "'>" + what + "</text>\n";
}
/// Colours that people with any colour vision tell apart (Okabe and Ito), then again in dashes.
inline std::string stroke(std::size_t line)
{
    static constexpr const char* colours[]
        = {"#000000", "#d55e00", "#56b4e9", "#0072b2", "#cc79a7", "#e69f00", "#009e73"};
    return "fill='none' stroke-width='2' stroke='" + std::string(colours[line % 7]) + "'"
        + (line < 7 ? "" : " stroke-dasharray='5 3'");
}
inline std::string document(double width, double height, const std::string& content)
{
    return "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 " + at(width) + " " + at(height)
        + "' font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n" + content
        + "</svg>\n";
}

} // namespace trainer::svg

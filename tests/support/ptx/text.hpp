// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/ptx/program.hpp"

/// Pieces of PTX text, for parser and decoder.
namespace ptx {

inline constexpr const char* blanks = " \t\r\n";

std::string trimmed(std::string_view);
/// At a character outside brackets; the pieces are trimmed.
std::vector<std::string> split(std::string_view, char at);
/// Between blanks.
std::vector<std::string> words(std::string_view);
/// The words with one blank between.
std::string one_line(std::string_view);
/// `-5`, `0x1FU`, `0f3F800000`, `0d3FF0000000000000`: the bits.
std::optional<u64> number(std::string_view);
/// `symbol+8`, `%rd1-4`: the name, and the number behind it.
std::pair<std::string, s64> name_and_offset(std::string_view);

bool is_type(std::string_view);
/// Of a type's value. A predicate has one byte.
unsigned type_bytes(std::string_view);

/// `.align 8 .b8 name[40] = {1, 2}` and the like.
struct declaration {
    std::string name;
    std::size_t bytes = 0, align = 1;
    unsigned element_bytes = 0;
    bool open_array = false; ///< `name[]`
};
declaration read_declaration(const std::string& text);

} // namespace ptx

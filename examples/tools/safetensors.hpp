// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tensor_files.hpp"

/// Tensors of safetensors files, where they lie in the file.
namespace tools {

/// The object of a header, in which no name is twice.
inline nlohmann::json parse_header(std::string_view text)
{
    using nlohmann::json;
    std::vector<std::set<std::string>> names; // of the objects that are open
    const auto note = [&](int, json::parse_event_t event, json& value) {
        if (event == json::parse_event_t::object_start) names.emplace_back();
        if (event == json::parse_event_t::object_end) names.pop_back();
        if (event == json::parse_event_t::key && !names.back().insert(value.get<std::string>()).second)
            throw bad_tensor_file("the header has " + quoted_name(value.get<std::string>()) + " twice");
        return true;
    };
    // The parser takes a NUL for the end of the text.
    if (const auto nul = text.find('\0'); nul != text.npos)
        throw bad_tensor_file("the header is no JSON, from its byte " + std::to_string(nul + 1) + " on");
    json header;
    try {
        header = json::parse(text, note);
    } catch (const json::parse_error& problem) {
        throw bad_tensor_file("the header is no JSON, from its byte " + std::to_string(problem.byte) + " on");
    }
    if (!header.is_object()) throw bad_tensor_file("the header is no JSON object");
    return header;
}

inline const nlohmann::json& field(const nlohmann::json& of, const char* key)
{
    const auto at = of.find(key); // of what is no object: the end
    if (at == of.end()) throw bad_tensor_file(std::string("there is no '") + key + '\'');
    return *at;
}

inline std::vector<std::uint64_t> numbers(const nlohmann::json& of, const char* key)
{
    const nlohmann::json& list = field(of, key);
    std::vector<std::uint64_t> all;
    bool right = list.is_array();
    for (std::size_t i = 0; right && i < list.size(); ++i) {
        right = list[i].is_number_unsigned(); // as it is parsed: no fraction, no sign, less than 2^64
        if (right) all.push_back(list[i].get<std::uint64_t>());
    }
    if (!right) throw bad_tensor_file(std::string("'") + key + "' is no list of integers from 0 to 2^64 - 1");
    return all;
}

/// Source: https://huggingface.co/docs/safetensors: 8 bytes with the length of a JSON header, the header, the data.
/// Every byte of the data belongs to one tensor.
inline std::vector<named_tensor> read_safetensors(std::string_view file)
{
    if (file.size() < 8) throw bad_tensor_file("shorter than a header");
    std::uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(file[static_cast<std::size_t>(i)]);
    if (length > file.size() - 8) throw bad_tensor_file("the header is longer than the file");
    const std::string_view data = file.substr(8 + static_cast<std::size_t>(length));
    const nlohmann::json header = parse_header(file.substr(8, static_cast<std::size_t>(length)));
    std::vector<named_tensor> all;
    struct place {
        std::uint64_t begin, end;
        std::string name;
    };
    std::vector<place> places;
    for (const auto& [name, value] : header.items()) {
        if (name == "__metadata__") continue;
        if (name.empty()) throw bad_tensor_file("a tensor without a name");
        try {
            const nlohmann::json& dtype = field(value, "dtype");
            if (!dtype.is_string()) throw bad_tensor_file("'dtype' is no string");
            const file_type type = type_named(dtype.get_ref<const std::string&>());
            const auto offsets = numbers(value, "data_offsets");
            if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size())
                throw bad_tensor_file("its data is not within the file");
            const std::string_view bytes = data.substr(
                static_cast<std::size_t>(offsets[0]), static_cast<std::size_t>(offsets[1] - offsets[0]));
            all.push_back({name, type.name, part_in_file(bytes, type, numbers(value, "shape"))});
            places.push_back({offsets[0], offsets[1], name});
        } catch (const bad_tensor_file& problem) {
            throw bad_tensor_file("tensor " + quoted_name(name) + ": " + problem.what());
        }
    }
    std::sort(places.begin(), places.end(),
        [](const place& a, const place& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::uint64_t end = 0;
    for (const place& each : places) {
        if (each.begin != end) {
            throw bad_tensor_file("tensor " + quoted_name(each.name) + ": its data begins at byte " + std::to_string(each.begin)
                + ", and that of the tensors before ends at " + std::to_string(end));
        }
        end = each.end;
    }
    if (end != data.size()) throw bad_tensor_file(std::to_string(data.size() - end) + " bytes belong to no tensor");
    return all;
}

} // namespace tools

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <collprobe/replica/receipt.hpp>
#include <collprobe/scan/tensor_part.hpp>

/// Tensors of safetensors and NumPy files, where they lie in the file.
namespace tools {

using collprobe::detail::quoted_name;

struct bad_tensor_file : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A file in memory, read only. It must not be cut off by others meanwhile.
class mapped_file {
public:
    explicit mapped_file(const std::string& path)
    {
        const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // does not wait for a pipe's writer
        struct stat found {};
        int reason = file < 0 || ::fstat(file, &found) != 0 ? errno : S_ISDIR(found.st_mode) ? EISDIR : 0;
        const bool other_kind = reason == 0 && !S_ISREG(found.st_mode);
        size_ = static_cast<std::size_t>(found.st_size);
        if (reason == 0 && !other_kind && size_ != 0) {
            void* const mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
            if (mapped == MAP_FAILED) reason = errno;
            else data_ = static_cast<const char*>(mapped);
        }
        if (file >= 0) ::close(file);
        if (other_kind) throw bad_tensor_file("cannot read '" + path + "': it is not a regular file");
        if (reason != 0)
            throw bad_tensor_file("cannot read '" + path + "': " + std::generic_category().message(reason));
    }
    mapped_file(mapped_file&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0))
    {
    }
    mapped_file& operator=(mapped_file&&) = delete;
    ~mapped_file()
    {
        if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
    }

    std::string_view text() const noexcept { return {data_, size_}; }

private:
    const char* data_ = nullptr;
    std::size_t size_ = 0;
};

struct named_tensor {
    std::string name;
    std::string type;
    collprobe::tensor_part part;
};

/// A type of a file, and a type of the library with as many bytes. Where the library has the same one, with its name.
struct file_type {
    const char* in_file;
    const char* name;
    collprobe::element_type type;
};

inline file_type type_named(std::string_view in_file)
{
    using collprobe::element_type;
    static constexpr file_type all[] = {{"F64", "double", element_type::float64}, {"F32", "float", element_type::float32},
        {"F16", "half", element_type::float16}, {"BF16", "bfloat16", element_type::bfloat16},
        {"F8_E4M3", "float8_e4m3", element_type::float8_e4m3}, {"F8_E5M2", "float8_e5m2", element_type::float8_e5m2},
        {"I64", "int64", element_type::int64}, {"I32", "int32", element_type::int32},
        {"I16", "int16", element_type::float16}, {"I8", "int8", element_type::int8},
        {"U64", "uint64", element_type::uint64}, {"U32", "uint32", element_type::uint32},
        {"U16", "uint16", element_type::float16}, {"U8", "uint8", element_type::uint8},
        {"BOOL", "bool", element_type::uint8}, {"C64", "complex64", element_type::uint64},
        // NumPy
        {"<f8", "double", element_type::float64}, {"<f4", "float", element_type::float32},
        {"<f2", "half", element_type::float16}, {"<i8", "int64", element_type::int64},
        {"<i4", "int32", element_type::int32}, {"<i2", "int16", element_type::float16},
        {"|i1", "int8", element_type::int8}, {"<u8", "uint64", element_type::uint64},
        {"<u4", "uint32", element_type::uint32}, {"<u2", "uint16", element_type::float16},
        {"|u1", "uint8", element_type::uint8}, {"|b1", "bool", element_type::uint8},
        {"<c8", "complex64", element_type::uint64}};
    for (const file_type& each : all)
        if (each.in_file == in_file) return each;
    throw bad_tensor_file("a type that this program does not know: " + quoted_name(in_file));
}

/// The part of a tensor that begins at `data`; in Fortran's order the first dimension varies fastest.
inline collprobe::tensor_part part_in_file(
    std::string_view data, const file_type& type, const std::vector<std::uint64_t>& shape, bool fortran = false)
{
    collprobe::tensor_shape whole;
    if (shape.size() > collprobe::tensor_shape::most_dimensions) throw bad_tensor_file("more than 8 dimensions");
    for (const std::uint64_t size : shape) whole.size[whole.dimensions++] = size;
    const auto bytes = static_cast<std::uint64_t>(collprobe::bytes_of(type.type));
    if (!collprobe::detail::is_possible(whole, static_cast<int>(bytes))) throw bad_tensor_file("a shape that is too large");
    if (data.size() != whole.elements() * bytes) {
        throw bad_tensor_file("the shape needs " + std::to_string(whole.elements() * bytes) + " bytes, and there are "
            + std::to_string(data.size()));
    }
    collprobe::tensor_part part;
    collprobe::detail::with_type(type.type, [&]<class T>(T) {
        part = {collprobe::view<const T>(reinterpret_cast<const T*>(data.data()), whole.elements()), whole};
    });
    std::uint64_t step = 1;
    for (int d = 0; fortran && d < whole.dimensions; ++d) {
        part.stride.size[d] = step;
        step *= whole.size[d];
    }
    return part;
}

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

/// "()", "(2,)", "(2, 3)", with anything behind.
inline std::vector<std::uint64_t> tuple(std::string_view text)
{
    std::vector<std::uint64_t> all;
    const auto take = [&](char c) {
        text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
        if (!text.starts_with(c)) return false;
        text.remove_prefix(1);
        return true;
    };
    bool right = take('(');
    while (right && !take(')')) {
        const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
        if (digits > 18) throw bad_tensor_file("a shape that is too large");
        std::uint64_t size = 0;
        for (const char c : text.substr(0, digits)) size = size * 10 + static_cast<std::uint64_t>(c - '0');
        text.remove_prefix(digits);
        all.push_back(size);
        const bool comma = take(',');
        right = digits != 0 && (comma || (all.size() > 1 && text.starts_with(')')));
    }
    if (!right) throw bad_tensor_file("no shape");
    return all;
}

/// Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1 to 3.
inline named_tensor read_npy(std::string_view file, std::string name)
{
    if (!file.starts_with("\x93NUMPY") || file.size() < 12) throw bad_tensor_file("no NumPy file");
    if (file[6] < 1 || file[6] > 3 || file[7] != 0) throw bad_tensor_file("a version that this program does not know");
    const auto byte = [&](std::size_t i) { return std::size_t{static_cast<unsigned char>(file[i])}; };
    const std::size_t begin = byte(6) == 1 ? 10 : 12;
    const std::size_t length = byte(8) | byte(9) << 8 | (begin == 12 ? byte(10) << 16 | byte(11) << 24 : 0);
    if (length > file.size() - begin) throw bad_tensor_file("the header is longer than the file");
    const std::string_view header = file.substr(begin, length);
    const auto value_of = [&](std::string_view key) {
        const std::size_t at = header.find(key);
        if (at == std::string_view::npos) throw bad_tensor_file("the header lacks " + std::string(key));
        std::string_view value = header.substr(at + key.size());
        value.remove_prefix(std::min(value.find_first_not_of(": "), value.size()));
        return value;
    };
    std::string_view descr = value_of("'descr'");
    if (!descr.starts_with('\'')) throw bad_tensor_file("a type with several fields");
    if (descr.find('\'', 1) == std::string_view::npos) throw bad_tensor_file("a type without an end");
    descr = descr.substr(1, descr.find('\'', 1) - 1);
    const std::string_view order = value_of("'fortran_order'");
    const bool fortran = order.starts_with("True");
    if (!fortran && !order.starts_with("False")) throw bad_tensor_file("'fortran_order' is not True or False");
    const std::vector<std::uint64_t> shape = tuple(value_of("'shape'"));
    const file_type type = type_named(descr);
    return {std::move(name), type.name, part_in_file(file.substr(begin + length), type, shape, fortran)};
}

} // namespace tools

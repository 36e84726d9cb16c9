// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
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

#include <collprobe/detail/printable.hpp>
#include <collprobe/replica/receipt.hpp>
#include <collprobe/scan/tensor_part.hpp>

/// Tensors of NumPy files, where they lie in the file. safetensors.hpp has those of the other format.
namespace tools {

using collprobe::detail::printable;
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
        if (other_kind) throw bad_tensor_file("cannot read '" + printable(path) + "': it is not a regular file");
        if (reason != 0)
            throw bad_tensor_file("cannot read '" + printable(path) + "': " + std::generic_category().message(reason));
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
        {"<c8", "complex64", element_type::uint64},
        // The bfloat16 of ml_dtypes, for which NumPy has no letter
        {"<V2", "bfloat16", element_type::bfloat16}, {"|V2", "bfloat16", element_type::bfloat16}};
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

/// The dictionary at the beginning of a NumPy file.
struct npy_header {
    std::string type; ///< as NumPy writes it: "<f4"
    bool fortran_order = false;
    std::vector<std::uint64_t> shape;
    std::string_view data; ///< what follows it in the file
};

/// Reads the dictionary: the keys that the format has, each once, in any order.
class npy_dictionary {
public:
    explicit npy_dictionary(std::string_view text) : rest_(text) {}

    npy_header read()
    {
        npy_header header;
        bool has_type = false, has_order = false, has_shape = false;
        if (!take('{')) throw bad_tensor_file("the header is no dictionary");
        for (bool more = true; more && !take('}');) {
            const std::string key = quoted("a key");
            bool* const has = key == "descr" ? &has_type : key == "fortran_order" ? &has_order
                : key == "shape" ? &has_shape : nullptr;
            if (has == nullptr) throw bad_tensor_file("the header has a key that the format has not: " + quoted_name(key));
            if (std::exchange(*has, true)) throw bad_tensor_file("the header has '" + key + "' twice");
            if (!take(':')) throw bad_tensor_file("the header has '" + key + "' without a value");
            if (has == &has_type) header.type = type();
            else if (has == &has_order) header.fortran_order = truth();
            else header.shape = tuple();
            more = take(',');
            if (!more && !take('}')) throw bad_tensor_file("the header's dictionary has no end");
        }
        if (!has_type) throw bad_tensor_file("the header lacks 'descr'");
        if (!has_order) throw bad_tensor_file("the header lacks 'fortran_order'");
        if (!has_shape) throw bad_tensor_file("the header lacks 'shape'");
        if (rest_.find_first_not_of(" \n") != std::string_view::npos)
            throw bad_tensor_file("the header has more than a dictionary");
        return header;
    }

private:
    bool take(char c)
    {
        rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size()));
        if (!rest_.starts_with(c)) return false;
        rest_.remove_prefix(1);
        return true;
    }
    std::string quoted(const char* what)
    {
        const char mark = take('\'') ? '\'' : take('"') ? '"' : '\0';
        const std::size_t end = mark == '\0' ? std::string_view::npos : rest_.find(mark);
        if (end == std::string_view::npos) throw bad_tensor_file(std::string(what) + " without an end");
        const std::string text(rest_.substr(0, end));
        rest_.remove_prefix(end + 1);
        return text;
    }
    std::string type()
    {
        if (take('[')) throw bad_tensor_file("a type with several fields");
        return quoted("a type");
    }
    bool truth()
    {
        take('\0'); // leaves spaces behind
        for (const bool value : {true, false}) {
            const std::string_view word = value ? "True" : "False";
            if (!rest_.starts_with(word)) continue;
            rest_.remove_prefix(word.size());
            return value;
        }
        throw bad_tensor_file("'fortran_order' is not True or False");
    }
    /// "()", "(2,)", "(2, 3)"
    std::vector<std::uint64_t> tuple()
    {
        std::vector<std::uint64_t> all;
        bool right = take('(');
        while (right && !take(')')) {
            const std::size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
            if (digits > 18) throw bad_tensor_file("a shape that is too large");
            std::uint64_t size = 0;
            for (const char c : rest_.substr(0, digits)) size = size * 10 + static_cast<std::uint64_t>(c - '0');
            rest_.remove_prefix(digits);
            all.push_back(size);
            const bool comma = take(',');
            right = digits != 0 && (comma || (all.size() > 1 && rest_.starts_with(')')));
        }
        if (!right) throw bad_tensor_file("no shape");
        return all;
    }

    std::string_view rest_;
};

/// Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1 to 3.
inline npy_header read_npy_header(std::string_view file)
{
    if (!file.starts_with("\x93NUMPY") || file.size() < 12) throw bad_tensor_file("no NumPy file");
    if (file[6] < 1 || file[6] > 3 || file[7] != 0) throw bad_tensor_file("a version that this program does not know");
    const auto byte = [&](std::size_t i) { return std::size_t{static_cast<unsigned char>(file[i])}; };
    const std::size_t begin = byte(6) == 1 ? 10 : 12;
    const std::size_t length = byte(8) | byte(9) << 8 | (begin == 12 ? byte(10) << 16 | byte(11) << 24 : 0);
    if (length > file.size() - begin) throw bad_tensor_file("the header is longer than the file");
    npy_header header = npy_dictionary(file.substr(begin, length)).read();
    header.data = file.substr(begin + length);
    return header;
}

inline named_tensor read_npy(std::string_view file, std::string name)
{
    const npy_header header = read_npy_header(file);
    const file_type type = type_named(header.type);
    return {std::move(name), type.name, part_in_file(header.data, type, header.shape, header.fortran_order)};
}

} // namespace tools

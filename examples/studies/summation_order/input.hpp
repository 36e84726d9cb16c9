// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <collprobe/core/element.hpp>
#include <collprobe/sum/sum_rows.hpp>

#include "../../tools/tensor_files.hpp"
#ifdef COLLPROBE_EXAMPLE_SAFETENSORS
#include "../../tools/safetensors.hpp"
#endif
#include "../digits/words.hpp"
#include "random_terms.hpp"

/// The rows of terms: one a rank, or one a leaf. Files are mapped and read a block at a time.
namespace summation {

/// An input that cannot be used; the message names the file and what was expected.
struct bad_input : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// How files are read.
struct reading {
    std::string tensor; ///< of safetensors; empty if there is one
    bool u2_is_bfloat16 = false;
};

class input {
public:
    element_type type = element_type::float32; ///< of the files, or of what is drawn
    std::uint64_t elements = 0;
    std::string what; ///< in words

    int rows() const { return static_cast<int>(sources_.empty() ? drawn_rows_ : sources_.size()); }
    /// The row's name: of its file, or its number in the file.
    std::string row_name(int row) const
    {
        return sources_.empty() ? "row " + std::to_string(row) : sources_[static_cast<std::size_t>(row)].name;
    }

    static input draw(input_kind kind, std::uint64_t seed, int rows, std::uint64_t elements, element_type as)
    {
        input drawn;
        drawn.type = as;
        drawn.elements = elements;
        drawn.what = std::string("random, ") + summation::name(kind) + ", seed " + std::to_string(seed);
        drawn.drawn_rows_ = static_cast<std::size_t>(rows);
        drawn.random_.emplace(kind, seed, rows);
        return drawn;
    }

    static constexpr int most_rows = 16384;

    /// One file with a row for each index of the first dimension; or several files, or the .npy (else .safetensors)
    /// files of a folder, with a row each. Files are sorted by their names, and numbers in names by their value: a
    /// shell's `grad_*` has grad_10 before grad_2.
    static input read(const std::vector<std::string>& paths, const reading& how)
    {
        namespace fs = std::filesystem;
        std::vector<std::string> files = paths;
        input result;
        result.what = files.size() == 1 ? files[0] : std::to_string(files.size()) + " files";
        std::error_code unknown;
        bool one_a_row = files.size() > 1;
        if (files.size() == 1 && fs::is_directory(files[0], unknown)) {
            const std::string folder = files[0];
            files.clear();
            for (const char* const kind : {".npy", ".safetensors"}) {
                for (fs::directory_iterator at(folder, unknown), end; !unknown && at != end; at.increment(unknown)) {
                    if (at->path().extension() == kind) files.push_back(at->path().string());
                }
                if (unknown) throw bad_input("cannot read '" + folder + "': " + unknown.message());
                if (!files.empty()) break;
            }
            if (files.empty()) {
                throw bad_input("'" + folder + "' has no .npy file, and no .safetensors; one for each rank was expected");
            }
            result.what = std::to_string(files.size()) + " files of " + folder;
            one_a_row = true;
        }
        std::sort(files.begin(), files.end(), comes_before);
        if (files.size() > most_rows) {
            throw bad_input(result.what + ": at most " + std::to_string(most_rows) + " were expected, one a rank");
        }
        std::string first_shape;
        bool has_named = false, has_u2 = false;
        for (const std::string& file : files) {
            const tensor found = read_tensor(result.files_.emplace_back(map(file)).text(), file, how);
            has_named |= found.is_named;
            has_u2 |= found.was_u2;
            if (one_a_row) result.add_row(found, file, first_shape);
            else result.add_rows(found, file);
        }
        if (!how.tensor.empty() && !has_named) throw trainer::usage_error("--tensor: belongs to .safetensors files");
        if (how.u2_is_bfloat16 && !has_u2) throw trainer::usage_error("--type: no .npy file has what NumPy calls uint16");
        if (result.rows() < 2) {
            throw bad_input("'" + paths[0] + "' has one rank; a sum needs two or more: " + (one_a_row
                ? "a file for each" : "a file for each, or a first dimension that counts them"));
        }
        return result;
    }

    /// Elements [first, first + count) of a row as T: where they lie, if they are of this type, else in `room`.
    template <floating_element T>
    const T* block(int row, std::uint64_t first, std::size_t count, T* room) const
    {
        if (sources_.empty()) {
            for (std::size_t i = 0; i < count; ++i) room[i] = T((*random_)(row, first + i));
            return room;
        }
        const unsigned char* const data = sources_[static_cast<std::size_t>(row)].data;
        if (type == element_traits<T>::type) {
            const auto* const from = reinterpret_cast<const T*>(data) + first;
            if (reinterpret_cast<std::uintptr_t>(from) % alignof(T) == 0) return from;
        }
        with_floating_type(type, [&]<class From>(From) {
            const unsigned char* const from = data + first * sizeof(From);
            for (std::size_t i = 0; i < count; ++i) {
                From value;
                std::memcpy(static_cast<void*>(&value), from + i * sizeof(From), sizeof value);
                if constexpr (std::is_same_v<From, T>) room[i] = value;
                else room[i] = detail::narrowed<T>(detail::widen(value));
            }
        });
        return room;
    }

    /// Gives back the memory of what was read of the files, so that it stays bounded.
    void forget(std::uint64_t first, std::size_t count) const
    {
        static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
        const auto bytes = static_cast<std::uint64_t>(bytes_of(type));
        for (const source& each : sources_) {
            const auto begin = reinterpret_cast<std::uintptr_t>(each.data) + first * bytes;
            const std::uintptr_t from = begin / page * page, end = (begin + count * bytes) / page * page;
            if (end > from) ::madvise(reinterpret_cast<void*>(from), end - from, MADV_DONTNEED); // else it only stays
        }
    }

private:
    struct source {
        const unsigned char* data;
        std::string name;
    };
    struct tensor {
        std::string type;
        std::vector<std::uint64_t> shape;
        std::string_view data;
        bool is_named = false; ///< in its file
        bool was_u2 = false; ///< in a file that says uint16
    };

    static tools::mapped_file map(const std::string& path)
    {
        try {
            return tools::mapped_file(path);
        } catch (const tools::bad_tensor_file& problem) {
            throw bad_input(problem.what());
        }
    }

    static tensor read_tensor(std::string_view text, const std::string& path, const reading& how)
    {
        try {
            if (text.empty()) throw tools::bad_tensor_file("it is empty; a NumPy file was expected");
            if (std::filesystem::path(path).extension() == ".safetensors") return named_tensor_of(text, how);
            const tools::npy_header header = tools::read_npy_header(text);
            tensor found{tools::type_named(header.type).name, header.shape, header.data};
            found.was_u2 = header.type == "<u2";
            if (how.u2_is_bfloat16 && found.was_u2) found.type = "bfloat16";
            (void)tools::part_in_file(header.data, tools::type_named(header.type), header.shape); // the sizes fit
            std::uint64_t long_dimensions = 0;
            for (const std::uint64_t size : header.shape) long_dimensions += size > 1 ? 1 : 0;
            if (header.fortran_order && long_dimensions > 1) {
                throw tools::bad_tensor_file(
                    "it is in Fortran's order; C order was expected, as numpy.ascontiguousarray makes it");
            }
            return found;
        } catch (const tools::bad_tensor_file& problem) {
            throw bad_input("'" + path + "': " + problem.what());
        }
    }

    static tensor named_tensor_of([[maybe_unused]] std::string_view text, [[maybe_unused]] const reading& how)
    {
#ifdef COLLPROBE_EXAMPLE_SAFETENSORS
        const std::vector<tools::named_tensor> all = tools::read_safetensors(text);
        std::string names;
        for (const tools::named_tensor& each : all) {
            if (each.name != how.tensor && !(how.tensor.empty() && all.size() == 1)) {
                if (names.size() < 200) names += (names.empty() ? "" : ", ") + tools::quoted_name(each.name);
                continue;
            }
            tensor found{each.type, {}, {}, true};
            for (int d = 0; d < each.part.shape.dimensions; ++d) found.shape.push_back(each.part.shape.size[d]);
            const auto bytes = each.part.shape.elements() * static_cast<std::uint64_t>(bytes_of(each.part.type));
            found.data = {static_cast<const char*>(each.part.data), static_cast<std::size_t>(bytes)};
            return found;
        }
        throw tools::bad_tensor_file((how.tensor.empty() ? "it has several tensors; --tensor NAME was expected, one of "
                                                         : "it has no tensor " + tools::quoted_name(how.tensor) + ", but ")
            + names);
#else
        throw tools::bad_tensor_file("this program was built without nlohmann_json, which reads safetensors; .npy was expected");
#endif
    }

    /// \throws bad_input for a type that is not summed here
    static element_type summed_type(const tensor& of, const std::string& path)
    {
        for (const element_type each :
            {element_type::float16, element_type::bfloat16, element_type::float32, element_type::float64}) {
            if (of.type == collprobe::name(each)) return each;
        }
        throw bad_input("'" + path + "' has elements of type " + of.type + "; half, bfloat16, float or double were expected"
            + (of.type == "uint16" ? " (--type bfloat16 reads uint16 as bfloat16)" : ""));
    }

    static std::string shape_text(const std::vector<std::uint64_t>& shape)
    {
        std::string text = "(";
        for (const std::uint64_t size : shape) text += std::to_string(size) + (shape.size() == 1 ? "," : ", ");
        if (shape.size() > 1) text.resize(text.size() - 2);
        return text + ")";
    }

    void add_row(const tensor& found, const std::string& path, std::string& first_shape)
    {
        const element_type own = summed_type(found, path);
        const std::string shape = "shape " + shape_text(found.shape) + " and type " + found.type;
        if (sources_.empty()) first_shape = shape;
        if (shape != first_shape) {
            throw bad_input("'" + path + "' has " + shape + "; " + first_shape + " was expected, as in '" + sources_[0].name
                + "' (of a folder, files can be named one by one)");
        }
        type = own;
        elements = found.data.size() / static_cast<std::uint64_t>(bytes_of(type));
        if (elements == 0) throw bad_input("'" + path + "' has no element; one or more were expected");
        sources_.push_back({reinterpret_cast<const unsigned char*>(found.data.data()), path});
    }

    void add_rows(const tensor& found, const std::string& path)
    {
        type = summed_type(found, path);
        if (found.shape.size() < 2) {
            throw bad_input("'" + path + "' has shape " + shape_text(found.shape)
                + ": one rank; (ranks, ...) with two ranks or more was expected, or a file for each");
        }
        if (found.data.empty()) throw bad_input("'" + path + "' has no element; one or more were expected");
        const std::uint64_t row_bytes = found.data.size() / found.shape[0];
        if (found.shape[0] > most_rows) {
            throw bad_input("'" + path + "' has " + std::to_string(found.shape[0]) + " rows; at most "
                + std::to_string(most_rows) + " were expected");
        }
        elements = row_bytes / static_cast<std::uint64_t>(bytes_of(type));
        for (std::uint64_t row = 0; row < found.shape[0]; ++row) {
            sources_.push_back({reinterpret_cast<const unsigned char*>(found.data.data()) + row * row_bytes,
                path + "[" + std::to_string(row) + "]"});
        }
    }

    /// Names by letters, and numbers in them by their value: rank2 before rank10.
    static bool comes_before(const std::string& a, const std::string& b)
    {
        const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
        std::size_t i = 0, k = 0;
        while (i < a.size() && k < b.size()) {
            if (digit(a[i]) && digit(b[k])) {
                const auto number = [&](const std::string& text, std::size_t& at) {
                    while (at < text.size() && text[at] == '0') ++at;
                    const std::size_t first = at;
                    while (at < text.size() && digit(text[at])) ++at;
                    return text.substr(first, at - first);
                };
                const std::string x = number(a, i), y = number(b, k);
                if (x.size() != y.size()) return x.size() < y.size();
                if (x != y) return x < y;
            } else {
                if (a[i] != b[k]) return a[i] < b[k];
                ++i;
                ++k;
            }
        }
        if ((i < a.size()) != (k < b.size())) return k < b.size();
        return a < b;
    }

    std::list<tools::mapped_file> files_;
    std::vector<source> sources_; ///< none if the terms are drawn
    std::size_t drawn_rows_ = 0;
    std::optional<random_terms> random_;
};

} // namespace summation

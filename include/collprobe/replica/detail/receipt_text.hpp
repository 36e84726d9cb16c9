// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <system_error>

#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/replica/receipt.hpp>

/// Receipts as JSON lines: replica/README.md has the format.
namespace collprobe::inline COLLPROBE_ABI {
namespace detail {

inline constexpr const char* receipt_begin = R"({"collprobe_receipt":2,"step":)";
inline constexpr const char* receipt_tensor_begin = "}\n{\"tensor\":";
/// Numbers of ranks in one receipt, of all its parts together: 1 GiB in memory.
inline constexpr std::uint64_t most_holders = std::uint64_t{1} << 28;

COLLPROBE_COLD_INLINE std::uint64_t digest_of_text(std::string_view text)
{
    return digest(view<const std::uint8_t>(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

/// Describes values to a `receipt_writer` or a `receipt_reader`, one after the other. Literals are JSON as it is.
template <class Line, class... Values>
void describe_values(Line& line, Values&&... values)
{
    (line.value(values), ...);
}

/// Describes an item of a list: a cast, a part, or the sums of a part's cast.
template <class Line, class Item>
void describe_item(Line& line, Item& item)
{
    if constexpr (requires { item.rounding; }) line.value(item);
    else if constexpr (requires { item.second; }) describe_values(line, "[", item.first, ",", item.second, "]");
    else describe_values(line, R"({"first":)", item.box.first, R"(,"extent":)", item.box.extent, R"(,"sums":[)",
        item.state.first, ",", item.state.second, R"(],"content":)", item.content, R"(,"ranks":)", item.ranks,
        R"(,"casts":)", item.casts, "}");
}

/// Describes the line of a tensor behind its name. `digest`: of the whole; "-" if the parts do not tile it.
template <class Line, class Tensor>
void describe_tensor(Line& line, Tensor& of, std::string& digest)
{
    describe_values(line, of.name, R"(,"type":)", of.type, R"(,"bytes":)", of.element_bytes, R"(,"shape":)", of.shape,
        R"(,"casts":)", of.casts, R"(,"digest":)", digest, R"(,"parts":)", of.parts);
}

/// Writes values as JSON. Digests are strings, "0x1f": a program may take a number for a double.
struct receipt_writer {
    std::string text;

    void value(const char* json) { text += json; }
    void value(int number) { text += std::to_string(number); }
    void value(std::uint64_t digest) { text += quoted_name(hexadecimal(digest)); }
    void value(const std::string& name) { text += quoted_name(name, "\\u00"); }
    void value(const tensor_shape& shape) { text += shape_text(shape); }
    void value(const element_cast& cast) { text += quoted_name(cast_text(cast)); }
    void value(const std::vector<int>& ranks) { text += quoted_name(ranks_text(ranks)); }
    template <class T>
    void value(const std::vector<T>& list)
    {
        text += '[';
        for (const T& item : list) {
            if (&item != list.data()) text += ',';
            describe_item(*this, item);
        }
        text += ']';
    }
};

/// Reads what `receipt_writer` writes, byte by byte, and refuses all else.
class receipt_reader {
public:
    receipt_reader(std::string_view text, const call_site& where) noexcept : text_(text), left_(text), where_(&where) {}

    [[noreturn]] void fail(const std::string& reason) const
    {
        const std::string_view above = text_.substr(0, position());
        const std::string line = std::to_string(std::count(above.begin(), above.end(), '\n') + 1);
        refuse("receipt", "line " + line + ": " + (left_.empty() ? "the file was cut off" : reason), *where_);
    }
    void require(bool right, const char* reason) const
    {
        if (!right) fail(reason);
    }
    std::size_t position() const noexcept { return text_.size() - left_.size(); }
    bool take(std::string_view word) noexcept
    {
        const bool is_next = left_.starts_with(word);
        if (is_next) left_.remove_prefix(word.size());
        return is_next;
    }
    template <class Number>
    void number(Number& number, int base = 10)
    {
        const char* const begin = left_.data();
        const auto [end, result] = std::from_chars(begin, begin + left_.size(), number, base);
        require(result != std::errc::result_out_of_range, "a number that is too large");
        require(result == std::errc() && (end - begin == 1 || (*begin != '0' && *begin != '-')),
            "no number where one must be");
        left_.remove_prefix(static_cast<std::size_t>(end - begin));
    }

    void value(std::string_view json)
    {
        if (take(json)) return;
        if (json.starts_with(left_)) left_ = {};
        fail("not '" + std::string(json) + "' where it must be");
    }
    void value(int& decimal) { number(decimal); }
    void value(std::uint64_t& digest)
    {
        value("\"0x");
        number(digest, 16);
        value("\"");
    }
    void value(std::string& name)
    {
        value("\"");
        while (!take("\"")) {
            unsigned char byte = left_.empty() ? 0 : static_cast<unsigned char>(left_[0]);
            require(byte >= 0x20, "a text without an end");
            left_.remove_prefix(1);
            if (byte == '\\') {
                value("u00");
                const char* const end = left_.data() + std::min<std::size_t>(left_.size(), 2);
                const auto found = std::from_chars(left_.data(), end, byte, 16);
                require(found.ec == std::errc() && found.ptr - left_.data() == 2, "no two digits behind \\u00");
                require(byte < 0x80, "\\u0080 or more");
                left_.remove_prefix(2);
            }
            name += static_cast<char>(byte);
        }
    }
    void value(tensor_shape& shape)
    {
        value("[");
        while (!take("]")) {
            require(shape.dimensions < tensor_shape::most_dimensions, "more than 8 dimensions");
            if (shape.dimensions != 0) value(",");
            number(shape.size[shape.dimensions++]);
        }
    }
    void value(element_cast& cast)
    {
        for (const element_type type : {element_type::bfloat16, element_type::float16}) {
            for (const cast_rounding rounding : {cast_rounding::nearest_even, cast_rounding::toward_zero})
                if (cast = {type, rounding}; take(quoted_name(cast_text(cast)))) return;
        }
        fail("a cast that is not known");
    }
    void value(std::vector<int>& ranks)
    {
        value("\"");
        if (take("-\"")) return;
        do {
            int first = 0;
            number(first);
            int last = first;
            if (take("-")) number(last);
            require(first >= 0 && first <= last && (ranks.empty() || ranks.back() < first), "ranks that do not ascend");
            require(last < receipt::most_ranks, "a rank of 2^20 or more");
            const auto count = static_cast<std::uint64_t>(last - first) + 1;
            require(count <= room_for_ranks_, "too many ranks");
            room_for_ranks_ -= count;
            while (first <= last) ranks.push_back(first++);
        } while (take(","));
        value("\"");
    }
    template <class T>
    void value(std::vector<T>& list)
    {
        value("[");
        if (take("]")) return;
        do describe_item(*this, list.emplace_back());
        while (take(","));
        value("]");
    }

private:
    std::string_view text_;
    std::string_view left_;
    std::uint64_t room_for_ranks_ = most_holders;
    const call_site* where_;
};

/// Refuses a tensor that no receipt can have. Puts its parts in order; their bytes follow from their boxes.
COLLPROBE_COLD_INLINE void complete_tensor(receipt_tensor& of, const receipt_reader& line)
{
    if (const char* const reason = reason_against(of)) line.fail(reason);
    for (receipt_part& part : std::exchange(of.parts, {})) {
        const int dimensions = of.shape.dimensions;
        const bool is_inside = part.box.first.dimensions == dimensions && part.box.extent.dimensions == dimensions
            && part.box.extent.elements() != 0 && intersection(part.box, whole_box(of.shape)) == part.box;
        line.require(is_inside, "a part that is not within its tensor");
        line.require(part.casts.size() == of.casts.size(), "a part with other casts than its tensor");
        part.state.bytes = part.box.extent.elements() * static_cast<std::uint64_t>(of.element_bytes);
        for (digest_state& each : part.casts) each.bytes = 2 * part.box.extent.elements();
        add_part(of, part);
    }
}

} // namespace detail

COLLPROBE_COLD_INLINE std::string receipt::text(call_site where) const
{
    detail::receipt_writer line;
    std::uint64_t holders = 0;
    line.value(detail::receipt_begin);
    line.text += step == no_step ? "null" : std::to_string(step);
    for (const receipt_tensor& tensor : tensors_) {
        for (const receipt_part& part : tensor.parts) holders += part.ranks.size();
        detail::require(holders <= detail::most_holders, "receipt", "more than 2^28 ranks of parts", where);
        std::string digest = detail::is_complete(tensor) ? detail::hexadecimal(tensor.whole().finish()) : "-";
        line.value(detail::receipt_tensor_begin);
        detail::describe_tensor(line, tensor, digest);
    }
    line.value("}\n");
    const std::uint64_t above = detail::digest_of_text(line.text);
    detail::describe_values(
        line, R"({"tensors":)", static_cast<int>(tensors_.size()), R"(,"digest":)", above, "}\n");
    return std::move(line.text);
}

COLLPROBE_COLD_INLINE receipt receipt::read(std::string_view text, call_site where)
{
    receipt made;
    detail::receipt_reader line(text, where);
    if (text.starts_with("collprobe receipt 1\n")) line.fail("a receipt of version 1: write it again");
    if (!line.take(detail::receipt_begin)) line.fail("not a receipt of a version that this program knows");
    if (!line.take("null")) line.number(made.step);
    while (line.take(detail::receipt_tensor_begin)) {
        receipt_tensor next;
        std::string digest; // that of the text shows that nobody has changed it
        detail::describe_tensor(line, next, digest);
        detail::complete_tensor(next, line);
        line.require(made.find(next.name) == nullptr, "a tensor for the second time");
        (void)made.tensor_for(std::move(next), where);
    }
    line.value("}\n");
    const std::uint64_t above = detail::digest_of_text(text.substr(0, line.position()));
    int tensors = 0;
    std::uint64_t digest = 0;
    detail::describe_values(line, R"({"tensors":)", tensors, R"(,"digest":)", digest);
    line.require(tensors == static_cast<int>(made.tensors_.size()), "another number of tensors than the file has");
    line.require(digest == above, "the lines above are not as they were written");
    line.value("}\n");
    line.require(line.position() == text.size(), "there is more text behind the end");
    return made;
}

} // namespace collprobe

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <system_error>

#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/replica/receipt.hpp>

/// Receipts as text: replica/README.md has the format.
namespace collprobe::inline COLLPROBE_ABI {
namespace detail {

inline constexpr std::string_view receipt_first_line = "collprobe receipt 1";
/// Numbers of ranks in one receipt, of all its parts together: 1 GiB in memory.
inline constexpr std::uint64_t most_holders = std::uint64_t{1} << 28;

COLLPROBE_COLD_INLINE std::uint64_t digest_of_text(std::string_view text)
{
    return digest(view<const std::uint8_t>(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

COLLPROBE_COLD_INLINE std::string sums_text(const digest_state& state)
{
    return hexadecimal(state.first) + ' ' + hexadecimal(state.second);
}

/// The fields of one line, from left to right, each behind a space. Every function refuses the line if it goes on with
/// something else.
class receipt_line {
public:
    receipt_line(std::string_view text, std::uint64_t number, const call_site& where) noexcept
        : left_(text), number_(number), where_(&where)
    {
    }

    [[noreturn]] void fail(const std::string& reason) const
    {
        refuse("receipt", "line " + std::to_string(number_) + ": " + reason, *where_);
    }
    void require(bool right, const char* reason) const
    {
        if (!right) fail(reason);
    }
    bool take(std::string_view word) noexcept
    {
        if (!left_.starts_with(word)) return false;
        left_.remove_prefix(word.size());
        return true;
    }
    void expect(std::string_view word)
    {
        if (!take(word)) fail("not '" + std::string(word) + "' where it must be");
    }
    void end() const { require(left_.empty(), "there is more on the line than there can be"); }
    std::uint64_t decimal()
    {
        expect(" ");
        return number();
    }
    std::uint64_t hexadecimal()
    {
        std::uint64_t number = 0;
        expect(" 0x");
        require(number_of(16, left_.size(), number) == std::errc(), "no number of 64 bits where one must be");
        return number;
    }
    tensor_shape shape()
    {
        tensor_shape made;
        expect(" [");
        while (!take("]")) {
            require(made.dimensions < tensor_shape::most_dimensions, "more than 8 dimensions");
            if (made.dimensions != 0) expect(",");
            made.size[made.dimensions++] = number();
        }
        return made;
    }
    std::string quoted()
    {
        std::string name;
        expect(" \"");
        while (!take("\"")) {
            require(!left_.empty(), "a name without an end");
            if (take("\\x")) {
                const std::size_t size = left_.size();
                std::uint64_t byte = 0;
                const bool is_byte = number_of(16, 2, byte) == std::errc() && size - left_.size() == 2;
                require(is_byte, "not two digits behind \\x");
                name += static_cast<char>(byte);
            } else {
                require(left_[0] != '\\', "a backslash without an x");
                name += left_[0];
                left_.remove_prefix(1);
            }
        }
        return name;
    }
    std::string word()
    {
        expect(" ");
        const std::size_t size = std::min(left_.find(' '), left_.size());
        require(size != 0, "a word is missing");
        const std::string found(left_.substr(0, size));
        left_.remove_prefix(size);
        return found;
    }
    digest_state sums(std::uint64_t bytes)
    {
        digest_state state;
        state.first = hexadecimal();
        state.second = hexadecimal();
        state.bytes = bytes;
        return state;
    }
    /// `room`: how many more there may be.
    std::vector<int> ranks(std::uint64_t& room)
    {
        std::vector<int> all;
        expect(" ");
        if (take("-")) return all;
        do {
            const std::uint64_t first = number();
            const std::uint64_t last = take("-") ? number() : first;
            const bool ascends = all.empty() || static_cast<std::uint64_t>(all.back()) < first;
            require(last < static_cast<std::uint64_t>(receipt::most_ranks), "a rank of 2^20 or more");
            require(ascends && first <= last, "ranks that do not ascend");
            require(last - first < room, "too many ranks");
            room -= last - first + 1;
            for (std::uint64_t rank = first; rank <= last; ++rank) all.push_back(static_cast<int>(rank));
        } while (take(","));
        return all;
    }

private:
    std::uint64_t number()
    {
        std::uint64_t number = 0;
        const std::errc result = number_of(10, left_.size(), number);
        require(result != std::errc::result_out_of_range, "a number of more than 64 bits");
        require(result == std::errc(), "no number where one must be");
        return number;
    }
    /// Takes a number of at most `most` digits, without a sign.
    std::errc number_of(int base, std::size_t most, std::uint64_t& number) noexcept
    {
        const char* const begin = left_.data();
        const auto [end, result] = std::from_chars(begin, begin + std::min(most, left_.size()), number, base);
        left_.remove_prefix(static_cast<std::size_t>(end - begin));
        return result;
    }

    std::string_view left_;
    std::uint64_t number_;
    const call_site* where_;
};

COLLPROBE_COLD_INLINE receipt_tensor read_tensor(receipt_line& line)
{
    receipt_tensor made;
    made.name = line.quoted();
    line.require(!made.name.empty(), "a tensor without a name");
    made.type = line.word();
    const std::uint64_t bytes = line.decimal();
    line.require(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8, "elements have 1, 2, 4 or 8 bytes");
    made.element_bytes = static_cast<int>(bytes);
    const int named = bytes_of_named(made.type);
    line.require(named == 0 || named == made.element_bytes, "the type's elements have another size");
    made.shape = line.shape();
    line.require(is_possible(made.shape, made.element_bytes), "a tensor of 2^63 bytes or more");
    return made;
}

COLLPROBE_COLD_INLINE element_cast read_cast(receipt_line& line)
{
    element_cast made;
    const std::string type = line.word();
    if (type == name(element_type::float16)) made.type = element_type::float16;
    line.require(type == name(made.type), "a cast to an unknown type");
    const std::string rounding = line.word();
    if (rounding == rounding_name(cast_rounding::toward_zero)) made.rounding = cast_rounding::toward_zero;
    line.require(rounding == rounding_name(made.rounding), "a cast by an unknown rounding");
    return made;
}

COLLPROBE_COLD_INLINE receipt_part read_part(receipt_line& line, const receipt_tensor& of, std::uint64_t& ranks_left)
{
    receipt_part made;
    made.box.first = line.shape();
    made.box.extent = line.shape();
    const bool inside = made.box.first.dimensions == of.shape.dimensions
        && made.box.extent.dimensions == of.shape.dimensions && made.box.extent.elements() != 0
        && intersection(made.box, whole_box(of.shape)) == made.box;
    line.require(inside, "a part that is not within its tensor");
    const std::uint64_t elements = made.box.extent.elements();
    made.state = line.sums(elements * static_cast<std::uint64_t>(of.element_bytes));
    made.content = line.hexadecimal();
    made.ranks = line.ranks(ranks_left);
    for (std::size_t i = 0; i < of.casts.size(); ++i) made.casts.push_back(line.sums(2 * elements));
    return made;
}

} // namespace detail

COLLPROBE_COLD_INLINE std::string receipt::text(call_site where) const
{
    using detail::hexadecimal, detail::is_complete;
    std::uint64_t holders = 0;
    std::string all(detail::receipt_first_line);
    all += "\nstep " + (step == no_step ? "-" : std::to_string(step)) + '\n';
    for (const receipt_tensor& tensor : tensors_) {
        const std::string whole = is_complete(tensor) ? hexadecimal(tensor.whole().finish()) : "-";
        all += "tensor " + detail::quoted_name(tensor.name) + ' ' + tensor.type + ' '
            + std::to_string(tensor.element_bytes) + ' ' + detail::shape_text(tensor.shape) + ' ' + whole + '\n';
        for (const element_cast& cast : tensor.casts)
            all += std::string(" cast ") + name(cast.type) + ' ' + detail::rounding_name(cast.rounding) + '\n';
        for (const receipt_part& part : tensor.parts) {
            holders += part.ranks.size();
            detail::require(holders <= detail::most_holders, "receipt", "more than 2^28 ranks of parts", where);
            all += " part " + detail::shape_text(part.box.first) + ' ' + detail::shape_text(part.box.extent) + ' '
                + detail::sums_text(part.state) + ' ' + hexadecimal(part.content) + ' '
                + detail::ranks_text(part.ranks);
            for (const detail::digest_state& each : part.casts) all += ' ' + detail::sums_text(each);
            all += '\n';
        }
    }
    return all + "end " + std::to_string(tensors_.size()) + ' ' + hexadecimal(detail::digest_of_text(all)) + '\n';
}

COLLPROBE_COLD_INLINE receipt receipt::read(std::string_view text, call_site where)
{
    receipt made;
    receipt_tensor* tensor = nullptr;
    std::uint64_t ranks_left = detail::most_holders;
    std::uint64_t number = 0;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = text.substr(at).find('\n');
        detail::receipt_line line(text.substr(at, std::min(length, text.size() - at)), ++number, where);
        line.require(length != std::string_view::npos, "the line has no end: the file was cut off");
        if (number == 1) {
            line.require(
                line.take(detail::receipt_first_line), "not a receipt of a version that this program knows");
        } else if (number == 2) {
            line.expect("step");
            if (!line.take(" -")) made.step = line.decimal();
        } else if (line.take("tensor")) {
            receipt_tensor next = detail::read_tensor(line);
            line.require(made.find(next.name) == nullptr, "a tensor for the second time");
            tensor = &made.tensor_for(std::move(next), where);
            (void)line.word(); // its digest: that of the text shows that nobody has changed it
        } else if (line.take(" cast")) {
            line.require(tensor != nullptr && tensor->parts.empty(), "a cast where none can be");
            line.require(tensor->casts.size() < detail::most_casts, "too many casts");
            tensor->casts.push_back(detail::read_cast(line));
        } else if (line.take(" part")) {
            line.require(tensor != nullptr, "a part without a tensor");
            detail::add_part(*tensor, detail::read_part(line, *tensor, ranks_left));
        } else {
            line.expect("end");
            line.require(line.decimal() == made.tensors_.size(), "another number of tensors than the file has");
            line.require(line.hexadecimal() == detail::digest_of_text(text.substr(0, at)),
                "the lines above are not as they were written");
            line.end();
            line.require(at + length + 1 == text.size(), "there is more text behind the end");
            return made;
        }
        line.end();
        at += length + 1;
    }
    detail::receipt_line(text, number + 1, where).fail("the end is missing: the file was cut off");
}

} // namespace collprobe

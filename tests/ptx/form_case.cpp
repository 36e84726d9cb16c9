// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/form_case.hpp"

#include <array>

namespace form_test {

operand::operand(const std::string& text) : type(text.substr(0, text.find('/'))), in(type)
{
    if (const std::size_t slash = text.find('/'); slash != std::string::npos) in = text.substr(slash + 1);
    else if (type == "f16" || type == "bf16" || width() == 8) in = "b16";
}
unsigned operand::width() const
{
    if (type == "pred") return 1;
    return static_cast<unsigned>(std::stoul(type.substr(type.find_first_of("0123456789"))));
}
exact::format operand::format() const
{
    return type == "f64" ? exact::twofold : type == "f32" ? exact::single : type == "f16" ? exact::half : exact::brain;
}
bits low_bits(bits x, unsigned count) { return count >= 64 ? x : x & ((bits{1} << count) - 1); }
__int128 operand::number(bits x) const
{
    const bits low = low_bits(x, width());
    const bool negative = is_signed() && (low >> (width() - 1)) != 0;
    return static_cast<__int128>(low) - (negative ? static_cast<__int128>(1) << width() : 0);
}

namespace {

class generator {
public:
    bits next()
    {
        state_ += 0x9e3779b97f4a7c15u;
        bits z = state_;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }

private:
    bits state_ = 1;
};

std::vector<bits> special_integers(unsigned width)
{
    const bits top = bits{1} << (width - 1);
    std::vector<bits> all = {0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 63, 64, 65, 100, 127, 128, 255, 256, top, top + 1,
        top - 1, top - 2, ~bits{0}, ~bits{0} - 1, 0x5555555555555555, 0xaaaaaaaaaaaaaaaa, 0x00ff00ff00ff00ff,
        0x0123456789abcdef};
    // Beside a tie of a format with so many digits.
    for (const unsigned digits : {8u, 11u, 24u, 53u})
        for (const bits beside : {bits{0}, bits{1}, ~bits{0}})
            if (digits + 4 < width) all.push_back((((bits{1} << digits) + 1) << (width - digits - 3)) + beside);
    for (bits& each : all) each = low_bits(each, width);
    return all;
}
std::vector<bits> special_floats(exact::format of)
{
    const bits least_normal = bits{1} << of.fraction_bits, one = of.one(), infinity = of.infinity();
    std::vector<bits> all = {0, 1, 2, 3, least_normal - 1, least_normal, least_normal + 1, one, one + 1, one - 1,
        one + least_normal / 2, one + least_normal, one + least_normal + least_normal / 4, one - least_normal,
        infinity - 1, infinity - 2, infinity, infinity + 1, infinity + least_normal / 2, of.nan()};
    for (const int exponent : {-20, -1, 2, 7, 8, 15, 16, 23, 24, 31, 32, 63, 64}) {
        if (exponent > of.bias() || -exponent >= of.bias()) continue;
        const bits power = one + static_cast<bits>(exponent) * least_normal;
        all.push_back(power);
        all.push_back(power - 1);
        all.push_back(power + least_normal / 2);
    }
    // Beside a tie of a format with fewer digits.
    for (const int digits : {8, 11, 24})
        for (const bits beside : {bits{0}, bits{1}, ~bits{0}})
            if (digits <= of.fraction_bits) all.push_back(one + (bits{1} << (of.fraction_bits - digits)) + beside);
    const std::size_t positive = all.size();
    for (std::size_t k = 0; k < positive; ++k) all.push_back(all[k] | of.sign());
    return all;
}
std::vector<bits> special_values(const operand& of)
{
    if (of.type == "pred") return {0, 1};
    return of.is_floating() ? special_floats(of.format()) : special_integers(of.width());
}
bits random_value(const operand& of, generator& random)
{
    const bits any = random.next();
    if (of.type == "pred") return any & 1;
    if (!of.is_floating()) return low_bits(random.next(), of.width()) >> (any % 3 == 0 ? any / 3 % of.width() : 0);
    const exact::format format = of.format();
    if (any % 4 == 0) return random.next();
    // Near one, so that sums cancel and products stay finite; now and then with few digits, so that ties occur.
    const bits exponent = static_cast<bits>(format.bias()) + random.next() % 64 - 32;
    bits fraction = low_bits(random.next(), static_cast<unsigned>(format.fraction_bits));
    if (any % 4 == 1) fraction &= ~bits{0} << any / 4 % 64;
    const bits sign = (any >> 60 & 1) != 0 ? format.sign() : 0;
    const bits least = 1, most = (format.infinity() >> format.fraction_bits) - 1;
    const bits within = format.exponent_bits == 5 ? least + exponent % most : exponent;
    return sign | within << format.fraction_bits | fraction;
}

} // namespace

std::vector<bits> operands_of(const form_case& of)
{
    generator random;
    std::array<std::vector<bits>, 4> special;
    for (std::size_t k = 0; k < of.operands.size(); ++k) special[k] = special_values(of.operands[k]);
    std::vector<bits> all;
    const auto add = [&](auto value) {
        for (std::size_t k = 0; k < 4; ++k) {
            bits x = random.next(); // what is beyond the operand's width
            if (k < of.operands.size()) {
                const unsigned width = of.operands[k].width();
                x = low_bits(value(k), width) | (width < 64 ? x >> width << width : 0);
            }
            all.push_back(x);
        }
    };
    if (!of.operands.empty()) {
        const std::size_t second = of.operands.size() > 1 ? special[1].size() : 1;
        const std::size_t pairs = special[0].size() * second, most = 4000, step = pairs / most + 1;
        for (std::size_t j = 0; j < pairs; j += 1 + random.next() % (2 * step - 1))
            add([&](std::size_t k) {
                if (k == 0) return special[0][j / second];
                return k == 1 ? special[1][j % second] : special[k][random.next() % special[k].size()];
            });
    }
    for (int n = 0; n < 500; ++n)
        add([&](std::size_t k) {
            if (random.next() % 3 == 0) return special[k][random.next() % special[k].size()];
            return random_value(of.operands[k], random);
        });
    while (all.size() % (4 * 32) != 0) all.push_back(0);
    return all;
}

std::string kernel_text(const form_case& of)
{
    const auto stored = [](const operand& each) { return each.in == "pred" ? std::string("u16") : each.in; };
    const auto number = [](std::size_t k) { return std::to_string(k); };
    std::string text = ".version 8.0\n.target sm_80\n.address_size 64\n"
                       ".visible .entry tested(.param .u64 from, .param .u64 to)\n{\n"
                       ".reg .pred %p<4>;\n.reg .b16 %h<4>;\n.reg .b32 %x<4>, %lane<4>;\n.reg .b64 %y<4>, %at<4>;\n"
                       "mov.u32 %lane0, %ctaid.x;\nshl.b32 %lane1, %lane0, 5;\nmov.u32 %lane2, %tid.x;\n"
                       "add.u32 %lane3, %lane1, %lane2;\nld.param.u64 %at0, [from];\nld.param.u64 %at1, [to];\n"
                       "mad.wide.u32 %at2, %lane3, 32, %at0;\nmad.wide.u32 %at3, %lane3, 8, %at1;\n";
    std::string plain = of.forms + " %d";
    text += ".reg ." + of.result.in + " %d;\n";
    for (std::size_t k = 0; k < of.operands.size(); ++k) {
        const operand& each = of.operands[k];
        const std::string name = "%a" + number(k), from = ", [%at2+" + number(8 * k) + "];\n";
        text += ".reg ." + each.in + " " + name + ";\n";
        if (each.in == "pred") {
            text += "ld.global.u16 %h0" + from + "and.b16 %h0, %h0, 1;\nsetp.ne.s16 " + name + ", %h0, 0;\n";
        } else text += "ld.global." + each.in + " " + name + from;
        plain += ", " + name;
    }
    text += (of.text.empty() ? plain + ";" : of.text) + "\n";
    if (of.result.in == "pred") text += "selp.u16 %h0, 1, 0, %d;\n";
    text += "st.global." + stored(of.result) + " [%at3], " + (of.result.in == "pred" ? "%h0" : "%d") + ";\nret;\n}\n";
    return text;
}

} // namespace form_test

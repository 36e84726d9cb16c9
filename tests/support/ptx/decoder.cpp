// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Where an instruction keeps its operands. All slots are of registers of the type's width, if nothing else is said;
// numbers, symbols and special registers have slots too, filled before the kernel runs.
//
//   arithmetic      d[0] = f(a, b, c, e), as many as the instruction has
//     add.cc ...    c: the carries of the warp, a predicate
//     cvt           widths[0], widths[1]: of the registers d[0] and a
//     mov.b64.split2 ...  d[0..1] = parts of a;  mov.b64.pack2 ...  d[0] = parts in a, b
//   ld, st          d[k]: element k, or none, each `widths[0]` wide; address: a (`address_bytes` wide) + offset;
//                   bytes, elements; in, how
//   atom, red       d[0]: the old value, or none; address as for ld; b: the operand; in, how
//   shfl            d[0]; d[1]: a predicate or none; a, b, c; mode: 0 down, 1 butterfly
//   vote            d[0]; a: a predicate; mode: 0 any, 1 ballot; widths[1] = 1: a is negated
//   warp_sync       e: the members (shfl, vote, bar.warp.sync)
//   cvta            d[0], a

#include <algorithm>
#include <utility>

#include "tests/support/ptx/forms.hpp"
#include "tests/support/ptx/text.hpp"

namespace ptx {

namespace {

/// Operands of plain instructions: the field and the width of each. t: of the type, w: twice that, p: a predicate,
/// 4 and 8: bytes.
struct operand_rule {
    std::string_view opcodes, operands;
};
constexpr operand_rule operand_rules[] = {
    {"add sub mul min max div rem and or xor addc subc", "dt at bt"},
    {"shl shr", "dt at b4"},
    {"mul.wide", "dw at bt"},
    {"mad fma prmt", "dt at bt ct"},
    {"mov abs neg not sqrt rcp rsqrt ex2", "dt at"},
    {"setp", "dp at bt"},
    {"clz popc", "d4 at"},
    {"bfi", "dt at bt c4 e4"},
    {"selp", "dt at bt cp"},
    {"shf", "d4 a4 b4 c4"},
    {"cvta", "d8 a8"},
    {"bar.warp", "e4"},
};

std::map<std::string, std::vector<std::string>> make_operand_table()
{
    std::map<std::string, std::vector<std::string>> made;
    for (const operand_rule& rule : operand_rules)
        for (const std::string& opcode : words(rule.opcodes)) made[opcode] = words(rule.operands);
    return made;
}

std::map<std::string, special> make_special_names()
{
    return {{"%tid.x", special::tid}, {"%ntid.x", special::ntid}, {"%ctaid.x", special::ctaid},
        {"%nctaid.x", special::nctaid}};
}

u64 aligned(u64 at, u64 align) { return (at + align - 1) / align * align; }
std::vector<std::string> inside_braces(const std::string& text)
{
    if (text.empty() || text.front() != '{') return {text};
    return split(std::string_view(text).substr(1, text.size() - 2), ',');
}

struct register_place {
    slot at = none;
    unsigned width = 0;
};
struct register_range {
    slot first = none;
    unsigned width = 0;
    u32 count = 0;
};
struct scope {
    std::map<std::string, register_place> registers;
    std::map<std::string, register_range> ranges; ///< `%r<20>`
    std::map<std::string, symbol> symbols;
};
/// A function that is being decoded.
struct frame {
    bool is_entry = true;
    std::vector<scope> scopes = std::vector<scope>(1);
    std::map<std::string, u32> labels;
    std::vector<std::pair<u32, std::string>> jumps;
    std::vector<u32> returns;
};

/// A statement that is being decoded.
struct operation {
    std::string opcode;
    std::vector<std::string> parts; ///< of the opcode
    std::vector<std::string> arguments;
    std::string type; ///< the last part
    instruction made = {};

    bool has(std::string_view part) const { return std::find(parts.begin(), parts.end(), part) != parts.end(); }
    /// `a.b` if there is a second part.
    std::string first_two() const { return parts.size() > 1 ? parts[0] + "." + parts[1] : parts[0]; }
    /// The place of the first of `parts` that the opcode has, from 0; none: their number.
    u8 which(std::initializer_list<std::string_view> of) const
    {
        const auto found = std::find_if(of.begin(), of.end(), [&](std::string_view part) { return has(part); });
        return static_cast<u8>(found - of.begin());
    }
};

class decoder {
public:
    decoder(module& in, kernel& to) : in_(in), to_(to) {}

    void read_kernel(const function& from)
    {
        frame outer;
        std::size_t at = 0;
        for (const parameter& each : from.parameters) {
            at = aligned(at, each.align);
            outer.scopes.back().symbols[each.name] = {space::param, at, each.bytes, each.align};
            to_.parameters.push_back({at, each.bytes});
            at += each.bytes;
        }
        to_.parameter_bytes = at;
        to_.most_threads = from.most_threads;
        read_function(from, outer);
        text_ = "the end";
        operation last;
        last.made.what = kind::leave;
        emit(last);
        to_.local_bytes = static_cast<u32>(aligned(to_.local_bytes, 16));
    }

private:
    using reader = void (decoder::*)(operation&);

    [[noreturn]] void refuse(const std::string& why) const
    {
        const std::string where = "`" + one_line(text_) + "`, line " + std::to_string(line_) + ", in " + to_.name;
        throw std::runtime_error("ptx: " + why + ": " + where);
    }

    // --- Slots ---

    slot new_slot(unsigned width)
    {
        const slot at = to_.register_bytes;
        to_.register_bytes += 32 * width;
        return at;
    }
    slot constant(unsigned width, u64 value)
    {
        if (width == 1) value = value != 0;
        else if (width < 8) value &= (u64{1} << (8 * width)) - 1;
        const auto [found, is_new] = constants_.try_emplace({width, value}, none);
        if (is_new) {
            found->second = new_slot(width);
            to_.constants.push_back({found->second, width, value});
        }
        return found->second;
    }
    slot special_slot(special what, unsigned width, u64 value = 0)
    {
        const auto [found, is_new] = specials_.try_emplace({what, value}, none);
        if (is_new) {
            found->second = new_slot(width);
            to_.specials.push_back({what, found->second, value});
        }
        return found->second;
    }

    // --- Names ---

    std::optional<register_place> find_register(const std::string& name) const
    {
        const std::size_t digits = name.find_last_not_of("0123456789") + 1;
        for (auto s = now_->scopes.rbegin(); s != now_->scopes.rend(); ++s) {
            if (const auto exact = s->registers.find(name); exact != s->registers.end()) return exact->second;
            if (digits == name.size()) continue;
            const auto many = s->ranges.find(name.substr(0, digits));
            if (many == s->ranges.end()) continue;
            const u32 index = static_cast<u32>(std::stoul(name.substr(digits)));
            const auto& [first, width, count] = many->second;
            if (index < count) return register_place{first + index * 32 * width, width};
        }
        return {};
    }
    symbol find_symbol(const std::string& name)
    {
        for (auto s = now_->scopes.rbegin(); s != now_->scopes.rend(); ++s)
            if (const auto found = s->symbols.find(name); found != s->symbols.end()) return found->second;
        const auto found = in_.symbols.find(name);
        if (found == in_.symbols.end()) refuse("no symbol " + name);
        symbol made = found->second;
        if (!made.problem.empty()) refuse(made.problem);
        if (made.in != space::shared) return made;
        if (made.at == none) {
            to_.has_dynamic = true;
            made.at = dynamic_at;
            return made;
        }
        const auto [placed, is_new] = module_shared_.try_emplace(name, 0);
        if (is_new) placed->second = place(to_.shared_bytes, made.bytes, made.align);
        made.at = placed->second;
        return made;
    }
    static u64 place(u32& used, std::size_t bytes, std::size_t align)
    {
        const u64 at = aligned(used, align);
        used = static_cast<u32>(at + bytes);
        return at;
    }

    // --- Operands ---

    /// Of a register, which must have this width, or at least, if `own_width` is asked for.
    std::optional<slot> register_operand(const std::string& name, unsigned width, unsigned* own_width)
    {
        const std::optional<register_place> found = find_register(name);
        if (!found) return {};
        const bool fits = own_width != nullptr ? found->width >= width : found->width == width;
        if (!fits) refuse("a register of another width");
        if (own_width != nullptr) *own_width = found->width;
        return found->at;
    }
    slot destination(const std::string& name, unsigned width, unsigned* own_width = nullptr)
    {
        if (own_width != nullptr) *own_width = 0;
        if (name == "_") return none;
        const std::optional<slot> found = register_operand(name, width, own_width);
        if (!found) refuse("no register " + name);
        return *found;
    }
    slot source(const std::string& name, unsigned width, unsigned* own_width = nullptr)
    {
        if (const std::optional<slot> found = register_operand(name, width, own_width)) return *found;
        if (own_width != nullptr) *own_width = width;
        return fixed(name, width);
    }
    /// Of what no instruction writes.
    slot fixed(const std::string& name, unsigned width)
    {
        if (const std::optional<u64> value = number(name)) return constant(width, *value);
        if (name[0] == '%') {
            static const std::map<std::string, special> names = make_special_names();
            const auto found = names.find(name);
            if (found == names.end()) refuse("no register " + name);
            if (width != 4) refuse("a register of another width");
            return special_slot(found->second, width);
        }
        const auto [base, offset] = name_and_offset(name);
        const symbol found = find_symbol(base);
        const u64 at = found.at + static_cast<u64>(offset);
        if (found.in != space::param) return constant(width, at);
        if (width != 8) refuse("a register of another width");
        return special_slot(special::parameter_address, 8, at);
    }
    void address(operation& of, const std::string& text)
    {
        instruction& made = of.made;
        if (text.size() < 2 || text.front() != '[') refuse("no address");
        const auto [base, offset] = name_and_offset(trimmed(std::string_view(text).substr(1, text.size() - 2)));
        made.offset = offset;
        if (const std::optional<register_place> found = find_register(base)) {
            if (found->width != 4 && found->width != 8) refuse("an address of another width");
            made.address_bytes = static_cast<u8>(found->width);
            made.a = found->at;
            if (made.in == space::param && !now_->is_entry) made.in = space::local;
            return;
        }
        if (const std::optional<u64> value = number(base)) {
            made.offset += static_cast<s64>(*value);
            return;
        }
        const symbol found = find_symbol(base);
        made.offset += static_cast<s64>(found.at);
        if (made.in == space::param || made.in == space::generic) made.in = found.in; // a call's parameters are local
    }
    void need(const operation& of, std::size_t least, std::size_t most) const
    {
        if (of.arguments.size() < least || of.arguments.size() > most) refuse("an unknown number of operands");
    }
    void read_operands(operation& of, const std::vector<std::string>& rule)
    {
        need(of, rule.size(), rule.size());
        instruction& made = of.made;
        for (std::size_t k = 0; k < rule.size(); ++k) {
            const std::string& text = of.arguments[k];
            const char field = rule[k][0], size = rule[k][1];
            const unsigned width = size == 'p' ? 1
                : size == 't'                  ? type_bytes(of.type)
                : size == 'w'                  ? 2 * type_bytes(of.type)
                                               : static_cast<unsigned>(size - '0');
            slot* const fields[] = {&made.a, &made.b, &made.c, &made.d[0], &made.e};
            slot& to = *fields[field - 'a'];
            to = field == 'd' ? destination(text, width) : source(text, width);
            if (to == none) refuse("no register " + text);
        }
    }

    handler find(const std::string& form) const
    {
        const handler found = find_handler(form);
        if (found == nullptr) refuse("unsupported instruction");
        return found;
    }
    u32 emit(operation& of)
    {
        of.made.text = static_cast<u32>(to_.texts.size());
        of.made.line = line_;
        to_.texts.push_back(one_line(text_));
        to_.code.push_back(of.made);
        return static_cast<u32>(to_.code.size() - 1);
    }

    // --- Functions ---

    void read_function(const function& from, frame& as)
    {
        frame* const outer = std::exchange(now_, &as);
        for (const statement& each : from.body) {
            text_ = each.text;
            line_ = each.line;
            switch (each.what) {
            case statement::open: as.scopes.emplace_back(); break;
            case statement::close: as.scopes.pop_back(); break;
            case statement::label:
                if (!as.labels.emplace(each.text, static_cast<u32>(to_.code.size())).second) refuse("a label again");
                break;
            case statement::directive: declare(each.text); break;
            case statement::operation: read_statement(each.text); break;
            }
        }
        for (const auto& [at, label] : as.jumps) {
            const auto found = as.labels.find(label);
            if (found == as.labels.end()) refuse("no label " + label);
            to_.code[at].target = found->second;
        }
        for (const u32 at : as.returns) to_.code[at].target = static_cast<u32>(to_.code.size());
        now_ = outer;
    }

    void declare(const std::string& text)
    {
        const std::string first = text.substr(0, text.find_first_of(blanks));
        scope& here = now_->scopes.back();
        if (first == ".reg") {
            declare_registers(here, text);
        } else if (first == ".shared" || first == ".local" || first == ".param") {
            const declaration made = read_declaration(text);
            const bool is_shared = first == ".shared";
            u32& used = is_shared ? to_.shared_bytes : to_.local_bytes;
            here.symbols[made.name] = {is_shared ? space::shared : space::local, place(used, made.bytes, made.align),
                made.bytes, made.align};
        } else if (first != ".pragma") refuse("unsupported directive");
    }
    /// `.reg .b32 %r<20>` or `.reg .pred p, q`
    void declare_registers(scope& here, const std::string& text)
    {
        const std::size_t type = text.find('.', 1) + 1;
        const std::size_t end = text.find_first_of(blanks, type);
        if (type == 0 || end == std::string::npos) refuse("unsupported directive");
        const unsigned width = type_bytes(text.substr(type, end - type));
        for (const std::string& name : split(text.substr(end), ',')) {
            const std::size_t many = name.find('<');
            if (many == std::string::npos) {
                here.registers[name] = {new_slot(width), width};
                continue;
            }
            const u32 count = static_cast<u32>(std::stoul(name.substr(many + 1)));
            here.ranges[name.substr(0, many)] = {to_.register_bytes, width, count};
            to_.register_bytes += count * 32 * width;
        }
    }

    // --- Statements ---

    void read_statement(std::string text)
    {
        operation of;
        if (text[0] == '@') {
            const std::size_t end = std::min(text.find_first_of(blanks), text.size());
            of.made.negated = text[1] == '!';
            const std::string name = text.substr(of.made.negated ? 2 : 1, end - (of.made.negated ? 2 : 1));
            const std::optional<register_place> found = find_register(name);
            if (!found || found->width != 1) refuse("no predicate " + name);
            of.made.predicate = found->at;
            text = trimmed(std::string_view(text).substr(end));
        }
        const std::size_t end = std::min(text.find_first_of(blanks), text.size());
        of.opcode = text.substr(0, end);
        of.parts = split(of.opcode, '.');
        if (of.parts.empty()) refuse("no instruction");
        of.type = of.parts.back();
        of.arguments = split(std::string_view(text).substr(end), ',');
        for (const std::string& each : of.arguments)
            if (each.empty()) refuse("an empty operand");
        static const std::map<std::string, reader> readers = make_readers();
        const auto found = readers.find(of.parts[0]);
        if (found != readers.end()) (this->*found->second)(of);
        else read_plain(of, of.opcode);
    }
    static std::map<std::string, reader> make_readers()
    {
        std::map<std::string, reader> made = {{"bra", &decoder::read_branch}, {"call", &decoder::read_call},
            {"bar", &decoder::read_barrier}, {"barrier", &decoder::read_barrier}, {"membar", &decoder::read_fence},
            {"shfl", &decoder::read_shuffle}, {"vote", &decoder::read_vote},
            {"cvta", &decoder::read_of_address}, {"mov", &decoder::read_move}, {"cvt", &decoder::read_conversion}};
        for (const char* each : {"ret", "exit"}) made[each] = &decoder::read_end;
        for (const char* each : {"ld", "st"}) made[each] = &decoder::read_access;
        for (const char* each : {"atom", "red"}) made[each] = &decoder::read_atomic;
        return made;
    }

    void read_plain(operation& of, const std::string& form)
    {
        static const std::map<std::string, std::vector<std::string>> rules = make_operand_table();
        auto rule = rules.find(of.first_two());
        if (rule == rules.end()) rule = rules.find(of.parts[0]);
        if (rule == rules.end()) refuse("unsupported instruction");
        of.made.run = find(form);
        read_operands(of, rule->second);
        const bool takes_carry = of.parts[0] == "addc" || of.parts[0] == "subc", gives_carry = of.has("cc");
        if (takes_carry || gives_carry) {
            if (carry_ == none) carry_ = new_slot(1);
            of.made.c = carry_;
        }
        emit(of);
    }

    void read_branch(operation& of)
    {
        need(of, 1, 1);
        of.made.what = kind::branch;
        now_->jumps.emplace_back(emit(of), of.arguments[0]);
    }
    void read_end(operation& of)
    {
        need(of, 0, 0);
        const bool returns = of.parts[0] == "ret" && !now_->is_entry;
        of.made.what = returns ? kind::branch : kind::leave;
        const u32 at = emit(of);
        if (returns) now_->returns.push_back(at);
    }
    void read_barrier(operation& of)
    {
        if (of.has("warp")) {
            of.made.what = kind::warp_sync;
            read_plain(of, "bar.warp.sync");
            return;
        }
        if (!of.has("sync") || of.arguments != std::vector<std::string>{"0"}) refuse("unsupported barrier");
        of.made.what = kind::barrier;
        emit(of);
    }
    void read_fence(operation& of)
    {
        need(of, 0, 0);
        of.made.run = find(of.opcode);
        emit(of);
    }

    void read_shuffle(operation& of)
    {
        need(of, 5, 5);
        of.made.what = kind::warp_sync;
        of.made.run = find("shfl");
        of.made.mode = of.which({"down", "bfly"});
        if (of.made.mode > 1 || !of.has("sync")) refuse("unsupported shuffle");
        const std::vector<std::string> results = split(of.arguments[0], '|');
        of.made.d[0] = destination(results[0], 4);
        if (results.size() > 1) of.made.d[1] = destination(results[1], 1);
        of.made.a = source(of.arguments[1], 4);
        of.made.b = source(of.arguments[2], 4);
        of.made.c = source(of.arguments[3], 4);
        of.made.e = source(of.arguments[4], 4);
        emit(of);
    }
    void read_vote(operation& of)
    {
        need(of, 3, 3);
        of.made.what = kind::warp_sync;
        of.made.run = find("vote");
        of.made.mode = of.which({"any", "ballot"});
        if (of.made.mode > 1 || !of.has("sync")) refuse("unsupported vote");
        of.made.d[0] = destination(of.arguments[0], of.made.mode == 1 ? 4 : 1);
        of.made.widths[1] = of.arguments[1][0] == '!';
        of.made.a = source(of.arguments[1].substr(of.made.widths[1]), 1);
        of.made.e = source(of.arguments[2], 4);
        emit(of);
    }
    void read_of_address(operation& of)
    {
        const bool is_local = of.has("local");
        if (!is_local && !of.has("global")) refuse("unsupported instruction");
        // Addresses of global memory are generic ones.
        read_plain(of, !is_local ? "mov.b64" : of.has("to") ? "cvta.to.local" : "cvta.local");
    }

    order order_of(const operation& of, order by_default) const
    {
        if (of.which({"acq_rel", "acquire", "release"}) < 3) refuse("unsupported order");
        if (of.has("nc")) return order::read_only;
        const bool is_fresh = of.which({"volatile", "relaxed", "mmio", "cg", "cv", "wt"}) < 6;
        return is_fresh ? order::fresh : by_default;
    }
    static space space_of(const operation& of)
    {
        for (const std::string& part : of.parts) {
            const std::string name = part.substr(0, part.find(':')); // `shared::cta`, `param::func`
            if (name == "global" || name == "const") return space::global;
            if (name == "shared") return space::shared;
            if (name == "local") return space::local;
            if (name == "param") return space::param;
        }
        return space::generic;
    }
    void read_access(operation& of)
    {
        need(of, 2, 2);
        const bool stores = of.parts[0] == "st";
        instruction& made = of.made;
        made.run = find((stores ? "st." : "ld.") + of.type);
        made.in = space_of(of);
        made.how = of.has("const") ? order::read_only : order_of(of, order::cached);
        made.bytes = static_cast<u8>(type_bytes(of.type));
        const std::vector<std::string> values = inside_braces(of.arguments[stores ? 1 : 0]);
        constexpr std::size_t sizes[] = {2, 4, 8, 1};
        if (values.size() != sizes[of.which({"v2", "v4", "v8"})] || values.size() > 4) refuse("unsupported vector");
        made.elements = static_cast<u8>(values.size());
        // All elements are as wide as the registers; numbers among them too.
        unsigned width = 0;
        for (const std::string& each : values) {
            const std::optional<register_place> found = find_register(each);
            if (!found) continue;
            if (width != 0 && found->width != width) refuse("registers of several widths");
            width = found->width;
        }
        if (width == 0) width = made.bytes;
        if (width < made.bytes) refuse("a register of another width");
        made.widths[0] = static_cast<u8>(width);
        for (std::size_t k = 0; k < values.size(); ++k)
            made.d[k] = stores ? source(values[k], width) : destination(values[k], width);
        address(of, of.arguments[stores ? 0 : 1]);
        emit(of);
    }
    void read_atomic(operation& of)
    {
        const std::size_t returns = of.parts[0] == "atom" ? 1 : 0;
        constexpr std::string_view all[] = {"add", "inc", "min"};
        const auto name = std::find_if(std::begin(all), std::end(all), [&](auto each) { return of.has(each); });
        if (name == std::end(all)) refuse("unsupported instruction");
        need(of, returns + 2, returns + 2);
        instruction& made = of.made;
        made.run = find("atom." + std::string(*name) + "." + of.type);
        made.in = space_of(of);
        made.how = order_of(of, order::fresh);
        made.bytes = static_cast<u8>(type_bytes(of.type));
        made.widths[0] = made.bytes;
        if (returns != 0) made.d[0] = destination(of.arguments[0], made.bytes);
        address(of, of.arguments[returns]);
        made.b = source(of.arguments[returns + 1], made.bytes);
        emit(of);
    }

    void read_move(operation& of)
    {
        need(of, 2, 2);
        const bool splits = of.arguments[0][0] == '{', packs = of.arguments[1][0] == '{';
        if (of.arguments[1] == "%globaltimer" || of.arguments[1] == "%clock64") {
            of.made.run = find(of.arguments[1]);
            of.made.d[0] = destination(of.arguments[0], 8);
            emit(of);
        } else if (splits || packs) {
            read_move_of_parts(of, splits);
        } else {
            read_plain(of, of.opcode);
        }
    }
    void read_move_of_parts(operation& of, bool splits)
    {
        const std::vector<std::string> parts = inside_braces(of.arguments[splits ? 0 : 1]);
        instruction& made = of.made;
        made.run = find(of.opcode + (splits ? ".split" : ".pack") + std::to_string(parts.size()));
        const unsigned whole = type_bytes(of.type), part = whole / static_cast<unsigned>(parts.size());
        slot* const parts_read[2] = {&made.a, &made.b};
        for (std::size_t k = 0; k < parts.size(); ++k) {
            if (splits) made.d[k] = destination(parts[k], part);
            else *parts_read[k] = source(parts[k], part);
        }
        if (splits) made.a = source(of.arguments[1], whole);
        else made.d[0] = destination(of.arguments[0], whole);
        emit(of);
    }

    void read_conversion(operation& of)
    {
        need(of, 2, 3);
        if (of.parts.size() < 3) refuse("no types");
        const std::string &from = of.type, &to = of.parts[of.parts.size() - 2];
        instruction& made = of.made;
        made.run = find(of.opcode);
        if (to.ends_with("x2") != (of.arguments.size() == 3)) refuse("an unknown number of operands");
        unsigned width = 0;
        made.d[0] = destination(of.arguments[0], type_bytes(to), &width);
        made.widths[0] = static_cast<u8>(width);
        made.a = source(of.arguments[1], type_bytes(from), &width);
        made.widths[1] = static_cast<u8>(width);
        if (of.arguments.size() == 3) made.b = source(of.arguments[2], type_bytes(from));
        if (made.d[0] == none) refuse("no destination");
        emit(of);
    }
    /// The called function's instructions stand in place of the call.
    void read_call(operation& of)
    {
        std::size_t at = 0;
        const auto list = [&]() -> std::vector<std::string> {
            if (at >= of.arguments.size() || of.arguments[at][0] != '(') return {};
            const std::string& text = of.arguments[at++];
            return split(std::string_view(text).substr(1, text.size() - 2), ',');
        };
        const std::vector<std::string> results = list();
        if (at >= of.arguments.size()) refuse("no function");
        const std::string name = of.arguments[at++];
        const std::vector<std::string> values = list();
        const auto found = in_.functions.find(name);
        if (found == in_.functions.end()) refuse("an indirect call");
        const function& callee = found->second;
        if (!callee.defined || of.made.predicate != none) refuse("unsupported call");
        if (++depth_ > 50) refuse("recursion");
        frame inner;
        inner.is_entry = false;
        bind(inner, results, callee.results);
        bind(inner, values, callee.parameters);
        read_function(callee, inner);
        --depth_;
    }
    void bind(frame& callee, const std::vector<std::string>& actual, const std::vector<parameter>& formal)
    {
        if (actual.size() != formal.size()) refuse("parameters do not match");
        for (std::size_t k = 0; k < actual.size(); ++k) {
            const symbol found = find_symbol(actual[k]);
            if (found.in != space::local) refuse("unsupported parameter " + actual[k]);
            callee.scopes.back().symbols[formal[k].name] = found;
        }
    }

    module& in_;
    kernel& to_;
    frame* now_ = nullptr;
    std::string text_;
    u32 line_ = 0;
    int depth_ = 0;
    slot carry_ = none;
    std::map<std::pair<unsigned, u64>, slot> constants_;
    std::map<std::pair<special, u64>, slot> specials_;
    std::map<std::string, u64> module_shared_;
};

} // namespace

std::unique_ptr<kernel> decode(module& in, const function& from)
{
    auto made = std::make_unique<kernel>();
    made->name = from.name;
    decoder(in, *made).read_kernel(from);
    return made;
}

const kernel* find_kernel(module& in, const std::string& name)
{
    const auto from = in.functions.find(name);
    if (from == in.functions.end() || !from->second.is_entry || !from->second.defined) return nullptr;
    std::unique_ptr<kernel>& found = in.decoded[name];
    if (!found) found = decode(in, from->second);
    return found.get();
}

bool replace(
    module& in, const std::string& kernel_name, std::string_view text, unsigned which, const std::string& by)
{
    if (find_kernel(in, kernel_name) == nullptr) return false;
    function& from = in.functions[kernel_name];
    for (auto each = from.body.begin(); each != from.body.end(); ++each) {
        if (each->what != statement::operation || each->text.find(text) == std::string::npos || which-- != 0) continue;
        if (by.empty()) from.body.erase(each);
        else each->text = by;
        *in.decoded[kernel_name] = std::move(*decode(in, from));
        return true;
    }
    return false;
}

const std::vector<parameter_place>& parameters(const kernel& of) { return of.parameters; }
std::size_t parameter_bytes(const kernel& of) { return of.parameter_bytes; }
unsigned most_threads(const kernel& of) { return of.most_threads; }
std::size_t static_shared_bytes(const kernel& of) { return of.shared_bytes; }

} // namespace ptx

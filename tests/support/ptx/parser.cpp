// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "tests/support/ptx/text.hpp"

namespace ptx {

std::string trimmed(std::string_view text)
{
    const std::size_t first = text.find_first_not_of(blanks);
    if (first == std::string_view::npos) return {};
    return std::string(text.substr(first, text.find_last_not_of(blanks) - first + 1));
}

std::vector<std::string> split(std::string_view text, char at)
{
    std::vector<std::string> pieces;
    int depth = 0;
    std::size_t begin = 0;
    for (std::size_t k = 0; k < text.size(); ++k) {
        const char c = text[k];
        if (c == '{' || c == '(' || c == '[') ++depth;
        if (c == '}' || c == ')' || c == ']') --depth;
        if (c != at || depth != 0) continue;
        pieces.push_back(trimmed(text.substr(begin, k - begin)));
        begin = k + 1;
    }
    if (const std::string last = trimmed(text.substr(begin)); !last.empty() || !pieces.empty()) pieces.push_back(last);
    return pieces;
}

std::vector<std::string> words(std::string_view text)
{
    std::vector<std::string> all;
    for (std::size_t begin = 0; (begin = text.find_first_not_of(blanks, begin)) != std::string_view::npos;) {
        const std::size_t end = std::min(text.find_first_of(blanks, begin), text.size());
        all.emplace_back(text.substr(begin, end - begin));
        begin = end;
    }
    return all;
}

std::string one_line(std::string_view text)
{
    std::string joined;
    for (const std::string& word : words(text)) joined += (joined.empty() ? "" : " ") + word;
    return joined;
}

std::optional<u64> number(std::string_view text)
{
    const std::string own(text);
    const auto parse = [&](std::size_t from, int base) -> std::optional<u64> {
        if (from >= own.size() || !std::isxdigit(static_cast<unsigned char>(own[from]))) return {};
        char* end = nullptr;
        const u64 value = std::strtoull(own.c_str() + from, &end, base);
        if (base == 0 && *end == 'U') ++end;
        if (*end != '\0') return {};
        return value;
    };
    if (own.size() > 2 && own[0] == '0' && std::strchr("fFdD", own[1]) != nullptr) return parse(2, 16);
    if (own.empty() || own[0] != '-') return parse(0, 0);
    const std::optional<u64> positive = parse(1, 0);
    if (!positive) return {};
    return 0 - *positive;
}

std::pair<std::string, s64> name_and_offset(std::string_view text)
{
    const std::size_t sign = text.find_first_of("+-", 1);
    if (sign == std::string_view::npos) return {trimmed(text), 0};
    std::string behind = trimmed(text.substr(sign));
    if (behind[0] == '+') behind = trimmed(behind.substr(1)); // `+-8` is written too
    const std::optional<u64> offset = number(behind);
    if (!offset) return {trimmed(text), 0};
    return {trimmed(text.substr(0, sign)), static_cast<s64>(*offset)};
}

bool is_type(std::string_view text)
{
    static constexpr std::string_view all[] = {"u8", "s8", "b8", "u16", "s16", "b16", "f16", "bf16", "u16x2", "f16x2",
        "bf16x2", "e4m3x2", "u32", "s32", "b32", "f32", "u64", "s64", "b64", "f64", "pred"};
    return std::find(std::begin(all), std::end(all), text) != std::end(all);
}

unsigned type_bytes(std::string_view type)
{
    if (!is_type(type)) throw std::runtime_error("ptx: no type: " + std::string(type));
    if (type == "pred") return 1;
    if (type == "e4m3x2") return 2;
    if (type.ends_with("x2")) return 4;
    const std::size_t digits = type.find_first_of("0123456789");
    return static_cast<unsigned>(std::stoul(std::string(type.substr(digits)))) / 8;
}

declaration read_declaration(const std::string& text)
{
    declaration made;
    const std::size_t equals = text.find('=');
    std::size_t count = 1, align = 0;
    const std::vector<std::string> all = words(text.substr(0, equals));
    for (std::size_t k = 0; k < all.size(); ++k) {
        const std::string& word = all[k];
        if (word == ".align" && k + 1 < all.size()) {
            align = std::stoul(all[++k]);
        } else if (word[0] == '.') {
            if (is_type(word.substr(1))) made.element_bytes = type_bytes(word.substr(1));
        } else {
            const std::size_t bracket = word.find('[');
            made.name = word.substr(0, bracket);
            for (std::size_t b = bracket; b != std::string::npos; b = word.find('[', b + 1)) {
                if (word[b + 1] == ']') made.open_array = true;
                else count *= std::stoul(word.substr(b + 1));
            }
        }
    }
    if (made.element_bytes == 0) throw std::runtime_error("ptx: no type in `" + text + "`");
    made.bytes = made.open_array ? 0 : made.element_bytes * count;
    made.align = align != 0 ? align : made.element_bytes;
    return made;
}

namespace {

class parser {
public:
    parser(module& to, std::string text) : to_(to), text_(std::move(text)) {}

    void read_module()
    {
        blank_comments();
        for (skip_blanks(); at_ < text_.size() && text_[at_] != '\0'; skip_blanks()) read_item();
    }

private:
    [[noreturn]] void refuse(const std::string& why) const
    {
        throw std::runtime_error("ptx: " + why + " in line " + std::to_string(line_));
    }

    /// Lines stay.
    void blank_comments()
    {
        for (std::size_t at = 0; (at = text_.find('/', at)) != std::string::npos && at + 1 < text_.size();) {
            const char next = text_[at + 1];
            std::size_t end = at + 1;
            if (next == '/') end = std::min(text_.find('\n', at), text_.size());
            else if (next == '*') end = std::min(text_.find("*/", at + 2), text_.size() - 2) + 2;
            if (end > at + 1)
                std::replace_if(text_.begin() + static_cast<std::ptrdiff_t>(at),
                    text_.begin() + static_cast<std::ptrdiff_t>(end), [](char c) { return c != '\n'; }, ' ');
            at = end;
        }
    }
    void skip_blanks()
    {
        const std::size_t end = std::min(text_.find_first_not_of(blanks, at_), text_.size());
        line_ += static_cast<u32>(std::count(text_.data() + at_, text_.data() + end, '\n'));
        at_ = end;
    }
    /// Up to one of the characters `ends`, which stays.
    std::string take_until(const char* ends)
    {
        const std::size_t end = std::min(text_.find_first_of(ends, at_), text_.size());
        std::string taken = text_.substr(at_, end - at_);
        line_ += static_cast<u32>(std::count(taken.begin(), taken.end(), '\n'));
        at_ = end;
        return taken;
    }
    void step_over(char expected)
    {
        if (at_ >= text_.size() || text_[at_] != expected) refuse(std::string("no '") + expected + "'");
        line_ += expected == '\n';
        ++at_;
    }
    bool here(std::string_view word) const { return std::string_view(text_).substr(at_, word.size()) == word; }
    bool at_line_directive() const
    {
        static constexpr std::string_view all[] = {".version", ".target", ".address_size", ".file", ".loc"};
        return std::any_of(std::begin(all), std::end(all), [&](std::string_view word) {
            const std::size_t end = at_ + word.size();
            return here(word) && end < text_.size() && std::isspace(static_cast<unsigned char>(text_[end]));
        });
    }

    void read_item()
    {
        if (at_line_directive()) {
            take_until("\n");
        } else if (here(".section")) { // of debugging information
            take_until("{");
            take_until("}");
            step_over('}');
        } else if (here(".pragma")) {
            take_until(";");
            step_over(';');
        } else {
            const std::string head = take_until(";{=");
            const std::vector<std::string> all = words(head.substr(0, head.find('(')));
            const auto has = [&](const char* word) { return std::find(all.begin(), all.end(), word) != all.end(); };
            if (has(".entry") || has(".func")) read_function(head, has(".entry"));
            else read_variable(head);
        }
    }

    void read_variable(std::string text)
    {
        if (at_ < text_.size() && text_[at_] == '=') text += take_until(";");
        step_over(';');
        const std::vector<std::string> all = words(text);
        const auto has = [&](const char* word) { return std::find(all.begin(), all.end(), word) != all.end(); };
        if (!has(".global") && !has(".const") && !has(".shared"))
            refuse("unsupported directive `" + trimmed(text) + "`");
        const declaration made = read_declaration(text);
        if (has(".shared")) {
            to_.symbols[made.name] = {space::shared, made.open_array ? u64{none} : 0, made.bytes, made.align};
            return;
        }
        if (!has(".extern")) to_.symbols[made.name].problem = "a variable of the module";
    }

    /// `(.param .b32 a, ...)` at `at`, which moves behind it.
    static std::vector<parameter> read_parameters(const std::string& head, std::size_t& at)
    {
        std::vector<parameter> all;
        at = std::min(head.find_first_not_of(blanks, at), head.size());
        if (at == head.size() || head[at] != '(') return all;
        const std::size_t close = std::min(head.find(')', at), head.size() - 1);
        for (const std::string& each : split(head.substr(at + 1, close - at - 1), ',')) {
            const declaration made = read_declaration(each);
            all.push_back({made.name, made.bytes, made.align});
        }
        at = close + 1;
        return all;
    }
    /// `.maxntid 128, 2, 1`
    static u32 read_most_threads(const std::string& head)
    {
        for (const std::string_view word : {".maxntid", ".reqntid"}) {
            const std::size_t at = head.find(word);
            if (at == std::string::npos) continue;
            const std::size_t from = at + word.size();
            u32 threads = 1;
            for (const std::string& each : split(head.substr(from, head.find('.', from) - from), ','))
                threads *= static_cast<u32>(std::stoul(each));
            return threads;
        }
        return 1024;
    }

    void read_function(const std::string& head, bool is_entry)
    {
        function made;
        made.is_entry = is_entry;
        const std::string_view word = is_entry ? ".entry" : ".func";
        std::size_t at = head.find(word) + word.size();
        made.results = read_parameters(head, at);
        at = std::min(head.find_first_not_of(blanks, at), head.size());
        const std::size_t end = std::min(head.find_first_of(" \t\r\n(", at), head.size());
        made.name = head.substr(at, end - at);
        if (made.name.empty() || made.name[0] == '.') refuse("unsupported function `" + trimmed(head) + "`");
        at = end;
        made.parameters = read_parameters(head, at);
        made.most_threads = read_most_threads(head.substr(at));
        if (at_ < text_.size() && text_[at_] == ';') {
            ++at_;
            to_.functions.try_emplace(made.name, made);
            return;
        }
        step_over('{');
        made.defined = true;
        read_body(made.body);
        to_.functions[made.name] = std::move(made);
    }
    void read_body(std::vector<statement>& to)
    {
        int depth = 1;
        for (skip_blanks(); depth > 0; skip_blanks()) {
            if (at_ >= text_.size()) refuse("the text ends in a function");
            if (text_[at_] == '{') {
                ++at_, ++depth;
                to.push_back({statement::open, {}, line_});
            } else if (text_[at_] == '}') {
                ++at_, --depth;
                if (depth > 0) to.push_back({statement::close, {}, line_});
            } else if (at_line_directive()) {
                take_until("\n");
            } else {
                read_statement(to);
            }
        }
    }
    void read_statement(std::vector<statement>& to)
    {
        // A label is one word and a colon.
        std::size_t end = at_;
        const auto in_word = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '$' || c == '%'; };
        while (end < text_.size() && in_word(static_cast<unsigned char>(text_[end]))) ++end;
        if (end > at_ && end + 1 < text_.size() && text_[end] == ':' && text_[end + 1] != ':') {
            to.push_back({statement::label, text_.substr(at_, end - at_), line_});
            at_ = end + 1;
            return;
        }
        const u32 first_line = line_;
        const std::string whole = trimmed(take_until(";"));
        step_over(';');
        if (whole.empty()) return; // a second semicolon
        to.push_back({whole[0] == '.' ? statement::directive : statement::operation, whole, first_line});
    }

    module& to_;
    std::string text_;
    std::size_t at_ = 0;
    u32 line_ = 1;
};

} // namespace

std::shared_ptr<module> load(std::string text)
{
    auto made = std::make_shared<module>();
    parser(*made, std::move(text)).read_module();
    return made;
}

} // namespace ptx

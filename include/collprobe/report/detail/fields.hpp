// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/report/words.hpp>

/// The members of every record, one table a struct (record_fields.hpp). JSON, readers, comparisons of records and
/// what `collprobe members` says (cmake/record_members.py) follow from the tables. What a member means is said where it
/// is declared. A walk over a table is no template: what depends on types are offsets and `member_type`.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

class json_writer;

/// The unit of a member; the last ones also say how it is written.
enum class unit : std::uint8_t {
    none, elements, ranks, calls, steps, bytes, ns, us, gbs, ulp, db,
    positive, ///< null if 0: not known
    index, ///< of an element: null if `no_index`
    bits, ///< all 64 as a text, "0x1f": JavaScript reads numbers as doubles
    sizes, ///< [[elements]]
    columns, ///< a list by rank: an object with a list for each member
    rows, ///< a list by rank: of each a list of its members
};

enum class form : std::uint8_t { boolean, int32, uint32, uint64, real, enumeration, text, site, object, list };

/// A record, or a part of one, on a walk: the step that it belongs to, if any, and its index in a list.
struct walk {
    const void* record = nullptr;
    const step_record* step = nullptr;
    std::size_t index = 0;

    template <class Record>
    const Record& as() const noexcept { return *static_cast<const Record*>(record); }
};
using condition = bool (*)(const walk&);

struct member_type;
struct member_place;

/// A member of a record, or what follows from several ones.
struct field {
    enum class rule : std::uint8_t { common, always, rare, only_if };

    std::string_view name;
    std::string_view group = {}; ///< the object that it is written in; empty: the record's own
    const member_type* type = nullptr; ///< null: it follows from others, and no reader wants it
    std::ptrdiff_t offset = 0;
    unit in = unit::none;
    rule told = rule::common;
    condition when = nullptr; ///< of `only_if`, or of `rare`: then, too
    std::ptrdiff_t flag = -1; ///< offset of a `bool` without which there is no such member; -1: none
    void (*write)(json_writer&, const walk&) = nullptr; ///< of what follows from others

    field always() && { return told = rule::always, *this; }
    field only_if(condition holds) && { return told = rule::only_if, when = holds, *this; }
    field if_set(member_place known) &&;

    const void* of(const void* record) const noexcept { return static_cast<const char*>(record) + offset; }
    bool is_set(const void* record) const noexcept
    {
        return flag < 0 || *reinterpret_cast<const bool*>(static_cast<const char*>(record) + flag);
    }
};

/// The members of a struct, in the order of JSON.
struct field_table {
    template <std::size_t size>
    field_table(const field (&fields)[size], condition is_whole = nullptr)
        : first(fields), count(size), whole(is_whole)
    {
    }
    const field* begin() const noexcept { return first; }
    const field* end() const noexcept { return first + count; }

    const field* first;
    std::size_t count;
    condition whole; ///< where this does not hold, common members are rare
};
template <class Record>
field_table fields_of();

/// The items of a list.
struct list_items {
    const void* at(std::size_t index) const noexcept { return first + index * bytes; }

    const char* first = nullptr;
    std::size_t count = 0;
    std::size_t bytes = 0; ///< of an item
};

/// What a walk must know of the type of a member. Functions that do not apply are null.
struct member_type {
    form how = form::object;
    const char* (*name_of)(std::uint8_t) = nullptr; ///< an enumerator
    field_table (*fields)() = nullptr;
    const void* (*fresh)() = nullptr; ///< an object as new
    const member_type* element = nullptr;
    list_items (*items)(const void*) = nullptr;
};

template <class T>
struct type_of {
    static constexpr member_type make()
    {
        if constexpr (std::is_enum_v<T>) {
            static_assert(sizeof(T) == 1);
            return {.how = form::enumeration, .name_of = [](std::uint8_t of) { return name(static_cast<T>(of)); }};
        } else if constexpr (std::is_same_v<T, bool>) return {.how = form::boolean};
        else if constexpr (std::is_same_v<T, int>) return {.how = form::int32};
        else if constexpr (std::is_same_v<T, std::uint32_t>) return {.how = form::uint32};
        else if constexpr (std::is_same_v<T, std::uint64_t>) return {.how = form::uint64};
        else if constexpr (std::is_same_v<T, double>) return {.how = form::real};
        else if constexpr (std::is_same_v<T, std::string>) return {.how = form::text};
        else if constexpr (std::is_same_v<T, call_site>) return {.how = form::site};
        else return {.how = form::object, .fields = &fields_of<T>, .fresh = &fresh};
    }
    static const void* fresh()
    {
        static const T made{};
        return &made;
    }
    static constexpr member_type is = make();
};

template <class T>
struct type_of<std::vector<T>> {
    static list_items items(const void* of)
    {
        const auto& all = *static_cast<const std::vector<T>*>(of);
        return {reinterpret_cast<const char*>(all.data()), all.size(), sizeof(T)};
    }
    static constexpr member_type is{.how = form::list, .element = &type_of<T>::is, .items = &items};
};

/// Where a member lies in its record, or a member of a member.
struct member_place {
    template <class Of, class Member>
    member_place(Member Of::*where) : type(&type_of<Member>::is), offset(offset_of(where))
    {
    }
    template <class Of, class Part, class Member>
    member_place(Part Of::*first, Member Part::*where)
        : type(&type_of<Member>::is), offset(offset_of(first) + offset_of(where))
    {
    }
    template <class Of, class Member>
    static std::ptrdiff_t offset_of(Member Of::*where)
    {
        const auto& fresh = *static_cast<const Of*>(type_of<Of>::fresh());
        return reinterpret_cast<const char*>(&(fresh.*where)) - reinterpret_cast<const char*>(&fresh);
    }

    const member_type* type;
    std::ptrdiff_t offset;
};

inline field field::if_set(member_place known) &&
{
    flag = known.offset;
    return *this;
}

/// `name`: in JSON; "a.b" is the member `b` of an object `a`.
inline field make_field(std::string_view name, const member_type* type)
{
    const std::size_t dot = name.find('.');
    const std::size_t group = dot == name.npos ? 0 : dot;
    return {.name = name.substr(group == 0 ? 0 : group + 1), .group = name.substr(0, group), .type = type};
}

inline field member(const char* name, member_place at, unit in = unit::none)
{
    field made = make_field(name, at.type);
    made.offset = at.offset;
    made.in = in;
    return made;
}
/// A member that is left out where it is as in a new record and `when` does not hold.
inline field rare(const char* name, member_place at, unit in = unit::none, condition when = nullptr)
{
    field made = member(name, at, in);
    made.told = field::rule::rare;
    made.when = when;
    return made;
}
inline field follows(const char* name, condition when, void (*write)(json_writer&, const walk&))
{
    field made = make_field(name, nullptr);
    made.told = when == nullptr ? field::rule::always : field::rule::only_if;
    made.when = when;
    made.write = write;
    return made;
}

/// Whether two values have the same members, bit for bit; NaN is like NaN. Of a call's place: its name, and file and
/// line as reports write them.
inline bool is_same(const member_type& type, const void* a, const void* b)
{
    const auto are = [&]<class T>(T) { return *static_cast<const T*>(a) == *static_cast<const T*>(b); };
    switch (type.how) {
    case form::boolean:
    case form::enumeration: return are(std::uint8_t{});
    case form::int32:
    case form::uint32: return are(std::uint32_t{});
    case form::uint64: return are(std::uint64_t{});
    case form::text: return are(std::string{});
    case form::real: {
        const double x = *static_cast<const double*>(a);
        const double y = *static_cast<const double*>(b);
        return to_bits(x) == to_bits(y) || (is_nan(x) && is_nan(y));
    }
    case form::site: {
        const auto& x = *static_cast<const call_site*>(a);
        const auto& y = *static_cast<const call_site*>(b);
        return std::strcmp(x.name, y.name) == 0 && x.line == y.line && (x.line == 0 || short_line(x) == short_line(y));
    }
    case form::object:
        for (const field& each : type.fields()) {
            if (each.type == nullptr) continue;
            if (!is_same(*each.type, each.of(a), each.of(b)) || each.is_set(a) != each.is_set(b)) return false;
        }
        return true;
    case form::list: break;
    }
    const list_items x = type.items(a);
    const list_items y = type.items(b);
    bool all = x.count == y.count;
    for (std::size_t i = 0; i < x.count && all; ++i) all = is_same(*type.element, x.at(i), y.at(i));
    return all;
}

/// Whether a member of a record is written. `fresh`: a new record.
inline bool is_told(const field& of, condition whole, const walk& at, const void* fresh)
{
    if (of.told == field::rule::only_if) return of.when(at);
    if (of.told == field::rule::always) return true;
    if (of.told == field::rule::common && (whole == nullptr || whole(at))) return of.is_set(at.record);
    return (of.when != nullptr && of.when(at)) || !is_same(*of.type, of.of(at.record), of.of(fresh));
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail

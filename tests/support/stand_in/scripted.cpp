// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <memory>
#include <string>

#include "tests/support/stand_in/stand_in.hpp"

namespace collprobe::stand_in {

namespace {

struct table {
    std::mutex guard;
    std::map<std::string, std::unique_ptr<scripted>> functions;

    // Never destroyed: calls may come from static destructors.
    static table& instance()
    {
        static table* const own = new table;
        return *own;
    }
};

} // namespace

scripted& scripted::named(const char* function)
{
    const std::lock_guard lock(table::instance().guard);
    std::unique_ptr<scripted>& found = table::instance().functions[function];
    if (!found) found = std::make_unique<scripted>();
    return *found;
}

int scripted::enter()
{
    calls_.fetch_add(1, std::memory_order_relaxed);
    if (armed_.load(std::memory_order_relaxed) == 0) return 0;
    const std::lock_guard lock(guard_);
    if (scripts_.empty()) return 0;
    if (scripts_.front().skip > 0) {
        --scripts_.front().skip;
        return 0;
    }
    const int code = scripts_.front().code;
    scripts_.pop_front();
    armed_.store(scripts_.size(), std::memory_order_relaxed);
    return code;
}

void scripted::add(unsigned skip, int code)
{
    const std::lock_guard lock(guard_);
    scripts_.push_back({skip, code});
    armed_.store(scripts_.size(), std::memory_order_relaxed);
}

void scripted::reset()
{
    const std::lock_guard lock(guard_);
    scripts_.clear();
    armed_.store(0, std::memory_order_relaxed);
    calls_.store(0, std::memory_order_relaxed);
}

void fail_next(const char* function, int code, unsigned skip) { scripted::named(function).add(skip, code); }

std::uint64_t calls(const char* function) { return scripted::named(function).calls(); }

namespace detail {

void reset_scripts()
{
    const std::lock_guard lock(table::instance().guard);
    for (const auto& [name, own] : table::instance().functions) own->reset();
}

} // namespace detail
} // namespace collprobe::stand_in

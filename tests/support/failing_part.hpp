// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/step/part.hpp>

namespace collprobe::testing {

/// A part that cannot judge step 5, where it `fails`.
struct failing_part {
    struct entry {
        std::uint64_t unused;
    };
    using summary = entry;
    template <element T, class Call>
    void before(Call&, view<const T>, entry*) const
    {
    }
    template <element T, class Call>
    void after(Call&, view<const T>, entry*) const
    {
    }
    COLLPROBE_HD static summary summarize(const entry& of) noexcept { return of; }
    void judge(const part_entries<entry>&, step_record& record) const { fail(record); }
    void judge_summary(const part_summaries<summary>&, step_record& record) const { fail(record); }
    void fail(const step_record& record) const
    {
        if (fails && record.step == 5) throw error(status::device_failure, "a rank alone", {});
    }
    bool fails = false;
};

} // namespace collprobe::testing

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/probed.hpp>

// compile_fail entry_of_half_a_word: first error: a part needs a type entry of whole 8-byte words
// compile_fail summary_that_nothing_makes: first error: needs a static summarize.entry. and judge_summary
// compile_fail summary_that_nothing_reads: first error: needs a static summarize.entry. and judge_summary

using namespace collprobe;

struct counter {
#if defined(SECTION_entry_of_half_a_word)
    struct entry { std::uint32_t count; };
#else
    struct entry { std::uint64_t count; };
#endif
    using summary = entry;
    template <element T>
    void before(auto&, view<const T>, entry*) const {}
    template <element T>
    void after(auto&, view<const T>, entry*) const {}
    void judge(const part_entries<entry>&, step_record&) const {}
#if !defined(SECTION_summary_that_nothing_makes)
    COLLPROBE_HD static summary summarize(const entry& of) { return of; }
#endif
#if !defined(SECTION_summary_that_nothing_reads)
    void judge_summary(const part_summaries<summary>&, step_record&) const {}
#endif
};

int main()
{
    probed comm{local::group(1).communicator(0), {.mode = report_mode::summary}, counter()};
}

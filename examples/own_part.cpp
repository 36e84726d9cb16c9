// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A check of one's own, as a part of the step: which rank has elements that a clip to 3 would change?
#include <cstdio>
#include <vector>

#include <collprobe/collprobe.hpp>

#include "report_files.hpp"

using namespace collprobe;

namespace {

/// Counts a buffer's elements beyond a limit. On the host or on a GPU: `add` is one thread's work.
template <element T>
struct count_beyond {
    static constexpr std::uint64_t block = 4096;
    using partial = std::uint64_t;
    view<const T> data;
    double limit;

    COLLPROBE_HD static partial identity() { return 0; }
    COLLPROBE_HD void add(partial& into, std::uint64_t index) const
    {
        const double value = static_cast<double>(data[index]);
        into += value > limit || value < -limit ? 1 : 0;
    }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const
    {
        for (std::uint64_t i = first; i < first + count; ++i) add(into, i);
    }
    COLLPROBE_HD static void merge(partial& into, partial next) { into += next; }
    COLLPROBE_HD static std::uint64_t finish(partial all) { return all; }
};

class clipped {
public:
    struct entry {
        std::uint64_t count;
    };
    explicit clipped(double limit) : limit_(limit) {}

    template <element T, class Call>
    void before(Call& call, view<const T> input, entry* to) const
    {
        call.reduce(count_beyond<T>{input, limit_}, input.count(), &to->count);
    }
    template <element T, class Call>
    void after(Call&, view<const T>, entry*) const
    {
    }
    void judge(const part_entries<entry>& entries, step_record& record) const
    {
        for (int call = 0; call < entries.calls(); ++call) {
            for (int rank = 0; rank < entries.ranks(); ++rank) {
                const std::uint64_t count = entries(call, rank).count;
                record.add_number(call_site::named("clipped elements"), call, rank, static_cast<double>(count));
                if (count == 0) continue;
                record.add({.ranks = {rank}, .call = call, .what = finding_kind::of_part,
                    .statistic = static_cast<double>(count),
                    .other = {.site = call_site::named("elements that the clip changes:")}});
            }
        }
    }

private:
    double limit_;
};

} // namespace

int main(int argc, char** argv)
{
    run_reports reports(argc, argv); // --html PATH, --jsonl PATH, --trace PATH, --prometheus PATH
    reports.begin("own_part", 4);
    local::run(4, [&](local::communicator& world) {
        probed comm{world, {}, clipped(3)};
        host::stream stream;
        std::vector<float> weights(1000, 0.5f * static_cast<float>(1 + world.rank())), sum(1000);
        std::vector<int> tokens{world.rank()};
        for (std::uint64_t step = 0; step < 3; ++step) {
            if (step == 1 && world.rank() == 2) weights[7] = weights[9] = -5;
            comm.all_reduce(weights, view(sum), reduction::sum, stream, call_site::named("weights"));
            comm.all_reduce(tokens, view(tokens), reduction::max, stream, call_site::named("tokens"));
            comm.end_step(step, stream);
            stream.synchronize();
        }
        for (step_record record; comm.poll(record);) {
            if (world.rank() != 0) continue;
            reports.put(record);
            for (const finding& found : record.findings)
                std::printf("step %d, %s\n", static_cast<int>(record.step), report::describe(found).c_str());
        }
    });
    reports.end();
}

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// trace_sample FOLDER: traces for trace_check.py. all.json has what a trace can have, at random; rank0.json to
// rank2.json are files of the ranks of one run; unfinished.json lacks its end.
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/report/trace.hpp>

#include "report/trace_records.hpp"

namespace {

using namespace collprobe;

/// Steps with calls that follow each other, overlap, have no times or no length.
class run_of_steps {
public:
    explicit run_of_steps(int ranks) : ranks_(ranks)
    {
        for (int rank = 0; rank < ranks; ++rank) clocks_.push_back(below(0xffffffff));
    }

    step_record next()
    {
        std::vector<call_record> calls;
        for (std::uint32_t n = below(6); n-- > 0;) calls.push_back(next_call());
        std::uint32_t pause = below(2'000'000);
        for (std::uint32_t& clock : clocks_) clock += pause + below(20);
        ns_ += 256 * std::uint64_t{pause};
        step_record record = testing::step_of(step_++, ranks_, std::move(calls));
        record.first_call = calls_;
        calls_ += record.calls.size();
        if (below(3) != 0) record.loss.mean = below(100) / 8.0;
        record.gradient_norm.mean = below(100) / 4.0;
        record.gradient_norm.cv = 0.5;
        record.cosine.mean_pairwise = -0.25;
        return record;
    }
    finding alarm(const step_record& about)
    {
        finding raised;
        raised.step = about.step - below(3) * (about.step > 3 ? 1 : 0);
        raised.call = static_cast<int>(below(7)) - 1;
        raised.what = static_cast<finding_kind>(below(13));
        for (int rank = 0; rank < ranks_; ++rank) {
            if (below(3) == 0) raised.ranks.push_back(rank);
        }
        return raised;
    }
    std::uint64_t now() { return testing::trace_begin + 5'000'000'000 + ns_ + below(2'000'000); }
    std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }

private:
    call_record next_call()
    {
        std::vector<call_interval> times;
        const std::uint32_t length = below(4) == 0 ? 0 : below(10'000);
        const std::uint32_t gap = below(3000);
        const bool goes_back = below(3) == 0;
        for (std::uint32_t& clock : clocks_) {
            const std::uint32_t entered = clock + (goes_back ? -gap : gap) - below(200);
            const std::uint32_t left = clock + gap + length + below(10);
            times.push_back({entered, left});
            clock = left;
        }
        ns_ += 256 * std::uint64_t{gap + length};
        call_record call = testing::timed_call(std::move(times), 1 + below(1000));
        call.call = static_cast<collective>(below(5));
        call.type = static_cast<element_type>(below(12));
        call.site = {"a/</script>\"\\\n\x01.cpp", "f", 7, below(2) == 0 ? "a \"name\"\n" : ""};
        call.has_result_digest = below(2) == 0;
        call.result_digest = random_();
        if (below(5) == 0) call.inputs.clear(); // nobody noted the times
        return call;
    }

    int ranks_;
    std::uint64_t step_ = 0;
    std::uint64_t calls_ = 0;
    std::uint64_t ns_ = 0;
    std::vector<std::uint32_t> clocks_;
    std::mt19937_64 random_{1};
};

void write(const std::string& path, const run_record& run, const report::trace_options& options, int steps)
{
    report::trace out(path, options);
    run_of_steps all(run.ranks);
    out.open(run);
    for (int i = 0; i < steps; ++i) {
        const step_record record = all.next();
        const record_context when{run, all.now(), 0};
        out.on_step(record, when);
        if (all.below(3) == 0 || i < 3) out.on_alarm(all.alarm(record), when);
        if (all.below(20) == 0) out.on_inspection({}, when);
    }
    if (path.find("unfinished") == path.npos) out.close({run, all.now(), 0});
}

} // namespace

int main(int count, char** arguments)
{
    const std::string folder = count > 1 ? arguments[1] : ".";
    run_record run = testing::traced_run(4);
    run.name = run.host = run.communicator = "a\"b\\\n</script>\x01";
    write(folder + "/all.json", run, {}, 400);
    write(folder + "/unfinished.json", run, {}, 4);
    run.global_rank = 1; // one of the ranks is in a part of the job, in another order
    run.rank = 3;
    write(folder + "/part.json", run, {}, 20);
    run.ranks = 3;
    run.communicator_id = "another";
    for (run.rank = 0; run.rank < 3; ++run.rank) {
        run.global_rank = 8 + run.rank;
        write(folder + "/rank" + std::to_string(run.rank) + ".json", run, {.all_ranks = false}, 50);
    }
}

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The code of the READMEs, run over some hundred healthy steps, names nobody. The lines between `// from FILE:` and
// `// end` below are those of the file's block that begins with the first of them, in their order; the last test
// compares them. A block may be in pieces, with what it takes for granted between them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <collprobe/alarm.hpp>
#include <collprobe/audit.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/report.hpp>

#include "support/errors.hpp"

namespace collprobe::testing::readme_blocks_test {
namespace {

constexpr int ranks = 4;
constexpr std::uint64_t steps = 300;

/// What a healthy rank computes in a step.
struct healthy_rank {
    std::mt19937_64 random;
    double tokens = 0;
    double loss = 0;
    std::vector<float> gradient = std::vector<float>(3000);

    explicit healthy_rank(int rank) : random(static_cast<std::uint64_t>(rank) + 1) {}
    void next()
    {
        std::normal_distribution<double> normal;
        tokens = static_cast<double>(1000 + random() % 1000);
        loss = 3 + 0.1 * normal(random);
        const double level = 1 + 0.05 * normal(random);
        for (float& each : gradient) each = static_cast<float>(level * normal(random));
    }
};

/// Nobody is named. Ranks that share cores may be late in fact.
void check(const collprobe::step_record& record)
{
    for (const collprobe::finding& each : record.findings) {
        if (each.what == collprobe::finding_kind::late || each.evidence.metric == collprobe::finding_kind::late) continue;
        collprobe::testing::require(false, "step " + std::to_string(record.step) + ": " + collprobe::report::describe(each));
    }
}
void check(const collprobe::step_record& record, collprobe::alarms& watch)
{
    check(record);
    for (const collprobe::finding& each : watch.judge(record))
        collprobe::testing::require(each.what == collprobe::finding_kind::late, "an alarm: " + collprobe::report::describe_alarm(each));
}
template <class Probe>
void check_rest(Probe& comm)
{
    for (collprobe::step_record record; comm.wait(record);) check(record);
}

} // namespace

TEST_CASE("the audit's first block")
{
    using namespace collprobe;
    local::run(ranks, [](local::communicator& world) {
        healthy_rank mine(world.rank());
        std::vector<float>& gradient = mine.gradient;
        const double& loss = mine.loss;
        host::stream stream;
        step_record record;
        struct {
            collprobe::alarms of{ranks};
            void judge(const step_record& record) { check(record, of); }
        } alarms;
        // from include/collprobe/audit/README.md:
        probed comm{world, {}, audit()};                      // {.statistics = false}: the audit alone
        // end
        for (std::uint64_t step = 0; step < steps; ++step) {
            stream.synchronize();
            mine.next();
            // from include/collprobe/audit/README.md:
            comm.all_reduce(gradient, view(gradient), reduction::sum, stream);
            comm.end_step(step, {.loss = loss}, stream);
            if (comm.poll(record)) alarms.judge(record);           // record.calls[i].audit, record.findings
            // end
        }
        check_rest(comm);
    });
}

TEST_CASE("the audit's block about weights, of an average by tokens")
{
    using namespace collprobe;
    local::run(ranks, [](local::communicator& world) {
        healthy_rank mine(world.rank());
        std::vector<float>& gradient = mine.gradient;
        const double& loss = mine.loss;
        const double& tokens = mine.tokens;
        std::vector<float> what_the_optimiser_gets;
        host::stream stream;
        step_record record;
        // from include/collprobe/audit/README.md:
        probed comm{world, {}, audit(), weight_probe({.every = 100})};
        // end
        for (std::uint64_t step = 0; step < steps; ++step) {
            mine.next();
            // from include/collprobe/audit/README.md:
            const auto token = comm.observe(view<const float>(gradient), stream);   // the mean gradient of the rank's tokens
            /* scale, all-reduce, divide, accumulate ... */
            // end
            what_the_optimiser_gets = gradient;
            for (float& each : what_the_optimiser_gets) each *= static_cast<float>(tokens);
            std::vector<double> total{tokens};
            comm.base().all_reduce(view<const double>(total), view<double>(total), reduction::sum, stream);
            comm.base().all_reduce(view<const float>(what_the_optimiser_gets), view<float>(what_the_optimiser_gets),
                reduction::sum, stream);
            stream.synchronize();
            for (float& each : what_the_optimiser_gets) each /= static_cast<float>(total[0]);
            // from include/collprobe/audit/README.md:
            token.result(view<const float>(what_the_optimiser_gets), stream);
            comm.end_step(step, {.loss = loss, .weight = tokens}, stream);
            // "bucket 0 'wte': rank 5 entered the average with weight 0 (others 1/8): rank lost"
            // end
            while (comm.wait(record)) {
                check(record);
                const call_weights& of = record.calls.at(0).weights;
                collprobe::testing::require(of.seen == (step % 100 == 0), "looked at another step");
                collprobe::testing::require(!of.seen || of.how == averaging::token_weighted, "another form");
            }
        }
    });
}

TEST_CASE("the alarms' block")
{
    using namespace collprobe;
    local::run(ranks, [](local::communicator& world) {
        healthy_rank mine(world.rank());
        std::vector<float>& g = mine.gradient;
        host::stream stream;
        step_record record;
        probed probe{world};
        struct {
            decltype(probe)& of;
            collprobe::alarms own{ranks};
            bool poll(step_record& record)
            {
                if (!of.poll(record)) return false;
                check(record, own);
                return true;
            }
        } comm{probe};
        // from include/collprobe/alarm/README.md:
        alarms watch(world.size());
        // end
        for (std::uint64_t step = 0; step < steps; ++step) {
            stream.synchronize();
            mine.next();
            probe.all_reduce(g, view(g), reduction::sum, stream);
            probe.end_step(step, {.loss = mine.loss}, stream);
            // from include/collprobe/alarm/README.md:
            while (comm.poll(record))
                for (const finding& raised : watch.judge(record)) std::puts(report::describe_alarm(raised).c_str());
            // end
        }
        check_rest(probe);
    });
}

TEST_CASE("the step's call with a name")
{
    using namespace collprobe;
    local::run(ranks, [](local::communicator& world) {
        healthy_rank mine(world.rank());
        std::vector<float>& g = mine.gradient;
        host::stream stream;
        probed comm{world};
        for (std::uint64_t step = 0; step < steps; ++step) {
            stream.synchronize();
            mine.next();
            // from include/collprobe/step/README.md: (in a sentence)
            comm.all_reduce(g, view(g), reduction::sum, stream, call_site::named("wte"));
            // end
            comm.end_step(step, {.loss = mine.loss}, stream);
            step_record record;
            if (comm.poll(record)) check(record);
        }
        check_rest(comm);
    });
}

TEST_CASE("the headers' block of a step between threads")
{
    // from include/collprobe/README.md:
    collprobe::local::run(4, [](collprobe::local::communicator& world) {
        std::vector<float> gradient(1000, float(world.rank() + 1)), average(1000);
        collprobe::host::stream stream;
        collprobe::probed comm{world}; // a communicator again: wrappers stack
        comm.all_reduce(gradient, collprobe::view(average), collprobe::reduction::average, stream);
        comm.end_step(0, {.loss = 0.5}, stream);
        stream.synchronize();
        collprobe::step_record record; // the same on every rank
        // end
        collprobe::testing::require(comm.pending_steps() == 1, "no step");
        // from include/collprobe/README.md:
        if (comm.poll(record) && world.rank() == 0) std::puts(collprobe::report::step_table(record).c_str());
        // end
        check(record);
        // from include/collprobe/README.md:
    });
    // end
}

TEST_CASE("the root's first block, but for NCCL, in a trainer of healthy ranks")
{
    constexpr auto ncclAvg = collprobe::reduction::average;
    collprobe::local::run(ranks, [](collprobe::local::communicator& world) {
        healthy_rank mine(world.rank());
        float* const grad = mine.gradient.data();
        const std::uint64_t n = mine.gradient.size();
        collprobe::host::stream traffic;
        collprobe::probed probe{world};
        for (std::uint64_t step = 0; step < steps; ++step) {
            mine.next();
            const double* const loss = &mine.loss;
            // from README.md: (some of its lines)
            probe.all_reduce(grad, grad, n, ncclAvg, traffic);
            probe.end_step(step, {.loss = loss}, traffic);
            // end
            traffic.synchronize();
            for (collprobe::step_record r; probe.poll(r);) check(r);
        }
        check_rest(probe);
    });
}

namespace {

/// Without what is around it; and a line of a diff without its plus.
std::string trimmed(const std::string& line)
{
    const std::size_t first = line.find_first_not_of(" \t+");
    return first == line.npos ? "" : line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
}
std::vector<std::string> lines_of(const std::filesystem::path& path)
{
    std::ifstream file(path);
    REQUIRE(file);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

} // namespace

TEST_CASE("what runs here is what the READMEs say")
{
    const std::filesystem::path here = __FILE__;
    const std::filesystem::path root = here.parent_path().parent_path().parent_path();
    struct copied {
        std::string file;
        std::vector<std::string> lines;
        bool is_part = false; ///< some of the lines
        bool is_in_sentence = false;
    };
    std::vector<copied> blocks; // one a test case and file
    bool is_inside = false;
    bool is_new_case = true;
    for (const std::string& line : lines_of(here)) {
        const std::string text = trimmed(line);
        if (text.starts_with("TEST_CASE(")) is_new_case = true;
        if (text == "// end") is_inside = false;
        if (is_inside) blocks.back().lines.push_back(text);
        if (!text.starts_with("// from ") || text.find(':') == text.npos) continue;
        is_inside = true;
        if (!is_new_case) continue;
        is_new_case = false;
        const std::size_t end = text.find(':');
        blocks.push_back({text.substr(8, end - 8), {}, text.ends_with("(some of its lines)"),
            text.ends_with("(in a sentence)")});
    }
    REQUIRE(blocks.size() == 6);
    for (const copied& block : blocks) {
        CAPTURE(block.file);
        REQUIRE_FALSE(block.lines.empty());
        const std::vector<std::string> text = lines_of(root / block.file);
        if (block.is_in_sentence) {
            const std::string code = '`' + block.lines[0].substr(0, block.lines[0].size() - 1) + '`';
            CHECK(std::any_of(text.begin(), text.end(),
                [&](const std::string& line) { return line.find(code) != line.npos; }));
            continue;
        }
        std::size_t at = 0;
        while (at < text.size() && trimmed(text[at]) != block.lines[0]) ++at;
        REQUIRE(at < text.size());
        for (std::size_t i = 0; i < block.lines.size(); ++i) {
            while (block.is_part && at < text.size() && trimmed(text[at]) != block.lines[i]) ++at;
            REQUIRE(at < text.size());
            CHECK(trimmed(text[at++]) == block.lines[i]);
        }
        const std::string behind = at < text.size() ? trimmed(text[at]) : "";
        if (!block.is_part) CHECK((behind.empty() || behind == "```")); // all of it
    }
}

} // namespace collprobe::testing::readme_blocks_test

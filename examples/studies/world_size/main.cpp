// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Does a training run depend on how many ranks share its work? Trains a small network on the same
// micro-batches with several numbers of ranks, in the order that an all-reduce has and under contracts that
// make it none of the result's business, and compares the weights bit by bit.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>

#include "../../report_files.hpp"
#include "../digits/dataset.hpp"
#include "../digits/progress.hpp"
#ifdef COLLPROBE_EXAMPLE_MPI
#include "mpi_ranks.hpp"
#endif
#include "options.hpp"
#include "report.hpp"
#include "train.hpp"

namespace {

using namespace world_size;

/// Ranks as threads of this process.
struct local_ranks {
    const options& given;

    int most() const { return 256; }
    bool speaks() const { return true; }
    template <class Fn>
    void run(int ranks, Fn fn) const
    {
        collprobe::local::run(ranks, {.order = given.order}, fn);
    }
};

std::string describe(const options& given, const std::vector<int>& sizes, const trainer::split_dataset& data)
{
    std::string ranks;
    for (const int n : sizes) ranks += (ranks.empty() ? "" : ", ") + std::to_string(n);
    const std::string order = given.communicator == communicator_kind::mpi ? "MPI's own"
                                                                           : collprobe::local::name(given.order);
    return "Training 64-64-64-10 on " + std::to_string(data.train.size()) + " digits (" + std::to_string(data.test.size())
        + " more to test): " + std::to_string(given.steps) + " steps of " + std::to_string(given.micro_batches)
        + " micro-batches of " + std::to_string(given.batch) + ", seed " + std::to_string(given.seed)
        + ".\nGradients travel as " + trainer::name(given.element) + ". Numbers of ranks: " + ranks
        + "; order of the native all-reduce: " + order + ".\n\n";
}

template <class Ranks>
int run(const options& given, Ranks&& ranks)
{
    const std::vector<int> sizes = given.ranks.empty() ? default_ranks(given.micro_batches, ranks.most()) : given.ranks;
    for (const int n : sizes) {
        if (n > ranks.most()) throw usage_error("--ranks: " + std::to_string(n) + " are more than the job has");
    }
    const trainer::split_dataset data = trainer::split(trainer::read_digits(given.data));
    // Before anything that takes long.
    run_reports reports(ranks.speaks() ? given.files : report_files(), given.reductions.size() * sizes.size() > 1);
    if (ranks.speaks()) std::fputs(describe(given, sizes, data).c_str(), stdout);
    std::fflush(stdout);

    std::vector<run_result> runs;
    trainer::progress shown(given.reductions.size() * sizes.size() * given.steps);
    for (const averaging how : given.reductions) {
        for (const int n : sizes) {
            run_result of_rank_0;
            reports.begin(std::string(name(how)) + " " + std::to_string(n) + "x" + std::to_string(given.micro_batches / n),
                n, settings_of(given, how));
            ranks.run(n, [&](auto& comm) {
                const bool first = comm.rank() == 0;
                const auto advance = [&] {
                    if (first) shown.advance(name(how));
                };
                const auto take = [&](const collprobe::step_record& record) {
                    if (first) reports.put(record);
                };
                run_result result = train(given, data, how, comm, take, advance);
                if (first) of_rank_0 = std::move(result);
            });
            reports.end();
            if (!ranks.speaks()) continue;
            runs.push_back(std::move(of_rank_0));
            reports.line(json_line(runs.back(), given.element));
        }
    }
    if (!ranks.speaks()) return 0;
    shown.clear();
    std::fputs((table(runs) + "\n" + conclusion(runs)).c_str(), stdout);
    for (const averaging how : given.reductions) {
        if (how == averaging::native || identical(runs, how)) continue;
        std::fprintf(stderr, "world_size: %s was not kept\n", name(how));
        return 1;
    }
    return 0;
}

int run_over_mpi([[maybe_unused]] const options& given)
{
#ifdef COLLPROBE_EXAMPLE_MPI
    const mpi_session mpi;
    mpi_ranks ranks;
    try {
        return run(given, ranks);
    } catch (const usage_error& problem) { // all ranks have found it
        return ranks.speaks() ? trainer::explain("world_size", problem) : 2;
    } catch (const std::exception& problem) {
        trainer::explain("world_size", problem); // said now: the session ends the job
        throw;
    }
#else
    throw std::runtime_error("--communicator mpi: this program was built without MPI");
#endif
}

} // namespace

int main(int argc, char** argv)
{
    try {
        const options given = parse_options(std::vector<std::string>(argv + 1, argv + argc));
        return given.communicator == communicator_kind::mpi ? run_over_mpi(given) : run(given, local_ranks{given});
    } catch (const std::exception& problem) {
        return trainer::explain("world_size", problem);
    }
}

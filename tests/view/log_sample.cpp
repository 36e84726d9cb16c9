// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// log_sample PATH RUN RANKS [FAULTY_CALL] [WORD...]: a run's JSON lines, to compare and to watch.
// 6 steps with the sums "wte", "wpe" and "head". They do not depend on the number of ranks, which divides 16. In call
// FAULTY_CALL (from 0; "none") one bit of a rank's terms is flipped on its way, so all ranks get the same wrong result.
// Words: "all": PATH is a folder with a file of every rank; "unread": results are not read; "sampled": 8 elements of each
// result are; "killed": without an end.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/audit.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/fault.hpp>
#include <collprobe/report.hpp>

using namespace collprobe;

int main(int argc, char** argv)
{
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() < 3) return 2;
    const auto has = [&](const char* word) { return std::find(words.begin() + 3, words.end(), word) != words.end(); };
    std::vector<fault> faults;
    if (words.size() > 3 && words[3] != "none") {
        faults.push_back({.kind = fault_kind::bit_flips, .phase = fault_phase::during, .rank = 1,
            .call = std::stoull(words[3]), .first = 17, .mask = 1u << 22});
    }
    local::run(std::stoi(words[2]), [&](local::communicator& world) {
        const bool writes = has("all") || world.rank() == 0;
        const std::string path
            = has("all") ? words[0] + "/rank" + std::to_string(world.rank()) + ".jsonl" : words[0];
        report::sinks out(report::describe_run(world, words[1]), report::json_lines(writes ? path : ""));
        host::stream stream;
        probed comm{faulty{world, faults}, {.order_sample = has("sampled") ? 8 : 0, .results = !has("unread")}};
        const int share = 16 / world.size();
        std::vector<float> terms(1000), sum(1000);
        for (std::uint64_t step = 0; step < 6; ++step) {
            for (const char* const name : {"wte", "wpe", "head"}) {
                for (std::size_t i = 0; i < terms.size(); ++i) {
                    terms[i] = 0; // integers, so that the order of the sum does not matter
                    for (int leaf = world.rank() * share; leaf < (world.rank() + 1) * share; ++leaf) {
                        terms[i] += static_cast<float>((i * 37 + step + static_cast<std::size_t>(leaf) * 11) % 101);
                    }
                }
                comm.all_reduce(terms, view(sum), reduction::sum, stream, call_site::named(name));
                stream.synchronize();
            }
            comm.end_step(step, {.loss = 1 / (1.0 + static_cast<double>(step))}, stream);
            for (step_record record; comm.wait(record);) {
                out.put(record);
                out.flush();
            }
        }
        if (!has("killed")) return;
        world.barrier(stream);
        stream.synchronize();
        if (world.rank() == 0) std::_Exit(0);
        std::this_thread::sleep_for(std::chrono::seconds(10));
    });
}

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Copies a shard on one stream and gathers it on another, on every rank. With the argument "ordered"
// an event lies between the two, and ThreadSanitizer must stay quiet; with "unordered" nothing does,
// and it must report a race, however the threads happen to be scheduled: with "copy_first" the copy
// is finished long before the gather starts, with "gather_first" the other way round.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>

namespace {

constexpr std::uint64_t shard_count = 1024;

void sleep_ms(long milliseconds)
{
    const timespec nap{0, milliseconds * 1'000'000};
    nanosleep(&nap, nullptr);
}

} // namespace

int main(int argument_count, char** arguments)
{
    using namespace collprobe;
    if (argument_count < 3) {
        std::fprintf(stderr, "usage: %s ordered|unordered copy_first|gather_first|at_once [ranks]\n", arguments[0]);
        return 2;
    }
    const bool ordered = std::strcmp(arguments[1], "ordered") == 0;
    const bool copy_first = std::strcmp(arguments[2], "copy_first") == 0;
    const bool gather_first = std::strcmp(arguments[2], "gather_first") == 0;
    const int ranks = argument_count > 3 ? arguments[3][0] - '0' : 2;

    local::run(ranks, [&](local::communicator& comm) {
        const auto n = static_cast<std::uint64_t>(comm.size());
        std::vector<float> master(shard_count, static_cast<float>(comm.rank()));
        std::vector<float> shard(shard_count);
        std::vector<float> full(shard_count * n);
        const host::stream copy_stream;
        const host::stream gather_stream;
        host::event copied;

        // The naps are in the streams: they say when, and order nothing.
        if (gather_first) copy_stream.enqueue([] { sleep_ms(200); });
        host::device::copy<float>(copy_stream, view<const float>(master), view<float>(shard));
        if (ordered) {
            copied.record(copy_stream);
            gather_stream.wait(copied);
        }
        if (copy_first) gather_stream.enqueue([] { sleep_ms(200); });
        comm.all_gather(view<const float>(shard), view<float>(full), gather_stream);

        gather_stream.synchronize();
        copy_stream.synchronize();
        if (ordered) {
            for (std::uint64_t i = 0; i < full.size(); ++i) {
                if (full[i] != static_cast<float>(i / shard_count)) std::printf("wrong value at %d\n", static_cast<int>(i));
            }
        }
    });
    std::puts("finished");
    return 0;
}

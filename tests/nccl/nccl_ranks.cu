// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// nccl_ranks CASE: one rank of several, each of which is a process, over NCCL itself (or its stand-in). bench/gpu/ranks.sh
// starts them, all on one GPU. Every rank knows the data of all, so that each compares its result with what the same
// call makes on the CPU, of ranks in one process.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <collprobe/collprobe.cuh>
#include <collprobe/comm/agreed.hpp>
#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/guard.hpp>
#include <collprobe/reduce.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/errors.hpp"
#include "support/nccl_owner.hpp"
#include "support/needs_gpu.hpp"

#include "../../examples/support/job.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

bool failed = false;

void check_at(bool good, const char* what, int line)
{
    if (good) return;
    std::printf("line %d: failed: %s\n", line, what);
    failed = true;
}
#define CHECK(condition) check_at(static_cast<bool>(condition), #condition, __LINE__)

/// Waits, for a copy from pageable memory may be under way when cudaMemcpy returns.
template <element T>
cu::buffer<T> on_device(const std::vector<T>& values)
{
    cu::buffer<T> memory(values.size());
    CHECK(cudaMemcpy(memory.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    return memory;
}
template <element T>
std::vector<T> values_of(const cu::buffer<T>& memory)
{
    std::vector<T> all(memory.size());
    CHECK(cudaMemcpy(all.data(), memory.data(), all.size() * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return all;
}

template <element T>
bool same_bits(const std::vector<T>& one, const std::vector<T>& other)
{
    return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0;
}

/// Of both signs, over 20 binary orders of magnitude: sums in float depend on the order.
template <element T>
std::vector<T> leaf(int number, std::uint64_t count)
{
    std::vector<T> values(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t bits = detail::mix64(static_cast<std::uint64_t>(number) * 0x9e3779b97f4a7c15u + i);
        const double size = static_cast<double>(1u << (bits % 20)) / 1024;
        values[i] = T((static_cast<double>(bits >> 11) * 0x1p-53 - 0.5) * size);
    }
    return values;
}

template <class Comm>
struct own_rank {
    using communicator = Comm;
    Comm* comm;
    template <class Fn>
    void run(Fn fn) const
    {
        fn(*comm);
    }
};

const job& own_job()
{
    static const job started = started_job();
    return started;
}

/// An id that rank 0 makes, for all ranks of the machine: by the file `name` in the folder RANKS_FOLDER, which ranks.sh
/// has made for this run. A name serves once.
ncclUniqueId shared_id(int rank, const std::string& name)
{
    const char* const folder = std::getenv("RANKS_FOLDER");
    if (folder == nullptr) throw std::runtime_error("RANKS_FOLDER is not set: start the ranks by bench/gpu/ranks.sh");
    const std::filesystem::path file = std::filesystem::path(folder) / name;
    ncclUniqueId id{};
    if (rank == 0) {
        id = testing::new_nccl_id();
        const std::filesystem::path part = file.string() + ".part";
        std::ofstream(part, std::ios::binary).write(id.internal, sizeof id.internal);
        std::filesystem::rename(part, file); // all of it, or nothing
        return id;
    }
    for (int waited_ms = 0; !std::filesystem::exists(file); ++waited_ms) {
        if (waited_ms > 60'000) throw std::runtime_error("rank 0 has made no id within a minute");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!std::ifstream(file, std::ios::binary).read(id.internal, sizeof id.internal))
        throw std::runtime_error("no id in " + file.string());
    return id;
}

testing::nccl_owner make(nccl::options settings, std::string name)
{
    static int made = 0;
    settings.name = std::move(name);
    const ncclUniqueId id = shared_id(own_job().rank, "id" + std::to_string(made++));
    return testing::nccl_owner::create(id, own_job().rank, own_job().size, 0, settings);
}

void conform()
{
    for (const nccl::blocking_mode mode : {nccl::blocking_mode::blocking, nccl::blocking_mode::non_blocking}) {
        auto comm = make({.mode = mode}, mode == nccl::blocking_mode::blocking ? "blocking" : "non-blocking");
        conformance::check_type<float>(own_rank<testing::nccl_owner>{&comm}, 1031);
        conformance::check_type<bfloat16>(own_rank<testing::nccl_owner>{&comm}, 1031);
        conformance::check_type<std::int8_t>(own_rank<testing::nccl_owner>{&comm}, 1031);
        conformance::check_calls(own_rank<testing::nccl_owner>{&comm}, 20);
    }
    auto comm = make({}, "agreed");
    agreed compared{nccl::communicator_ref(comm)};
    conformance::check_type<float16>(own_rank<decltype(compared)>{&compared}, 331);
}

/// The same twelve leaves, however many ranks share them.
template <class Contract, element T>
void check_reproducible(testing::nccl_owner& comm, reduction_algorithm how, const char* name)
{
    constexpr int leaves_of_all = 12;
    constexpr std::uint64_t count = 10'007;
    const int leaves = leaves_of_all / comm.size();
    const reproducible_options options{.scratch_bytes = 1 << 16, .algorithm = how};
    std::vector<T> expected(count), all;
    for (int number = 0; number < leaves_of_all; ++number) {
        const std::vector<T> values = leaf<T>(number, count);
        all.insert(all.end(), values.begin(), values.end());
    }
    local::run(1, [&](local::communicator& alone) {
        reproducible sums(alone, Contract{}, {.scratch_bytes = 1 << 16});
        host::stream stream;
        sums.all_reduce(all, view(expected), reduction::sum, stream, {.leaves = leaves_of_all});
        stream.synchronize(testing::soon_ms);
    });
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(comm.rank() * leaves) * static_cast<std::ptrdiff_t>(count);
    const cu::buffer<T> send = on_device(std::vector<T>(first, first + static_cast<std::ptrdiff_t>(count) * leaves));
    cu::buffer<T> receive(count);
    reproducible sums(nccl::communicator_ref(comm), Contract{}, options);
    const cu::stream stream;
    sums.all_reduce(view<const T>(send), view<T>(receive), reduction::sum, stream,
        {.leaves = static_cast<std::uint64_t>(leaves)});
    comm.synchronize(stream);
    const std::vector<T> result = values_of(receive);
    CHECK(same_bits(result, expected));
    if (comm.rank() == 0) {
        std::printf("%s of %s: digest %016llx\n", name, std::string(element_traits<T>::name).c_str(),
            static_cast<unsigned long long>(digest(view<const T>(result))));
    }
}

void reproduce()
{
    using correct = contract<reproducibility::correctly_rounded>;
    using any_order = contract<reproducibility::order_invariant>;
    using invariant = contract<reproducibility::size_invariant, accumulation::float32>;
    auto comm = make({}, "sums");
    check_reproducible<correct, float>(comm, reduction_algorithm::exchange, "correctly rounded, by exchange,");
    check_reproducible<correct, bfloat16>(comm, reduction_algorithm::one_shot, "correctly rounded, in one shot,");
    check_reproducible<invariant, float>(comm, reduction_algorithm::exchange, "size-invariant, by exchange,");
    check_reproducible<invariant, float16>(comm, reduction_algorithm::one_shot, "size-invariant, in one shot,");
    check_reproducible<any_order, float>(comm, reduction_algorithm::fixed_point, "order-invariant, by fixed point,");
}

struct count_up {
    float* values;
    float generation;
    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        values[index] = generation + static_cast<float>(index % 64); // exact
    }
};

/// Copies and gathers of three streams, ordered by events alone, twenty generations one behind the other.
void gather()
{
    constexpr std::uint64_t count = 30'011;
    auto comm = make({}, "gathers");
    const auto ranks = static_cast<std::uint64_t>(comm.size());
    guarded<cu::device, float> shard(count), slot(count), full(count * ranks);
    cu::pinned_buffer<float> seen(count * ranks);
    const cu::stream compute, traffic, reader;
    for (int generation = 1; generation <= 20; ++generation) {
        const float first = static_cast<float>(1000 * generation + comm.rank());
        shard.write(compute, [&](view<float> data) {
            cu::device::for_each(compute, data.count(), count_up{data.data(), first});
        });
        copy_then_all_gather(shard, full, comm, traffic, {}, {});
        full.read(reader, [&](view<const float> data) { cu::device::copy(reader, data, view<float>(seen)); });
        comm.synchronize(reader);
        bool all_right = true;
        for (std::uint64_t i = 0; i < count * ranks; ++i) {
            const auto rank = static_cast<int>(i / count);
            all_right = all_right
                && seen[i] == static_cast<float>(1000 * generation + rank) + static_cast<float>(i % count % 64);
        }
        CHECK(all_right);
    }
}

/// A probed step over processes: the same record on all ranks, and NaN of rank 1 is its own.
void probe()
{
    constexpr std::uint64_t count = 20'011;
    auto comm = make({}, "probed");
    probed probes{nccl::communicator_ref(comm)};
    const cu::stream stream;
    for (std::uint64_t step = 0; step < 4; ++step) {
        std::vector<float> values = leaf<float>(static_cast<int>(step) * 16 + comm.rank(), count);
        if (step == 3 && comm.rank() == 1) values[4242] = std::numeric_limits<float>::quiet_NaN();
        cu::buffer<float> gradient = on_device(values);
        probes.all_reduce(view<const float>(gradient), view<float>(gradient), reduction::average, stream);
        probes.end_step(step, stream);
        comm.synchronize(stream);
        step_record record;
        CHECK(probes.poll(record));
        const std::string told = report::step_table(record);
        CHECK(testing::contains(told, ": rank 1 ") == (step == 3));
        CHECK(testing::contains(told, "finding: ") == (step == 3));
        if (step == 3 && comm.rank() == 0) std::printf("%s", told.c_str());
    }
}

/// What the others see when rank 1 does not make its second call: an error within the time-out, which names the call.
void lose_rank(const char* name, bool ends)
{
    auto comm = make({.timeout_ms = 4'000}, name);
    const cu::stream stream;
    cu::buffer<float> values = on_device(leaf<float>(comm.rank(), 1000));
    const auto call = [&] {
        comm.all_reduce(view<const float>(values), view<float>(values), reduction::sum, stream);
        comm.synchronize(stream);
    };
    call();
    if (comm.rank() == 1) {
        if (!ends) sleep(10); // it lives, and does not come
        std::_Exit(0);
    }
    const std::optional<error> thrown = testing::error_of(call);
    CHECK(thrown);
    if (!thrown) return;
    std::printf("%s\n", thrown->what());
    CHECK(thrown->code() == status::timeout || (ends && thrown->code() != status::invalid_argument));
    CHECK(testing::mentions(thrown, name));
    comm.abort("a rank is gone");
    const std::optional<error> after = testing::error_of(call); // it stays ended
    CHECK(after);
    CHECK(testing::mentions(after, "gave up: a rank is gone") || ends);
}

} // namespace

int main(int count, char** arguments)
{
    static const std::map<std::string, std::function<void()>> cases{{"conformance", conform}, {"reproducible", reproduce},
        {"gathers", gather}, {"probed", probe},
        {"rank_ends", [] { lose_rank("ended", true); }}, {"timeout", [] { lose_rank("late", false); }}};
    const auto chosen = cases.find(count > 1 ? arguments[1] : "");
    if (chosen == cases.end()) {
        for (const auto& [name, run] : cases) std::printf("%s\n", name.c_str());
        return 2;
    }
    try {
        chosen->second();
    } catch (const std::exception& thrown) {
        std::printf("%s\n", thrown.what());
        failed = true;
    }
    std::printf("rank %d of %d, %s: %s\n", own_job().rank, own_job().size, chosen->first.c_str(), failed ? "FAILED" : "passed");
    std::fflush(stdout);
    std::_Exit(failed ? 1 : 0); // what a lost rank left is not waited for
}

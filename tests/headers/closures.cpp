// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Instances of the templates, for what the compiler makes of their lambdas.
#include <cstdint>
#include <vector>

#include <collprobe/audit.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/fault.hpp>
#include <collprobe/guard.hpp>
#include <collprobe/inspect.hpp>
#include <collprobe/reduce.hpp>
#include <collprobe/replica.hpp>

using namespace collprobe;

template <communicator Comm>
void use(Comm& world, const host::stream& stream)
{
    std::vector<float> data(8), all(8 * static_cast<std::size_t>(world.size()));
    world.all_reduce(view<const float>(data), view(data), reduction::sum, stream);
    world.reduce_scatter(view<const float>(all), view(data), reduction::sum, stream);
    world.all_gather(view<const float>(data), view(all), stream);
    world.all_to_all(view<const float>(all), view(all), stream);
    world.broadcast(view<const float>(data), view(data), 0, stream);
}

int main()
{
    local::run(2, [](local::communicator& world) {
        const host::stream stream;
        use(world, stream);
        probed steps{reproducible{faulty{world, {}}}, {.mode = report_mode::summary}, audit()};
        use(steps, stream);
        steps.expect_equal("step", 0);
        steps.end_step(0, {.loss = 1}, stream);
        step_record record;
        steps.wait(record);
        std::vector<float> weights(10);
        const std::vector<replica> list{view(weights)};
        agreement check(world);
        majority_repair(check, view<const replica>(list), stream);
        replica_averaging(world, list, every()).step(stream);
        replica_averaging measured(world, list, when_worth_it());
        measured.before_update(list, 0.1, stream);
        measured.step(stream);
        inspect<float>(world, stream, 4);
        guarded<host::device, float> buffer(10);
        buffer.write(stream, [](view<float>) {});
    });
}

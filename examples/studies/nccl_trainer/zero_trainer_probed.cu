// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A trainer that shards weights and gradients, as ZeRO does: 148 tensors of bfloat16, reduce-scattered and gathered in
// place, twelve to an NCCL group. A thread drives each GPU.
//
// zero_trainer_probed.cu is zero_trainer.cu with probes and audits: `diff` shows what that takes. The second argument
// is a fault to try: bit, nan or stale.

#include "zero_support.cuh"
#include <collprobe/collprobe.cuh>

static void train(ncclComm_t comm, int rank, int ranks, cudaStream_t stream, int steps, const fault& tried)
{
    const model net = make_model(rank, ranks, stream);
    collprobe::probed probe{collprobe::nccl::communicator_ref(comm), {}, collprobe::audit()};
    const auto in_groups = [](const auto& call) {
        for (int first = 0; first < tensors; first += 12) {
            collprobe::nccl::group together;
            for (int t = first; t < std::min(first + 12, tensors); ++t) call(t);
            together.end();
        }
    };
    for (int step = 0; step < steps; ++step) {
        backward(net, step, stream);
        tried.in_gradients(net, step, stream);
        in_groups([&](int t) {
            __nv_bfloat16* const all = net.gradient[t];
            __nv_bfloat16* const own = all + net.begin(t);
            probe.reduce_scatter(all, own, net.part(t), ncclAvg, stream, collprobe::call_site::named(net.name(t)));
        });
        for (int t = 0; t < tensors; ++t) {
            if (!tried.skips(net, t, step)) update(net, t, stream);
        }
        in_groups([&](int t) {
            __nv_bfloat16* const all = net.weight[t];
            __nv_bfloat16* const own = all + net.begin(t);
            probe.all_gather(own, all, net.part(t), stream, collprobe::call_site::named(net.name(t)));
            tried.while_sending(net, t, step, stream);
        });
        probe.end_step(step, {.loss = net.loss}, stream);
        float loss = 0;
        CUDA_CHECK(cudaMemcpyAsync(&loss, net.loss, sizeof loss, cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        for (collprobe::step_record r; probe.wait(r) && rank == 0;) std::puts(collprobe::report::step_table(r).c_str());
        if (rank == 0) std::printf("step %d: loss %.4f\n", step, static_cast<double>(loss));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    free_model(net);
}

int main(int argc, char** argv)
{
    const int steps = argc > 1 ? std::atoi(argv[1]) : 4;
    const fault tried{argc > 2 ? argv[2] : ""};
    run_ranks([&](ncclComm_t comm, int rank, int ranks, cudaStream_t stream) {
        train(comm, rank, ranks, stream, steps, tried);
    });
    return 0;
}

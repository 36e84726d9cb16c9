// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A data-parallel trainer of the usual shape, in C style: a raw communicator, a stream for computing and
// one for the traffic between ranks, gradients reduced bucket by bucket while backward runs.
//
// nccl_trainer_probed.cu is nccl_trainer.cu with probes: `diff` shows what that takes. Either runs on the
// GPUs of a job, `NCCL_COMM_ID=127.0.0.1:29600 torchrun --no-python --nproc-per-node 8 nccl_trainer [steps]` (or mpirun), and
// alone on one.

#include "trainer_support.cuh"
#include <collprobe/collprobe.cuh>

static void train(const ranks& job, ncclComm_t comm, cudaStream_t compute, cudaStream_t traffic, int steps)
{
    const digits data = read_digits(COLLPROBE_EXAMPLE_DATA "/optdigits.csv");
    model net = make_model();
    cudaEvent_t ready, reduced;
    CUDA_CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&reduced, cudaEventDisableTiming));

    collprobe::probed probe{collprobe::nccl::communicator_ref(comm)};
    for (int step = 0; step < steps; ++step) {
        load_batch(net, data, step, job.rank, job.size, compute);
        forward(net, compute);
        for (int k = layers; k-- > 0;) {
            backward(net, k, compute);
            CUDA_CHECK(cudaEventRecord(ready, compute));
            CUDA_CHECK(cudaStreamWaitEvent(traffic, ready, 0));
            float* const grad = net.gradient[k];
            const size_t n = parameters_of(k);
            probe.all_reduce(grad, grad, n, ncclAvg, traffic);
        }
        probe.end_step(step, {.loss = net.loss}, traffic);
        NCCL_CHECK(ncclAllReduce(net.loss, net.loss, 1, ncclFloat, ncclAvg, comm, traffic));
        CUDA_CHECK(cudaEventRecord(reduced, traffic));
        CUDA_CHECK(cudaStreamWaitEvent(compute, reduced, 0));
        for (int k = 0; k < layers; ++k) update(net, k, compute);

        if (job.rank != 0 || (step + 1) % 10 != 0) continue;
        float loss = 0;
        CUDA_CHECK(cudaMemcpyAsync(&loss, net.loss, sizeof loss, cudaMemcpyDeviceToHost, compute));
        CUDA_CHECK(cudaStreamSynchronize(compute));
        for (collprobe::step_record r; probe.poll(r);) puts(collprobe::report::step_table(r).c_str());
        std::printf("step %d: loss %.4f\n", step, static_cast<double>(loss));
    }

    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaEventDestroy(ready));
    CUDA_CHECK(cudaEventDestroy(reduced));
    free_model(net);
}

int main(int argc, char** argv)
{
    const int steps = argc > 1 ? std::atoi(argv[1]) : 50;
    const ranks job = start_ranks();
    ncclComm_t comm;
    NCCL_CHECK(ncclCommInitRank(&comm, job.size, job.id, job.rank));
    cudaStream_t compute, traffic;
    CUDA_CHECK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&traffic, cudaStreamNonBlocking));

    train(job, comm, compute, traffic, steps);

    CUDA_CHECK(cudaStreamDestroy(compute));
    CUDA_CHECK(cudaStreamDestroy(traffic));
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}

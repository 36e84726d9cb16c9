/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A data-parallel training loop as PyTorch's DDP makes it: gradients in buckets, reduced in place. The gradients are
 * random numbers: a signal that all ranks have in common, and the noise of a rank's own samples.
 *
 * Data calls on the communicator of gradients, in this order: one broadcast of the parameters; then in each step an
 * all-reduce for each bucket [, a reduce-scatter, an all-gather] [, one of a logged number]. */
#include <dlfcn.h>
#include <math.h>

#include "common.h"

enum fault { fault_none, fault_nan, fault_stale, fault_copy };
enum { most_buckets = 64, most_streams = 8 };

static struct {
    long steps, buckets, size, streams, log_every, step_us;
    int avg, groups, nonblocking, shard, split, mark, checksum;
    const char *type, *ending;
    enum fault fault;
    long fault_rank, fault_step, fault_bucket;
} options = {
    .steps = 100, .buckets = 8, .size = 1024, .streams = 1, .log_every = 10, .type = "bf16", .ending = "return"};

/* --- Element types --- */

static ncclDataType_t type_of(long bucket)
{
    return strcmp(options.type, "mixed") == 0 && bucket % 2 == 1 ? ncclFloat32 : ncclBfloat16;
}
static size_t bytes_of(ncclDataType_t type) { return type == ncclFloat32 ? 4 : 2; }
static void store(void* memory, size_t index, ncclDataType_t type, double value)
{
    const float rounded = (float)value;
    if (type == ncclFloat32) {
        ((float*)memory)[index] = rounded;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof(bits));
    const uint32_t upper = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    ((uint16_t*)memory)[index] = (uint16_t)(isnan(rounded) ? 0x7fc0 : upper);
}
static double load(const void* memory, size_t index, ncclDataType_t type)
{
    if (type == ncclFloat32) return ((const float*)memory)[index];
    const uint32_t bits = (uint32_t)((const uint16_t*)memory)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* --- What a rank holds --- */

/* Memory of the device, and of the host where its values are seen. */
struct buffer {
    ncclDataType_t type;
    size_t count, bytes;
    void *device, *host;
};
static struct buffer make_buffer(ncclDataType_t type, size_t count)
{
    struct buffer made = {type, count, count * bytes_of(type), NULL, NULL};
    CHECK_CUDA(cudaMalloc(&made.device, made.bytes));
    CHECK_CUDA(cudaMallocHost(&made.host, made.bytes));
    return made;
}
static void free_buffer(struct buffer* of)
{
    CHECK_CUDA(cudaFree(of->device));
    CHECK_CUDA(cudaFreeHost(of->host));
}
static void upload(const struct buffer* of, cudaStream_t stream)
{
    CHECK_CUDA(cudaMemcpyAsync(of->device, of->host, of->bytes, cudaMemcpyHostToDevice, stream));
}
static void download(const struct buffer* of, cudaStream_t stream)
{
    CHECK_CUDA(cudaMemcpyAsync(of->host, of->device, of->bytes, cudaMemcpyDeviceToHost, stream));
}

static int world_rank, world_ranks; /* of the job */
static int rank, ranks; /* among those that reduce gradients */
static ncclComm_t world, comm;
static cudaStream_t streams[most_streams];
static struct buffer buckets[most_buckets], shard_sent, shard, parameters;
static double* master; /* the parameters of the shard's part, in full */
static struct buffer logged;
static uint64_t checksum;
static long calls;

static int rank_in_world(int of_rank) { return options.split ? 2 * of_rank + world_rank % 2 : of_rank; }

/* --- Gradients --- */

/* Of a rank for one parameter in a step. Layers have different scales; `place` is unique to the parameter. */
static double gradient(int of_rank, long step, uint64_t place)
{
    static const double scales[] = {1e-2, 4e-3, 1e-3, 8e-3, 2e-3, 5e-4, 3e-3};
    const uint64_t key = (UINT64_C(1) << 56) + ((uint64_t)step << 28) + place;
    const double scale = scales[place / 512 % 7];
    const double signal = deviate(key);
    const double noise = deviate(key ^ ((uint64_t)(rank_in_world(of_rank) + 1) << 48));
    return scale * (0.5 * signal + noise);
}
static uint64_t place_of(long bucket, size_t index) { return ((uint64_t)bucket << 22) + index; }

static void fill(struct buffer* of, long step, long bucket, size_t count, int divides)
{
    const int is_faulty = options.fault != fault_none && world_rank == options.fault_rank
        && bucket == options.fault_bucket && step == options.fault_step;
    const enum fault fault = is_faulty ? options.fault : fault_none;
    const int sender = fault == fault_copy ? (rank + 1) % ranks : rank;
    const long of_step = fault == fault_stale ? step - 1 : step;
    const double factor = divides ? 1.0 / ranks : 1;
    for (size_t i = 0; i < count; ++i)
        store(of->host, i, of->type, factor * gradient(sender, of_step, place_of(bucket, i)));
    if (fault == fault_nan) store(of->host, count / 3, of->type, (double)NAN);
}

/* --- Calls --- */

/* A call that does not block is over when the communicator says so. */
static void wait_for(ncclComm_t of, ncclResult_t result, const char* what)
{
    while (result == ncclInProgress) {
        if (ncclCommGetAsyncError(of, &result) != ncclSuccess) break;
        if (result == ncclInProgress) sleep_us(20);
    }
    if (result != ncclSuccess) stop(__FILE__, __LINE__, what, (int)result);
}
static int in_group;
static void made_call(ncclComm_t of, ncclResult_t result, const char* what)
{
    if (in_group && (result == ncclSuccess || result == ncclInProgress)) return;
    wait_for(of, result, what);
}

static void all_reduce(const struct buffer* of, ncclRedOp_t what, ncclComm_t on_comm, cudaStream_t stream)
{
    if (on_comm == comm) ++calls;
    made_call(on_comm, ncclAllReduce(of->device, of->device, of->count, of->type, what, on_comm, stream), "ncclAllReduce");
}

static void reduce_buckets(void)
{
    for (long b = 0; b < options.buckets; ++b) upload(&buckets[b], streams[b % options.streams]);
    if (options.groups) {
        CHECK_NCCL(ncclGroupStart());
        in_group = 1;
    }
    for (long b = 0; b < options.buckets; ++b)
        all_reduce(&buckets[b], options.avg ? ncclAvg : ncclSum, comm, streams[b % options.streams]);
    if (options.groups) {
        in_group = 0;
        made_call(comm, ncclGroupEnd(), "ncclGroupEnd");
    }
    for (long b = 0; b < options.buckets; ++b) download(&buckets[b], streams[b % options.streams]);
}

static void synchronize(void)
{
    for (long s = 0; s < options.streams; ++s) CHECK_CUDA(cudaStreamSynchronize(streams[s]));
}

static void note_result(const struct buffer* of)
{
    if (options.checksum) checksum = hash_bytes(checksum, of->host, of->bytes);
}

/* --- Parts of a step --- */

static void train_on_buckets(long step)
{
    const int divides = !options.avg;
    for (long b = 0; b < options.buckets; ++b) fill(&buckets[b], step, b, buckets[b].count, divides);
    reduce_buckets();
    if (options.step_us > 0) sleep_us(options.step_us);
    synchronize();
    for (long b = 0; b < options.buckets; ++b) note_result(&buckets[b]);
}

static void train_on_shards(long step)
{
    const long bucket = options.buckets + 1;
    fill(&shard_sent, step, bucket, shard_sent.count, !options.avg);
    upload(&shard_sent, streams[0]);
    const ncclRedOp_t what = options.avg ? ncclAvg : ncclSum;
    calls += 2;
    made_call(comm, ncclReduceScatter(shard_sent.device, shard.device, shard.count, shard.type, what, comm, streams[0]),
        "ncclReduceScatter");
    download(&shard, streams[0]);
    CHECK_CUDA(cudaStreamSynchronize(streams[0]));
    note_result(&shard);
    const size_t first = (size_t)rank * shard.count;

    /* This rank's part of the parameters, in place in all of them. */
    for (size_t i = 0; i < shard.count; ++i) {
        master[i] -= 0.1 * load(shard.host, i, shard.type);
        store(parameters.host, first + i, parameters.type, master[i]);
    }
    upload(&parameters, streams[0]);
    void* const own = (char*)parameters.device + first * bytes_of(parameters.type);
    made_call(
        comm, ncclAllGather(own, parameters.device, shard.count, parameters.type, comm, streams[0]), "ncclAllGather");
    download(&parameters, streams[0]);
    CHECK_CUDA(cudaStreamSynchronize(streams[0]));
    note_result(&parameters);
}

static void reduce_logged(long step)
{
    store(logged.host, 0, logged.type, world_rank + 1.0 / (double)(step + 1));
    upload(&logged, streams[0]);
    all_reduce(&logged, ncclAvg, world, streams[0]);
    download(&logged, streams[0]);
    CHECK_CUDA(cudaStreamSynchronize(streams[0]));
    note_result(&logged);
}

static void train(long step)
{
    if (options.mark) {
        void (*mark)(uint64_t) = NULL;
        *(void**)&mark = dlsym(RTLD_DEFAULT, "collprobe_mark_step");
        if (mark != NULL) mark((uint64_t)step);
    }
    train_on_buckets(step);
    if (options.shard) train_on_shards(step);
    if (options.log_every > 0 && (step + 1) % options.log_every == 0) reduce_logged(step);
}

/* --- Begin and end --- */

static void make_buffers(void)
{
    const long n = options.buckets;
    for (long b = 0; b < n; ++b) buckets[b] = make_buffer(type_of(b), (size_t)(options.size * (1 + b % 3)));
    shard = make_buffer(type_of(0), (size_t)options.size);
    shard_sent = make_buffer(type_of(0), (size_t)(options.size * ranks));
    parameters = make_buffer(type_of(0), (size_t)(options.size * ranks));
    master = malloc(shard.count * sizeof(*master));
    logged = make_buffer(ncclFloat32, 1);
}

static void make_communicators(void)
{
    ncclUniqueId id;
    if (world_rank == 0) CHECK_NCCL(ncclGetUniqueId(&id));
    share(&id, world_rank == 0, "trainer");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = options.nonblocking ? 0 : 1;
    wait_for(world, ncclCommInitRankConfig(&world, world_ranks, id, world_rank, &config), "ncclCommInitRankConfig");
    comm = world;
    if (options.split)
        wait_for(world, ncclCommSplit(world, world_rank % 2, world_rank, &comm, &config), "ncclCommSplit");
    if (options.split && options.nonblocking) wait_for(comm, ncclInProgress, "the part");
    CHECK_NCCL(ncclCommCount(comm, &ranks));
    CHECK_NCCL(ncclCommUserRank(comm, &rank));
}

/* All ranks begin with the parameters of the first. */
static void broadcast_parameters(void)
{
    for (size_t i = 0; i < parameters.count; ++i)
        store(parameters.host, i, parameters.type, deviate((uint64_t)(world_rank + 1) << 40 | i));
    upload(&parameters, streams[0]);
    ++calls;
    made_call(comm,
        ncclBroadcast(parameters.device, parameters.device, parameters.count, parameters.type, 0, comm, streams[0]),
        "ncclBroadcast");
    download(&parameters, streams[0]);
    CHECK_CUDA(cudaStreamSynchronize(streams[0]));
    for (size_t i = 0; i < shard.count; ++i)
        master[i] = load(parameters.host, (size_t)rank * shard.count + i, parameters.type);
}

static void end_communicator(ncclComm_t of)
{
    wait_for(of, ncclCommFinalize(of), "ncclCommFinalize");
    CHECK_NCCL(ncclCommDestroy(of));
}

static void release(void)
{
    if (comm != world) end_communicator(comm);
    end_communicator(world);
    for (long b = 0; b < options.buckets; ++b) free_buffer(&buckets[b]);
    free_buffer(&shard);
    free_buffer(&shard_sent);
    free_buffer(&parameters);
    free_buffer(&logged);
    free(master);
    for (long s = 0; s < options.streams; ++s) CHECK_CUDA(cudaStreamDestroy(streams[s]));
}

/* --- Options --- */

/* nan (one element), stale (of the step before) or copy (of the next rank), as KIND:RANK,STEP,BUCKET. */
static void read_fault(const char* text)
{
    static const char* const names[] = {"none", "nan", "stale", "copy"};
    char name[16];
    REQUIRE(sscanf(text, "%15[a-z]:%ld,%ld,%ld", name, &options.fault_rank, &options.fault_step, &options.fault_bucket) == 4);
    for (int i = 1; i <= fault_copy; ++i) {
        if (strcmp(name, names[i]) == 0) options.fault = (enum fault)i;
    }
}

static void read_options(int count, char** arguments)
{
    static const struct {
        const char* name;
        long* number;
        int* flag;
        const char** text;
    } known[] = {{"--steps", &options.steps, NULL, NULL}, {"--buckets", &options.buckets, NULL, NULL},
        {"--size", &options.size, NULL, NULL}, /* elements; bucket b has 1 + b % 3 times as many */
        {"--streams", &options.streams, NULL, NULL}, /* bucket b is on stream b % streams */
        {"--log-every", &options.log_every, NULL, NULL}, {"--step-us", &options.step_us, NULL, NULL},
        {"--avg", NULL, &options.avg, NULL}, /* else ranks divide first */
        {"--groups", NULL, &options.groups, NULL}, {"--nonblocking", NULL, &options.nonblocking, NULL},
        {"--shard", NULL, &options.shard, NULL},
        {"--split", NULL, &options.split, NULL}, /* gradients on the ranks of even or odd number; logs on all */
        {"--mark", NULL, &options.mark, NULL},
        {"--checksum", NULL, &options.checksum, NULL}, /* of all results and of the final parameters */
        {"--type", NULL, NULL, &options.type}, /* bf16, or mixed: bf16 and fp32 in turn */
        {"--exit", NULL, NULL, &options.ending}}; /* return, _exit, or leak: communicators are not destroyed */
    for (int i = 1; i < count; ++i) {
        size_t at = 0;
        while (at < sizeof(known) / sizeof(*known) && strcmp(arguments[i], known[at].name) != 0) ++at;
        const int is_known = at < sizeof(known) / sizeof(*known);
        if (is_known && known[at].flag != NULL) {
            *known[at].flag = 1;
            continue;
        }
        REQUIRE(i + 1 < count && (is_known || strcmp(arguments[i], "--fault") == 0));
        const char* const value = arguments[++i];
        if (!is_known) read_fault(value);
        else if (known[at].number != NULL) *known[at].number = strtol(value, NULL, 0);
        else *known[at].text = value;
    }
    REQUIRE(options.buckets <= most_buckets && options.streams <= most_streams);
}

int main(int count, char** arguments)
{
    read_options(count, arguments);
    world_rank = atoi(environment("RANK"));
    world_ranks = atoi(environment("WORLD_SIZE"));
    int devices = 0;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    CHECK_CUDA(cudaSetDevice(atoi(environment("LOCAL_RANK")) % devices));
    for (long s = 0; s < options.streams; ++s)
        CHECK_CUDA(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
    make_communicators();
    make_buffers();
    broadcast_parameters();

    for (long step = 0; step < options.steps; ++step) train(step);
    if (options.checksum) {
        note_result(&parameters);
        printf("checksum %016llx\n", (unsigned long long)checksum);
    }
    printf("%ld steps, %ld calls\n", options.steps, calls);
    (void)fflush(stdout);
    if (strcmp(options.ending, "_exit") == 0) _exit(0);
    if (strcmp(options.ending, "leak") != 0) release();
    return 0;
}

/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * What the foreign programs share. They stand for programs of others: they know CUDA's runtime, NCCL and libc. */
#ifndef FOREIGN_COMMON_H
#define FOREIGN_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

static inline void stop(const char* file, int line, const char* what, int code)
{
    fprintf(stderr, "%s:%d: %s: %d\n", file, line, what, code);
    exit(1);
}
#define CHECK_CUDA(call) \
    do { \
        const cudaError_t code_ = (call); \
        if (code_ != cudaSuccess) stop(__FILE__, __LINE__, #call, (int)code_); \
    } while (0)
#define CHECK_NCCL(call) \
    do { \
        const ncclResult_t code_ = (call); \
        if (code_ != ncclSuccess) stop(__FILE__, __LINE__, #call, (int)code_); \
    } while (0)
#define REQUIRE(condition) \
    do { \
        if (!(condition)) stop(__FILE__, __LINE__, #condition, 0); \
    } while (0)

static inline void sleep_us(long microseconds)
{
    const struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    (void)nanosleep(&time, NULL);
}

static inline const char* environment(const char* name)
{
    const char* const value = getenv(name);
    if (value == NULL) {
        fprintf(stderr, "%s is not set: start me by end_to_end.py\n", name);
        exit(2);
    }
    return value;
}

/* Gives all ranks the same id, by a file. */
static inline void share(ncclUniqueId* id, int is_first, const char* name)
{
    char path[4096];
    char draft[4096 + 8];
    snprintf(path, sizeof(path), "%s.%s", environment("RENDEZVOUS"), name);
    snprintf(draft, sizeof(draft), "%s.draft", path);
    if (is_first) {
        FILE* const file = fopen(draft, "wb");
        REQUIRE(file != NULL && fwrite(id, sizeof(*id), 1, file) == 1 && fclose(file) == 0);
        REQUIRE(rename(draft, path) == 0);
        return;
    }
    for (int tries = 0; tries < 60000; ++tries, sleep_us(1000)) {
        FILE* const file = fopen(path, "rb");
        if (file == NULL) continue;
        REQUIRE(fread(id, sizeof(*id), 1, file) == 1 && fclose(file) == 0);
        return;
    }
    stop(__FILE__, __LINE__, "no unique id", 0);
}

/* A random number of a key, and what looks like a normal deviate. */
static inline uint64_t random_bits(uint64_t key)
{
    key += 0x9e3779b97f4a7c15u;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
    return key ^ (key >> 31);
}
static inline double deviate(uint64_t key)
{
    const uint64_t bits = random_bits(key);
    const int64_t sum = (int64_t)(bits & 0xffff) + (int64_t)(bits >> 16 & 0xffff) + (int64_t)(bits >> 32 & 0xffff)
        + (int64_t)(bits >> 48);
    return (double)(sum - 2 * 65535) * (1.7320508075688772 / 65536); /* of variance 1 */
}

/* A hash that goes on from `before`. */
static inline uint64_t hash_bytes(uint64_t before, const void* memory, size_t bytes)
{
    const unsigned char* const from = memory;
    size_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        uint64_t word;
        memcpy(&word, from + at, 8);
        before = random_bits(before ^ word);
    }
    for (; at < bytes; ++at) before = random_bits(before ^ from[at]);
    return before;
}

#endif

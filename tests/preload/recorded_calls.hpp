// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The collective calls of PyTorch 2.9.1 programs on one communicator of 8 ranks (2 for pipelines), as a process group
/// that only records saw them. Send and recv are left out, as they are by who looks for steps.
/// A program: its calls by letter (call, type, count, reduction, root), then what happens in which order.
struct recorded_program {
    const char* name;
    const char* text;
};

inline constexpr recorded_program recorded_programs[] = {
    // DistributedDataParallel, 12 blocks, 101 M parameters; the same with 4 micro-batches and no_sync.
    {"ddp", R"(
A all_gather int64 1 - 0
B broadcast int64 348 - 0
C broadcast float32 65573376 - 0
D broadcast float32 34868000 - 0
E all_reduce float32 100441376 SUM 0
F broadcast int32 125 - 0
G broadcast int32 14 - 0
H all_reduce float32 15380000 SUM 0
I all_reduce float32 7084800 SUM 0
J all_reduce float32 7086336 SUM 0
K all_reduce float32 26880 SUM 0
init: A B C D
step: E
step: F G H I J*11 K
step*3: H I J*11 K
batch*3: 
step*2: H I J*11 K
)"},
    // the same with BatchNorm: buffers are broadcast in each forward.
    {"ddp_batch_norm", R"(
A all_gather int64 1 - 0
B broadcast int64 396 - 0
C broadcast float32 65587200 - 0
D broadcast float32 34891040 - 0
E broadcast int64 12 - 0
F broadcast float32 18432 - 0
G all_reduce float32 100459808 SUM 0
H broadcast int32 149 - 0
I broadcast int32 14 - 0
J all_reduce float32 15380000 SUM 0
K all_reduce float32 7086336 SUM 0
L all_reduce float32 7087872 SUM 0
M all_reduce float32 26880 SUM 0
init: A B C D E
step: F E G
step: H I F E J K L*11 M
step*3: F E J K L*11 M
batch: F E
batch*2: 
step: J K L*11 M
step: F E J K L*11 M
)"},
    // FullyShardedDataParallel, 24 blocks, clip_grad_norm_.
    {"fsdp1", R"(
A all_gather float32 643556 - 0
B all_gather float32 98656 - 0
C reduce_scatter float32 98656 SUM 0
D reduce_scatter float32 643556 SUM 0
E all_reduce float32 1 SUM 0
init: 
step*4: A B*26 (C B)*22 C*2 D E
batch: A B*24 E
batch*2: B*24 E
step: B*26 (C B)*22 C*2 D E
step: A B*26 (C B)*22 C*2 D E
)"},
    // fully_shard, 24 blocks, bfloat16, clip_grad_norm_.
    {"fsdp2", R"(
A all_gather bfloat16 643556 - 0
B all_gather bfloat16 98656 - 0
C reduce_scatter float32 98656 AVG 0
D reduce_scatter float32 643556 AVG 0
E all_reduce float32 1 SUM 0
init: 
step*4: A B*26 (C B)*22 C*2 D E*2
batch: A B*24 E
batch*2: B*24 E
step: B*26 (C B)*22 C*2 D E*2
step: A B*26 (C B)*22 C*2 D E*2
)"},
    // fully_shard on a 2 x 4 mesh: the communicator within a shard group.
    {"hsdp_shard", R"(
A all_gather bfloat16 1287112 - 0
B all_gather bfloat16 197312 - 0
C reduce_scatter float32 197312 AVG 0
D reduce_scatter float32 1287112 AVG 0
E all_reduce float32 1 SUM 0
init: 
step*4: A B*26 (C B)*22 C*2 D E*2
batch: A B*24
batch*2: B*24
step: B*26 (C B)*22 C*2 D E*2
step: A B*26 (C B)*22 C*2 D E*2
)"},
    // the same: the communicator across replicas.
    {"hsdp_replicate", R"(
A all_reduce float32 197312 AVG 0
B all_reduce float32 1287112 AVG 0
init: 
step*4: A*24 B
batch*3: 
step*2: A*24 B
)"},
    // fully_shard, 4 micro-batches, set_requires_gradient_sync(False) but for the last.
    {"fsdp2_accumulation", R"(
A all_gather bfloat16 643556 - 0
B all_gather bfloat16 98656 - 0
C reduce_scatter float32 98656 AVG 0
D reduce_scatter float32 643556 AVG 0
E all_reduce float32 1 SUM 0
init: 
step*4: A B*48 A B*48 A B*48 A B*26 (C B)*22 C*2 D E*2
batch: A B*24 E
batch*2: B*24 E
step: B*48 A B*48 A B*48 A B*26 (C B)*22 C*2 D E*2
step: A B*48 A B*48 A B*48 A B*26 (C B)*22 C*2 D E*2
)"},
    // the same with gradients reduced in each micro-batch.
    {"fsdp2_accumulation_with_sync", R"(
A all_gather bfloat16 643556 - 0
B all_gather bfloat16 98656 - 0
C reduce_scatter float32 98656 AVG 0
D reduce_scatter float32 643556 AVG 0
E all_reduce float32 1 SUM 0
init: 
step*4: A B*26 (C B)*22 C*2 D A B*26 (C B)*22 C*2 D A B*26 (C B)*22 C*2 D A B*26 (C B)*22 C*2 D E*2
batch: A B*24 E
batch*2: B*24 E
step: B*26 (C B)*22 C*2 D A B*26 (C B)*22 C*2 D A B*26 (C B)*22 C*2 D A B*26 (C B)*22 C*2 D E*2
step: A B*26 (C B)*22 C*2 D A B*26 (C B)*22 C*2 D A B*26 (C B)*22 C*2 D A B*26 (C B)*22 C*2 D E*2
)"},
    // ZeroRedundancyOptimizer over DistributedDataParallel.
    {"zero1", R"(
A all_gather int64 1 - 0
B broadcast int64 96 - 0
C broadcast float32 37779456 - 0
D all_reduce float32 37779456 SUM 0
E broadcast float32 4722432 - 0
F broadcast float32 4722432 - 1
G broadcast float32 4722432 - 2
H broadcast float32 4722432 - 3
I broadcast float32 4722432 - 4
J broadcast float32 4722432 - 5
K broadcast float32 4722432 - 6
L broadcast float32 4722432 - 7
M broadcast int32 33 - 0
N broadcast int32 6 - 0
O all_reduce float32 2360064 SUM 0
P all_reduce float32 7084800 SUM 0
Q all_reduce float32 7082496 SUM 0
init: A B C
step: D E F G H I J K L
step: M N O (P Q)*2 P E F G H I J K L
step*3: O (P Q)*2 P E F G H I J K L
)"},
    // parallelize_module, 12 blocks, column and row.
    {"tensor_parallel", R"(
A all_reduce float32 32768 SUM 0
B all_gather float32 65536 - 0
C all_reduce float32 1 SUM 0
init: 
step*4: A*24 B A*25 C
)"},
    // the same with activations sharded by sequence.
    {"sequence_parallel", R"(
A reduce_scatter float32 4096 SUM 0
B all_gather float32 4096 - 0
C all_gather float32 65536 - 0
D all_reduce float32 1 SUM 0
E all_reduce float32 256 SUM 0
init: 
step*4: (A B)*25 C (A B)*25 D E*48
)"},
    // Schedule1F1B, 8 micro-batches: the communicator of tensor parallelism in a stage.
    {"pipeline_1f1b", R"(
A all_reduce float32 131072 SUM 0
B all_reduce float32 1 SUM 0
init: 
step*4: A*96 B
)"},
};

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# What each small example prints: regular expressions, all of which must be found.
set(printed_by_probe "^step 0\nrank +loss +gradient norm +cosine with the others\n"
    "finding: bucket 0 [^:]*:[0-9]*.: rank 2 sent NaN or infinity .non_finite.: in 1 element, the first at index 17\n$")
# Four native sums, no two alike, and one digest whatever the number of ranks.
set(printed_by_reproducible "^ 2 ranks: native d0701d7ef9c325c8, correctly rounded aceb7b2c4999659d\n"
    "\n 4 ranks: native 8dd465790b27e81c, correctly rounded aceb7b2c4999659d\n"
    "\n 8 ranks: native 962579fdf85ee9cc, correctly rounded aceb7b2c4999659d\n"
    "\n16 ranks: native 96ddb2cf5f3b97f5, correctly rounded aceb7b2c4999659d\n$")
set(printed_by_guarded_gather "^rank 0 read a sum of 10000; right is 10000\n$")
set(printed_by_audit_with_alarms
    "^step 2, bucket 0 [^:]*:[0-9]*.: rank 3 held other bits of a result than the other ranks .result_differs.. damage: on the result's way to the ranks, or in their memory. what to do: resync from rank 0\n$")
set(printed_by_agreement_with_repair "^step 2, 'momentum': rank 2 held another value than the other ranks, where all must have the same .value_differs.: other bits of [0-9.]+, since step 2\n"
    "\nbuffer 1: rank 2 differs in 1 element, the first at 1234: bits 3e800001 in place of 3e800000\n"
    "\nrepaired in 1 round, 64 bytes sent\n$")
set(printed_by_faults "call 0: wrong elements on each rank: 0 0 0 0\n" "call 1: wrong elements on each rank: 1 1 1 1\n"
    "call 2: wrong elements on each rank: 1000 1000 1000 1000\n" "call 3: wrong elements on each rank: 0 0 0 64\n"
    "rank 1, call 1: nan .before.\n" "rank 2, call 2: stale .during.\n" "rank 3, call 3: zero_slice .after.\n")
set(printed_by_stream_order "^without an event: 1 hazard\nstream order: read after write: all_gather "
    "Missing: nothing orders all_gather .* behind copy .* Cure: record an event on stream" "\nwith an event: 0 hazard\n$")
set(printed_by_inspect "16384 +4096 +float +6 +ring +24 .float. +5 " "8192 +4096 +bfloat16 +6 +tree +8 .bfloat16. +5 "
    "from element 0, 684 of them: ....1.2..3..4..5..0\n")
set(printed_by_summary_mode "^step 0\nrank  loss [^\n]*\n-*\n0 [^\n]*\n9 [^\n]*\n15 [^\n]*\n40 [^\n]*\nfinding: bucket 0 [^:]*:[0-9]*.: rank 40 sent NaN or infinity .non_finite.: in 1 element\n"
    "\nloss: mean 0.5312, highest 2.5 on rank 9\n$")
set(printed_by_evidence "^step 20, whole step: rank 2 was unlike the other ranks over many steps .unlike.: its loss was the smallest in 16 steps since step 1. 1 : 160 against chance. damage: in the rank's own data, before the call. [^\n]*\n$")
set(printed_by_own_part "^step 1, bucket 0 'weights': rank 2 did not pass a check of the program's own .of_part.: elements that the clip changes: 2\n"
    "\nstep 2, bucket 0 'weights': rank 2 did not pass [^\n]*\n$")
set(printed_by_quantised "bucket 0 'embedding': int8 in the node, int4 between nodes, blocks of 128, 43.[0-9]+ dB .*: degenerate_blocks. heavy tails: rotate"
    "bucket 1 'weights': int8 in the node, int4 between nodes, .* noise ratio 0.02[0-9]+, 18.25 % of the bytes: visible\n"
    "bucket 2 'biases': not quantised, because of its small size\nfinding: bucket 0 [^\n]*: rank [0-9] [^\n]*\n$")
set(printed_by_secondary_shard "^without the guard: a race was found\nstream order: read after write: all_gather .* behind copy .*\n"
    "the backward pass read a sum of 10000; right is 10000\nwith the guard: no race\n$")
set(printed_by_coded_weights "^step 1, forward: mean 1.00\nstep 1, backward: mean 1.00\nstep 2, forward: mean 2.00\nstep 2, backward: mean 2.00\n"
    "a gather receives 12480 bytes of 24576, SQNR [0-9.]+ dB\n$")
# One digest for 8 and 16 ranks of float; another for 16 ranks of bfloat16, which is the expected cast.
set(printed_by_receipt "^trainer, 8 ranks: 0485f525a198acc0 of 8 parts\ntrainer, 16 ranks: 0485f525a198acc0 of 16 parts\n"
    "\nengine, 16 ranks: 75a8414f513badcf of 16 parts\nengine, damaged: [0-9a-f]+ of 16 parts\n    .h.0.weight. .320,0.[+].64,512., ranks 10-11: other bits than expected\n$")

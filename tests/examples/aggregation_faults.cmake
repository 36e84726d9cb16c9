# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# examples/studies/aggregation_faults as a user runs it.
set(aggregation_faults $<TARGET_FILE:aggregation_faults>)
set(steps 150)

function(collprobe_add_aggregation_faults_test name)
    collprobe_add_run_test(
        aggregation_faults.${name} PROGRAM ${aggregation_faults} CHECKER check_aggregation_faults.py ${ARGN})
endfunction()

collprobe_add_aggregation_faults_test(sigma2_of_bit_flips ARGS --fault bit_flips --sigma2 1 CODE 2
    ERR "--sigma2 and --burst are for --fault gaussian")

# 8,970 parameters.
set(file ${scratch}/aggregation_faults_gaussian.jsonl)
collprobe_add_aggregation_faults_test(gaussian
    ARGS --ranks 2,4 --steps ${steps} --sigma2 1e-3,1e-1 --jsonl ${file} --plot ${scratch}/aggregation_faults.svg CODE 0
    OUT "4 ranks: test accuracy, %. sigma2 = +0.001 +0.1 +paper: 0.001 +0.1" "periodic, H = 10 .*93.6 +31.9"
        "majority: in 4 of 4 runs there was none" "0 of 4 runs ended with the bits of the clean run"
    CHECK gaussian 2,4 1e-3,1e-1 1 8970 ${steps} ${file})
collprobe_add_aggregation_faults_test(burst
    ARGS --ranks 2 --steps 12 --sigma2 1e-4 --burst 1 --methods noised,dynamic_corrected --average-momentum CODE 0
    OUT "every 500 steps N.0, 1. on top" "dynamic_corrected" NOT_OUT "majority")
set(file ${scratch}/aggregation_faults_bit_flips.jsonl)
collprobe_add_aggregation_faults_test(bit_flips
    ARGS --ranks 3,8 --fault bit_flips --steps ${steps} --seeds 1,2 --jsonl ${file} CODE 0
    OUT "majority: 4 of 4 runs ended with the bits of the clean run, weights and momentum, on all ranks"
    CHECK bit_flips 3,8 0 1,2 8970 ${steps} ${file})

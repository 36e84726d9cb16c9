# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# examples/studies/quantised_training as a user runs it.
set(quantised_training $<TARGET_FILE:quantised_training>)

function(collprobe_add_quantised_training_test name)
    collprobe_add_run_test(
        quantised_training.${name} PROGRAM ${quantised_training} CHECKER check_quantised_training.py ${ARGN})
endfunction()

collprobe_add_quantised_training_test(bad_block ARGS --blocks 48 CODE 2 ERR "--blocks: 48 is no power of two")
collprobe_add_quantised_training_test(dump_steps_alone ARGS --dump-steps 1 CODE 2 ERR "--dump-steps is for --dump")

# Every format, block and rounding; bytes by the formulas, verdicts, and DeepSpeed's defects by name. One step, whose averages
# are dumped.
set(file ${scratch}/quantised_training.jsonl)
set(dump ${scratch}/quantised_training)
collprobe_add_quantised_training_test(one_step
    ARGS --steps 1 --hidden 32 --blocks 32,1024 --formats fp32,int8,int8_int4,int4,deepspeed
        --variants nearest,stochastic,feedback,rotate --jsonl ${file} --dump ${dump} CODE 0
    OUT "int4, 1024, nearest [^\n]* (harmful|biased) +step 0" "deepspeed, 4096, NaN becomes 0 .* non_finite_hidden"
    CHECK 1 1 ${file} ${dump})
# Two seeds, enough steps to learn something.
set(file ${scratch}/quantised_training_runs.jsonl)
collprobe_add_quantised_training_test(runs
    ARGS --steps 12 --hidden 32 --batch 8 --blocks 128,1024 --variants nearest,feedback --formats fp32,int8,int4
        --seeds 1,2 --jsonl ${file} --plot ${scratch}/quantised_training.svg CODE 0
    OUT "int8, 128, nearest .* negligible +- +[0-9]" "Flagged, and within one test image of fp32"
    CHECK 12 1,2 ${file} ${scratch}/quantised_training.svg)

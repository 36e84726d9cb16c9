# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# collprobe_merge as a user runs it, on the files that rank_log_sample writes in the place of a preloaded program.
add_executable(rank_log_sample rank_log_sample.cpp)
target_include_directories(rank_log_sample PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(rank_log_sample PRIVATE collprobe::collprobe)

set(rank_logs ${scratch}/rank_logs)
file(REMOVE_RECURSE ${rank_logs})
file(MAKE_DIRECTORY ${rank_logs})

# collprobe_add_merge_test(<name> "<word of rank_log_sample>;..." [<argument>...] CODE n ...)
function(collprobe_add_merge_test name words)
    add_test(NAME tools.rank_log_${name} COMMAND rank_log_sample ${rank_logs}/${name} ${words})
    set_tests_properties(tools.rank_log_${name} PROPERTIES FIXTURES_SETUP rank_log_${name} TIMEOUT 60 LABELS trainer
        ENVIRONMENT "${sanitizer_options}")
    collprobe_add_run_test(tools.merge_${name} RUN $<TARGET_FILE:collprobe_merge> ${rank_logs}/${name} ${ARGN})
    set_tests_properties(tools.merge_${name} PROPERTIES FIXTURES_REQUIRED rank_log_${name})
endfunction()

collprobe_add_merge_test(clean "" CODE 0 NOT_OUT "alarm|mismatch|!"
    OUT "^run 'sample' .job 7.: 4 processes on 2 hosts\n"
        "\ncommunicator 'comm0' .0x[0-9a-f]+.: 4 ranks, 60 steps judged .0 to 59., 240 of the calls 0 to 239\n"
        "\n  all ranks got the same result in 180 calls. 180 sums are right\n"
        "\n'comm0' +0-3 +240 +240 +1 +0.5 % +0 +3\n" "\nNothing was found in 60 steps of 1 communicator.\n$")
set(in_step_40 "step 40, bucket 1 'all_reduce#1 1200 bfloat16'")
collprobe_add_merge_test(nan nan CODE 1 NOT_OUT "rank 0,"
    OUT "  alarm: ${in_step_40}: rank 2 sent NaN or infinity .non_finite.: [^\n]*. damage: in the rank's own data, before the call. what to do: drop the step's update. rank 2 .global 2, host b.\n"
        "\nRank 2 sent NaN or infinity in 1 of 60 steps, ${in_step_40}: drop the step's update. Of 180 sums 1 was not checked: its result has NaN or infinity.\n$")
collprobe_add_merge_test(flipped flipped CODE 1
    OUT "the ranks got different results in 1 of 180 calls" "rank 2 held other bits of a result than the other ranks .result_differs.. damage: on the result's way to the ranks, or in their memory. what to do: resync from rank 0"
        "\nRank 2 held other bits of a result than the other ranks in 1 of 60 steps, ${in_step_40}: resync from rank 0.\n$")
collprobe_add_merge_test(wrong_sum wrong_sum CODE 1
    OUT "1 of 180 sums are wrong" "\nSome rank received a result that is not the sum of the inputs in 1 of 60 steps, ${in_step_40}: ")
collprobe_add_merge_test(overflow overflow CODE 1 NOT_OUT "wrong|rank [0-3]:"
    OUT "same result in 180 calls. 160 of 180 sums are right, 20 were not checked: their results have NaN or infinity\n"
        "alarm: step 40, bucket 0 'all_reduce#0 1200 float': the ranks received NaN or infinity as the result of finite inputs .overflow.: 1 element, the first at index 100. the reduction leaves the range of its type. scale the inputs down, or reduce in a wider type. damage: in the sum, alike for all ranks. what to do: drop the step's update. in 20 steps, the last 59\n"
        "\nThe ranks received NaN or infinity as the result of finite inputs in 20 of 60 steps, first in step 40, bucket 0 'all_reduce#0 1200 float': drop the step's update. Of 180 sums 20 were not checked: their results have NaN or infinity.\n$")
collprobe_add_merge_test(other_call other_call CODE 1
    OUT "mismatch: call 161 .step 40.: the ranks did not make the same call: most ranks made all_reduce#1 of 1200 bfloat16 .average., rank 1 .global 1, host a. broadcast#1 of 1200 bfloat16\n"
        "  ... and 16 other calls" "\nRank 1 did not make the same call as the others, first call 161 in step 40.\n$")
collprobe_add_merge_test(missing "missing;nan" CODE 1
    OUT "4 ranks, no step was judged" "! rank 3 wrote nothing: calls that need all ranks are not judged"
        "alarm: step 40, bucket 1 'nan': rank 2 sent NaN or infinity .non_finite." "\nRank 2 sent NaN or infinity, step 40. Rank 3 wrote nothing.\n$")
collprobe_add_merge_test(named "missing;nan;named" CODE 1
    OUT "\ncommunicator 'data' .0x" "alarm: step 40, bucket 1 'nan': rank 2 sent NaN or infinity .non_finite.")
collprobe_add_merge_test(killed killed CODE 1 NOT_OUT "different calls"
    OUT "40 steps judged .0 to 39."
        "\nRank 3 .global 3, host b. wrote nothing after call 159, the others reached 239.\n$")
collprobe_add_merge_test(cut cut CODE 0 OUT "60 steps judged" "! '.*/a-pid1001.jsonl': the last line is cut off\n")
collprobe_add_merge_test(nested "nested;every=2" CODE 0
    OUT "15 steps judged .0 to 56." "! the ranks wrote different calls: 15 of 29 steps and 60 of 116 calls are there of all ranks"
        "\n'comm0' +0,2-3 +240 +120 " "\n'comm0' +1 +240 +60 " "168 of 228 calls were not looked at")
collprobe_add_merge_test(partial "partial;flipped" CODE 0 OUT "60 of 60 steps and 180 of 240 calls are there of all ranks")
collprobe_add_merge_test(groups "groups;nan" --comm comm0 CODE 1 OUT "^run 'sample'[^\n]+\n\ncommunicator 'comm0'" NOT_OUT "half")
collprobe_add_merge_test(both_groups "groups" CODE 0
    OUT "'half' .0x[0-9a-f]+.: 2 ranks, 60 steps" "\n'half' .0x[0-9a-f]+. +0-1 " "in 180 steps of 3 communicators")
collprobe_add_merge_test(no_group "groups" --comm whole CODE 2 ERR "no communicator 'whole', only: .*'comm0' .0x")
collprobe_add_merge_test(dropped dropped CODE 0 OUT "! rank 0 .global 0, host a. dropped 5 records")
collprobe_add_merge_test(factors premul CODE 0
    OUT "180 calls. 120 of 180 sums are right, 60 were not checked: their inputs are multiplied first\n"
        "\nNothing was found in 60 steps of 1 communicator. of 180 sums 60 were not checked: their inputs are multiplied first.\n$")
collprobe_add_merge_test(unlocked "unlocked;stale" CODE 0 OUT "Nothing was found in 60 steps") # no step before that is like it
collprobe_add_merge_test(rollback rollback CODE 0 OUT "63 steps judged")
# Steps are those that the engine finds: what it has not found yet, or lost, is cut by the steps beside it.
collprobe_add_merge_test(found found CODE 0 NOT_OUT "!|note|told apart" OUT "60 steps judged .0 to 59." "Nothing was found in 60 steps")
set(since_30 "ince step 30 without all_reduce#1 1200 bfloat16, made in all 30 steps before")
collprobe_add_merge_test(found_without_30 "found;without=30" CODE 1 NOT_OUT "!"
    OUT "60 steps judged .0 to 59." "30 of the steps 30 to 59 were told apart"
        "alarm: step 30, whole step: the ranks left out calls that all steps before had .call_missing.: s${since_30}. what to do: look closer" "\nS${since_30}: look closer")
collprobe_add_merge_test(found_without_1 "found;without=1" CODE 0 NOT_OUT "!"
    OUT "60 steps judged .0 to 59." "note: since step 1 without all_reduce#extra1 1200 bfloat16, made in the step before")
collprobe_add_merge_test(found_rebuilt "found;rebuilt" CODE 0 NOT_OUT "!|note" OUT "60 steps judged .0 to 59.")
collprobe_add_merge_test(evaluates evaluates CODE 0 NOT_OUT "!|note" OUT "60 steps judged .0 to 59." "Nothing was found")
collprobe_add_merge_test(found_evaluates "found;evaluates" CODE 0 NOT_OUT "note"
    OUT "! [0-9]+ of the calls [0-9]+ to [0-9]+ count as [0-9]+ steps, because they have no period" "Nothing was found")
collprobe_add_merge_test(found_late "found;steps=4;nan;fault=0;lasting" CODE 1
    OUT "! 16 of the calls 0 to 15 count as 1 step, because" "alarm: step 0, bucket 1 [^\n]+: rank 2 sent NaN or infinity .non_finite.[^\n]+\n\n" "\nRank 2 sent NaN")
# (check_merge.py judges these files with other options, too.)
collprobe_add_merge_test(large large CODE 1 OUT "\nRank 2 was unlike the other ranks over many steps, since step 0: ")
collprobe_add_merge_test(few_groups "" --groups 0,1 CODE 2 ERR "--groups has no entry for rank 2 of the job")
collprobe_add_run_test(tools.merge_bad_groups RUN $<TARGET_FILE:collprobe_merge> ${logs} --groups 0,x CODE 2 ERR "--groups")
collprobe_add_run_test(tools.merge_help RUN $<TARGET_FILE:collprobe_merge> --help CODE 0 OUT "--follow" "Exit status: 0 nothing")
collprobe_add_run_test(tools.merge_no_files RUN $<TARGET_FILE:collprobe_merge> ${logs}/no_files CODE 2 ERR "has no file")
collprobe_add_run_test(tools.merge_no_ranks RUN $<TARGET_FILE:collprobe_merge> ${logs}/lines.jsonl CODE 2
    ERR "no file has a line of a rank")
collprobe_add_run_test(tools.merge_no_json RUN $<TARGET_FILE:collprobe_merge> ${logs}/text.jsonl CODE 2
    ERR "/text.jsonl:1: this line is not JSON")

if(Python3_FOUND)
    add_test(NAME tools.merge COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/check_merge.py
        $<TARGET_FILE:collprobe_merge> $<TARGET_FILE:rank_log_sample>
        ${PROJECT_SOURCE_DIR}/examples/programs/launcher.py ${logs}/python_merge)
    set_tests_properties(tools.merge PROPERTIES TIMEOUT 480 LABELS trainer ENVIRONMENT "${sanitizer_options}")
endif()

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# examples/studies/guarded_all_gather as a user runs it.
set(guarded_all_gather $<TARGET_FILE:guarded_all_gather>)

function(collprobe_add_guarded_all_gather_test name)
    collprobe_add_run_test(guarded_all_gather.${name} PROGRAM ${guarded_all_gather} ${ARGN})
endfunction()

foreach(ranks IN ITEMS 1 3 8) # 2410 parameters: slots of 3 and 8 ranks have padding at the end
    collprobe_add_guarded_all_gather_test(clean_${ranks}_ranks
        ARGS --mode guarded,synchronised --ranks ${ranks} --steps 20 CODE 0
        OUT "guarded +[0-9.]+ +[0-9a-f]+ +none +0 .*synchronised +[0-9.]+ +[0-9a-f]+ +none +0 "
            "guarded: the synchronised losses, bit for bit" NOT_OUT "unguarded")
endforeach()

# Unguarded is a race on purpose.
if(COLLPROBE_SANITIZER STREQUAL "thread")
    add_test(NAME guarded_all_gather.unguarded_is_a_data_race COMMAND guarded_all_gather --mode unguarded --steps 20)
    set_tests_properties(guarded_all_gather.unguarded_is_a_data_race PROPERTIES TIMEOUT 300 LABELS trainer
        ENVIRONMENT "${sanitizer_options}" PASS_REGULAR_EXPRESSION "WARNING: ThreadSanitizer: data race")
    return()
endif()
collprobe_add_guarded_all_gather_test(unguarded_is_reported ARGS --mode unguarded --steps 20 CODE 0
    OUT "unguarded: stream order: read after write: all_gather .* reads on stream [0-9]+ .traffic of rank [0-3].*copy .* writes on stream [0-9]+ .copies of rank [0-3].*Missing: .*Cure: ")
if(Python3_FOUND)
    add_test(NAME guarded_all_gather.delays COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/delay_seeds.py
        ${guarded_all_gather} ${scratch}/guarded_all_gather.jsonl 4 --steps 40)
    set_tests_properties(guarded_all_gather.delays PROPERTIES TIMEOUT 300 LABELS trainer ENVIRONMENT "${sanitizer_options}")
endif()

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# examples/tools as a user runs them, on files of log_sample.
find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
    return()
endif()
find_package(Python3 COMPONENTS Interpreter)
add_executable(log_sample log_sample.cpp)
target_link_libraries(log_sample PRIVATE collprobe::collprobe)
if(NOT COLLPROBE_BUILD_EXAMPLES) # sanitizers among them
    foreach(name collprobe_compare collprobe_merge collprobe_verify collprobe_watch)
        if(TARGET ${name}) # other tests need it, too
            continue()
        endif()
        add_executable(${name} ${PROJECT_SOURCE_DIR}/examples/tools/${name}.cpp)
        target_link_libraries(${name} PRIVATE nlohmann_json::nlohmann_json)
        if(TARGET collprobe::compiled)
            target_link_libraries(${name} PRIVATE collprobe::compiled)
        else()
            target_link_libraries(${name} PRIVATE collprobe::collprobe)
        endif()
    endforeach()
endif()

# collprobe_add_log(<name> <run> <ranks> [<faulty call>] [<word>...]): a file, made before the tests that read it.
set(logs ${scratch}/logs)
file(MAKE_DIRECTORY ${logs} ${logs}/all)
function(collprobe_add_log name)
    add_test(NAME tools.log_${name} COMMAND log_sample ${logs}/${name} ${ARGN})
    set_tests_properties(tools.log_${name} PROPERTIES FIXTURES_SETUP tool_logs TIMEOUT 60 LABELS trainer
        ENVIRONMENT "${sanitizer_options}")
endfunction()
collprobe_add_log(clean.jsonl clean 4)
collprobe_add_log(flipped.jsonl flipped 4 10 sampled)
collprobe_add_log(sampled.jsonl sampled 4 none sampled)
collprobe_add_log(8_ranks.jsonl "8 ranks" 8)
collprobe_add_log(8_flipped.jsonl "8 ranks" 8 0)
collprobe_add_log(inspector.jsonl inspector 4 none inspector)
collprobe_add_log(unread.jsonl unread 4 none unread)
collprobe_add_log(all all 4 none all)
file(WRITE ${logs}/text.jsonl "no JSON\n")
file(WRITE ${logs}/schema.jsonl "{\"schema\":2,\"kind\":\"step\"}\n")
file(WRITE ${logs}/other.jsonl "\n{\"a\":1}\n")
file(WRITE ${logs}/empty.jsonl "")
file(MAKE_DIRECTORY ${logs}/no_files)

function(collprobe_add_compare_test name a b)
    list(TRANSFORM ARGN REPLACE "^@" "${logs}/")
    collprobe_add_run_test(tools.compare_${name} RUN $<TARGET_FILE:collprobe_compare> ${logs}/${a} ${logs}/${b} ${ARGN})
    set_tests_properties(tools.compare_${name} PROPERTIES FIXTURES_REQUIRED tool_logs)
endfunction()
collprobe_add_compare_test(with_itself clean.jsonl clean.jsonl CODE 0
    OUT "\nidentical: 6 steps, 18 calls with equal digests, 4 ranks\n")
collprobe_add_compare_test(other_ranks clean.jsonl 8_ranks.jsonl CODE 0
    OUT "\nidentical: 6 steps, 18 calls with equal digests, 4 and 8 ranks\n")
collprobe_add_compare_test(other_ranks_flipped clean.jsonl 8_flipped.jsonl CODE 1 NOT_OUT identical
    OUT "first in step 0, bucket 0 'wte', call 0, all_reduce of 1000 float. other results in 1 of 18 calls")
collprobe_add_compare_test(dialects clean.jsonl inspector.jsonl CODE 0 OUT "\nidentical: 6 steps, 18 calls")
collprobe_add_compare_test(one_bit clean.jsonl flipped.jsonl CODE 1 NOT_OUT identical
    OUT "first in step 3, bucket 1 'wpe', call 10, all_reduce of 1000 float. other results in 1 of 18 calls"
        "\nstep 3 +1 of 3 " "from step +verdict")
collprobe_add_compare_test(one_bit_sampled sampled.jsonl flipped.jsonl CODE 1 OUT "first in step 3, bucket 1 'wpe', call 10")
collprobe_add_compare_test(folder all clean.jsonl CODE 0 OUT "written by ranks 0, 1, 2 and 3" "\nidentical: 6 steps, 18 calls")
collprobe_add_compare_test(without_digests unread.jsonl unread.jsonl CODE 2 OUT "\nnothing to compare: no result has a digest"
    NOT_OUT identical)
collprobe_add_compare_test(no_file none.jsonl clean.jsonl CODE 2 ERR "cannot read '.*/none.jsonl': No such file or directory")
collprobe_add_compare_test(no_json clean.jsonl text.jsonl CODE 2 ERR "/text.jsonl:1: this line is not JSON .column")
collprobe_add_compare_test(schema clean.jsonl schema.jsonl CODE 2 ERR "/schema.jsonl:1: this line has schema 2. this program reads 1")
collprobe_add_compare_test(no_schema clean.jsonl other.jsonl CODE 2 ERR "/other.jsonl:1: this line is not JSON")
collprobe_add_compare_test(empty clean.jsonl empty.jsonl CODE 2 ERR "'.*/empty.jsonl' has no steps")
collprobe_add_compare_test(empty_folder clean.jsonl no_files CODE 2 ERR "'.*/no_files' has no file")

collprobe_add_run_test(tools.compare_help RUN $<TARGET_FILE:collprobe_compare> --help CODE 0 OUT "--run-a" "Exit status: 0 identical")
collprobe_add_run_test(tools.compare_one_file RUN $<TARGET_FILE:collprobe_compare> a CODE 2 ERR "B is required")
collprobe_add_run_test(tools.watch_once RUN $<TARGET_FILE:collprobe_watch> --once ${logs}/clean.jsonl CODE 0
    OUT "^clean .4 ranks.: step 5, alarms 0, loss 0.1667, " "\n3 +0.1667 " "\nended: Nothing was found in 6 steps of 4 ranks.\n$")
set_tests_properties(tools.watch_once PROPERTIES FIXTURES_REQUIRED tool_logs)
collprobe_add_run_test(tools.watch_timeout RUN $<TARGET_FILE:collprobe_watch> ${logs}/none.jsonl --timeout 0.5 CODE 1
    OUT "^waiting for '.*/none.jsonl'\n$" ERR "nothing was written for 0.5 seconds")

if(Python3_FOUND)
    file(MAKE_DIRECTORY ${logs}/python)
    foreach(tool compare watch)
        add_test(NAME tools.${tool} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/check_${tool}.py
            $<TARGET_FILE:collprobe_${tool}> $<TARGET_FILE:log_sample> ${logs}/python)
        set_tests_properties(tools.${tool} PROPERTIES TIMEOUT 120 LABELS trainer ENVIRONMENT "${sanitizer_options}")
    endforeach()
    add_test(NAME tools.verify COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/check_verify.py
        $<TARGET_FILE:collprobe_verify> ${scratch}/verify)
    set_tests_properties(tools.verify PROPERTIES TIMEOUT 120 LABELS trainer ENVIRONMENT "${sanitizer_options}")
endif()

include(${CMAKE_CURRENT_LIST_DIR}/merge.cmake)

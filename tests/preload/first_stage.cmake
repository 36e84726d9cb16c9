# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# The first stage, the proxy and the launcher, with small models of NCCL and of the engine.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_FOUND)
    message(STATUS "No Python: the tests of the preload's first stage are left out")
    return()
endif()
add_subdirectory(models)
set(first_stage_files $<TARGET_FILE:collprobe_preload> $<TARGET_FILE:collprobe_proxy>)

function(add_first_stage_test name)
    add_test(NAME preload.${name} COMMAND ${Python3_EXECUTABLE} ${ARGN})
    set_tests_properties(preload.${name} PROPERTIES LABELS preload TIMEOUT 60)
endfunction()

add_first_stage_test(a1_symbols ${CMAKE_CURRENT_SOURCE_DIR}/symbols.py
    ${PROJECT_SOURCE_DIR}/examples/preload/symbols.def ${CMAKE_CURRENT_SOURCE_DIR}/nccl_exports.txt
    ${first_stage_files})
foreach(name a1_every_call a2_dependencies a2_other_programs a2_broken_engine a2_not_wanted a3_rtld_local
        a3_two_nccls a3_no_nccl a3_other_interposer a4_reentry a5_group_depth a6_polls
        a9_fork_passes_through a9_threads_open_once a12_cost a14_mark_step proxy_by_name proxy_python proxy_forwards
        proxy_finds_nccl)
    add_first_stage_test(${name}_of_first_stage ${CMAKE_CURRENT_SOURCE_DIR}/loader.py ${name}
        ${CMAKE_CURRENT_BINARY_DIR}/models ${first_stage_files})
endforeach()
foreach(name variables preloads options check_programs check_python check_process)
    add_first_stage_test(run_${name} ${CMAKE_CURRENT_SOURCE_DIR}/run_launcher.py ${name}
        ${CMAKE_CURRENT_BINARY_DIR}/models ${first_stage_files})
endforeach()

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# Foreign programs under the preload, and what the merged records say of them.
find_package(nlohmann_json QUIET)
if(NOT Python3_FOUND OR NOT nlohmann_json_FOUND OR NOT TARGET collprobe_preload
        OR NOT TARGET foreign_trainer)
    return()
endif()
if(NOT TARGET collprobe_merge AND NOT COLLPROBE_BUILD_EXAMPLES)
    add_executable(collprobe_merge EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/examples/tools/collprobe_merge.cpp)
    target_link_libraries(collprobe_merge PRIVATE collprobe::collprobe nlohmann_json::nlohmann_json)
endif()
add_custom_target(preload_end_to_end ALL
    DEPENDS collprobe_preload preload_engine_module foreign_programs collprobe_merge)

function(add_end_to_end_test name)
    add_test(NAME preload.${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/end_to_end.py
        --preload $<TARGET_FILE:collprobe_preload> --engine $<TARGET_FILE:preload_engine_module>
        --programs ${FOREIGN_DIR} --merge $<TARGET_FILE:collprobe_merge> ${name})
    set_tests_properties(preload.${name} PROPERTIES
        LABELS "stand_in;${ARGN}" TIMEOUT 300 PROCESSORS 2 ENVIRONMENT "${FOREIGN_ENVIRONMENT}")
endfunction()
# The longer ones run once: where the engine has the kernels that nvcc makes. Under sanitizers those that have threads.
if(COLLPROBE_EMULATED)
    set(label gpu)
    set(cases a2_unwritable a5_groups a9_ends a10_detection a10_clean_run inband inband_settings inband_mixed
        control_file)
    add_dependencies(cuda_tests preload_end_to_end)
elseif(COLLPROBE_SANITIZER)
    set(label threads)
    set(cases a5_groups inband)
else()
    set(label threads)
    set(cases a5_groups a10_detection inband)
endif()
foreach(name IN LISTS cases)
    add_end_to_end_test(${name} ${label})
endforeach()

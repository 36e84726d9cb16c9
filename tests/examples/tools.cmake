# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# examples/tools as a user runs them.
find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
    return()
endif()
find_package(Python3 COMPONENTS Interpreter)
if(NOT COLLPROBE_BUILD_EXAMPLES) # sanitizers among them
    foreach(name collprobe_merge collprobe_verify)
        if(TARGET ${name}) # other tests need it, too
            continue()
        endif()
        add_executable(${name} ${PROJECT_SOURCE_DIR}/examples/tools/${name}.cpp)
        target_link_libraries(${name} PRIVATE nlohmann_json::nlohmann_json)
        target_compile_definitions(${name} PRIVATE
            COLLPROBE_EXAMPLE_VIEWER="${PROJECT_SOURCE_DIR}/examples/programs/launcher.py")
        if(TARGET collprobe::compiled)
            target_link_libraries(${name} PRIVATE collprobe::compiled)
        else()
            target_link_libraries(${name} PRIVATE collprobe::collprobe)
        endif()
    endforeach()
endif()

set(logs ${scratch}/logs)
file(MAKE_DIRECTORY ${logs} ${logs}/no_files)
file(WRITE ${logs}/text.jsonl "no JSON\n")
file(WRITE ${logs}/lines.jsonl "{\"schema\":1,\"kind\":\"end\",\"run\":\"a\",\"comm\":\"world\",\"writer\":0}\n")

if(Python3_FOUND)
    add_test(NAME tools.verify COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/check_verify.py
        $<TARGET_FILE:collprobe_verify> ${scratch}/verify)
    set_tests_properties(tools.verify PROPERTIES TIMEOUT 120 LABELS trainer ENVIRONMENT "${sanitizer_options}")
endif()

include(${CMAKE_CURRENT_LIST_DIR}/merge.cmake)

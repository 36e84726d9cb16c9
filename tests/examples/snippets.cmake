# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# Every C++ snippet of the READMEs compiles and links by itself; and the check refuses what does not.
collprobe_wanted(wanted headers)
if(NOT wanted)
    return()
endif()

# collprobe_add_snippet_test(<name> <file> <kind> COMPILER argument... [LABELS label...])
function(collprobe_add_snippet_test name file kind)
    cmake_parse_arguments(PARSE_ARGV 3 arg "" "" "COMPILER;LABELS")
    add_test(NAME snippets.${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/snippets.py
        ${file} ${kind} ${CMAKE_CURRENT_BINARY_DIR}/snippets/${name} -- ${arg_COMPILER})
    set_tests_properties(snippets.${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 600)
endfunction()

set(readme ${PROJECT_SOURCE_DIR}/README.md)
set(broken ${CMAKE_CURRENT_SOURCE_DIR}/snippets/broken.md)
set(local -std=c++20 -O0 -Wall -Wextra -Wconversion -Wno-sign-conversion -Wshadow -Werror -pthread
    -I${PROJECT_SOURCE_DIR}/include)
collprobe_add_snippet_test(local ${readme} local COMPILER ${CMAKE_CXX_COMPILER} ${local} LABELS headers)
set(headers_page ${PROJECT_SOURCE_DIR}/include/collprobe/README.md)
collprobe_add_snippet_test(headers ${headers_page} local COMPILER ${CMAKE_CXX_COMPILER} ${local} LABELS headers)
collprobe_add_snippet_test(step ${PROJECT_SOURCE_DIR}/include/collprobe/step/README.md local
    COMPILER ${CMAKE_CXX_COMPILER} ${local} LABELS headers)
collprobe_add_snippet_test(grafana ${PROJECT_SOURCE_DIR}/examples/grafana/README.md local
    COMPILER ${CMAKE_CXX_COMPILER} ${local} LABELS headers)
collprobe_add_snippet_test(comm ${PROJECT_SOURCE_DIR}/include/collprobe/comm/README.md class
    COMPILER ${CMAKE_CXX_COMPILER} ${local} LABELS headers)
collprobe_add_snippet_test(one_that_does_not_compile_fails ${broken} local COMPILER ${CMAKE_CXX_COMPILER} ${local} LABELS headers)
collprobe_add_snippet_test(one_of_no_kind_fails ${CMAKE_CURRENT_SOURCE_DIR}/snippets/no_kind.md local
    COMPILER ${CMAKE_CXX_COMPILER} ${local} LABELS headers)
set_tests_properties(snippets.one_that_does_not_compile_fails PROPERTIES PASS_REGULAR_EXPRESSION "broken.md:3 : FAILED")
set_tests_properties(snippets.one_of_no_kind_fails PROPERTIES
    PASS_REGULAR_EXPRESSION "line 1: a fence of C.. says how it is compiled")

# NCCL's over the stand-ins, in plain C++.
if(TARGET stand_in_nccl)
    add_library(snippet_stand_ins STATIC $<TARGET_OBJECTS:stand_in_cuda> $<TARGET_OBJECTS:stand_in_nccl>)
    set(nccl ${CMAKE_CXX_COMPILER} -I${CMAKE_CURRENT_SOURCE_DIR}/snippets/stand_in ${local} -I${PROJECT_SOURCE_DIR}
        -isystem ${COLLPROBE_CUDA_INCLUDE_DIR} -isystem ${COLLPROBE_NCCL_INCLUDE_DIR} @ $<TARGET_FILE:snippet_stand_ins>)
    collprobe_add_snippet_test(nccl ${readme} nccl COMPILER ${nccl} LABELS headers stand_in)
    collprobe_add_snippet_test(headers_nccl ${headers_page} nccl COMPILER ${nccl} LABELS headers stand_in)
    collprobe_add_snippet_test(one_that_does_not_link_fails ${broken} nccl COMPILER ${nccl} LABELS headers stand_in)
    set_tests_properties(snippets.one_that_does_not_link_fails PROPERTIES PASS_REGULAR_EXPRESSION "broken.md:10 : FAILED")
endif()
# The same by nvcc, against NCCL.
if(CMAKE_CUDA_COMPILER AND TARGET collprobe::nccl)
    list(GET CMAKE_CUDA_ARCHITECTURES 0 architecture)
    collprobe_add_snippet_test(nvcc ${readme} nccl LABELS cuda
        COMPILER ${CMAKE_CUDA_COMPILER} -std=c++20 -O0 -arch=sm_${architecture} -Xcompiler=-Wall,-Wextra
            -I${PROJECT_SOURCE_DIR}/include -isystem ${COLLPROBE_NCCL_INCLUDE_DIR} @ $<TARGET_FILE:NCCL::nccl>)
endif()

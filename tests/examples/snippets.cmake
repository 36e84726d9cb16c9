# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# Every C++ snippet of the READMEs compiles, links and runs by itself; NCCL's, which need GPUs, are not run.
collprobe_wanted(wanted headers)
if(NOT wanted)
    return()
endif()

# collprobe_add_snippet_test(<name> <file> <kind> [RUN] COMPILER argument... [LABELS label...])
function(collprobe_add_snippet_test name file kind)
    cmake_parse_arguments(PARSE_ARGV 3 arg "RUN" "" "COMPILER;LABELS")
    add_test(NAME snippets.${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/snippets.py
        ${file} ${kind} ${CMAKE_CURRENT_BINARY_DIR}/snippets/${name} $<$<BOOL:${arg_RUN}>:run> -- ${arg_COMPILER})
    set_tests_properties(snippets.${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 600)
endfunction()

set(readme ${PROJECT_SOURCE_DIR}/README.md)
set(local -std=c++20 -O0 -Wall -Wextra -Wconversion -Wno-sign-conversion -Wshadow -Werror -pthread
    -I${PROJECT_SOURCE_DIR}/include)
set(headers ${PROJECT_SOURCE_DIR}/include/collprobe)
set(local_pages ${readme} ${headers}/README.md ${headers}/step/README.md)
set(step_pages ${headers}/audit/README.md ${headers}/alarm/README.md)
set(class_pages ${headers}/comm/README.md)
foreach(kind local step class)
    foreach(page IN LISTS ${kind}_pages)
        file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${page})
        string(MAKE_C_IDENTIFIER ${name} name)
        collprobe_add_snippet_test(${name} ${page} ${kind} RUN COMPILER ${CMAKE_CXX_COMPILER} ${local} LABELS headers)
    endforeach()
endforeach()
collprobe_add_snippet_test(grafana ${PROJECT_SOURCE_DIR}/examples/grafana/README.md local # into a folder of the exporter's
    COMPILER ${CMAKE_CXX_COMPILER} ${local} LABELS headers)

# NCCL's over the stand-ins, in plain C++.
if(TARGET stand_in_nccl)
    add_library(snippet_stand_ins STATIC $<TARGET_OBJECTS:stand_in_cuda> $<TARGET_OBJECTS:stand_in_nccl>)
    set(nccl ${CMAKE_CXX_COMPILER} -I${CMAKE_CURRENT_SOURCE_DIR}/snippets/stand_in ${local} -I${PROJECT_SOURCE_DIR}
        -isystem ${COLLPROBE_CUDA_INCLUDE_DIR} -isystem ${COLLPROBE_NCCL_INCLUDE_DIR} @ $<TARGET_FILE:snippet_stand_ins>)
    collprobe_add_snippet_test(nccl ${readme} nccl COMPILER ${nccl} LABELS headers stand_in)
    collprobe_add_snippet_test(headers_nccl ${headers}/README.md nccl COMPILER ${nccl} LABELS headers stand_in)
endif()
# The same by nvcc, against NCCL.
if(CMAKE_CUDA_COMPILER AND TARGET collprobe::nccl)
    string(REGEX MATCH "^[0-9]+" architecture "${CMAKE_CUDA_ARCHITECTURES}")
    collprobe_add_snippet_test(nvcc ${readme} nccl LABELS cuda
        COMPILER ${CMAKE_CUDA_COMPILER} -std=c++20 -O0 -arch=sm_${architecture} -Xcompiler=-Wall,-Wextra
            -I${PROJECT_SOURCE_DIR}/include -isystem ${COLLPROBE_NCCL_INCLUDE_DIR} @ $<TARGET_FILE:NCCL::nccl>)
endif()

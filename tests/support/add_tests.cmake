# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# What the CMake files of the folders call. Labels say what a test is:
#     numbers       it computes: built and run with -ffast-math
#     threads       it has threads: built and run under ThreadSanitizer
#     slow          its optimised or instrumented build, or its run, takes long: not under AddressSanitizer
#     headers       it compiles headers for their own sake: not in quick
#     stand_in      it runs on the stand-ins for CUDA and NCCL (given to *_stand_in_test.cpp and stand_in/ by itself)
# beside compile_fail, consumer, lint, mpi, trainer, cuda and gpu.

# collprobe_wanted(<variable> [<label>...]): whether this build tree has tests of these labels
# (COLLPROBE_TEST_LABELS, COLLPROBE_TEST_LABELS_LEFT_OUT).
function(collprobe_wanted variable)
    set(wanted ON)
    if(COLLPROBE_TEST_LABELS)
        set(wanted OFF)
    endif()
    foreach(label IN LISTS ARGN)
        if(label IN_LIST COLLPROBE_TEST_LABELS)
            set(wanted ON)
        endif()
    endforeach()
    foreach(label IN LISTS ARGN)
        if(label IN_LIST COLLPROBE_TEST_LABELS_LEFT_OUT)
            set(wanted OFF)
        endif()
    endforeach()
    set(${variable} ${wanted} PARENT_SCOPE)
endfunction()

# collprobe_add_tests([<name>...] [LABELS label...] [TIMEOUT seconds] [PROGRAM name] [STREAM_ORDER])
#
# Adds the test cases of <name>_test.cpp, or .cu where there is a CUDA compiler; without names, those of all files of
# this folder that no earlier call has named. Each file is a test, `<folder>.<name>`. The files of a folder that need
# the same are one program, <folder>_tests; apart are those
#     <name>_stand_in_test.cpp      over the stand-ins for CUDA and NCCL: where the headers of those were found;
#                                   the tests in the folder stand_in, which are of those, too
#     that count or fail allocations by a header of support/: such a program has an operator new of its own
#     with STREAM_ORDER             all objects of such a program tell the checker of stream order
#     with PROGRAM                  in a program of that name
#     <name>_test.cu                each for itself
function(collprobe_add_tests)
    cmake_parse_arguments(PARSE_ARGV 0 arg "STREAM_ORDER" "TIMEOUT;PROGRAM" "LABELS")
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 300)
    endif()
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    file(GLOB found RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *_test.cpp *_test.cu)
    get_property(named DIRECTORY PROPERTY collprobe_named_tests)
    set(files "")
    foreach(name IN LISTS arg_UNPARSED_ARGUMENTS)
        set(here ${found})
        list(FILTER here INCLUDE REGEX "^${name}_test\\.cpp$|^${name}_test\\.cu$")
        if(NOT here)
            message(FATAL_ERROR "There is no test of the name ${name} in ${folder}")
        endif()
        list(APPEND files ${here})
    endforeach()
    if(NOT files)
        set(files ${found})
        list(REMOVE_ITEM files ${named})
    endif()
    set_property(DIRECTORY APPEND PROPERTY collprobe_named_tests ${files})
    foreach(file IN LISTS files)
        set_property(GLOBAL APPEND PROPERTY collprobe_test_files ${folder}/${file})
        if(file MATCHES "\\.cu$")
            collprobe_add_cuda_test(${file})
        else()
            collprobe_add_host_test(${file})
        endif()
    endforeach()
endfunction()

# One file of the call above, whose variables it reads.
function(collprobe_add_host_test file)
    set(labels ${arg_LABELS})
    set(libraries "")
    set(program ${folder})
    if(file MATCHES "_stand_in_test\\.cpp$" OR folder STREQUAL "stand_in")
        list(APPEND labels stand_in)
        list(APPEND libraries stand_in_cuda)
        if(NOT folder STREQUAL "stand_in")
            string(APPEND program _stand_in)
        endif()
        file(STRINGS ${file} nccl_includes REGEX "#include .*nccl")
        if(nccl_includes)
            list(APPEND libraries stand_in_nccl)
        endif()
    endif()
    if(arg_STREAM_ORDER)
        list(TRANSFORM libraries APPEND _checked)
        list(APPEND libraries collprobe_stream_order)
        string(APPEND program _checked)
    endif()
    file(STRINGS ${file} allocation_includes REGEX "#include .*support/(count_allocations|fail_allocation|hot_path)")
    if(allocation_includes)
        list(APPEND libraries test_allocations)
        string(APPEND program _allocations)
    endif()
    string(APPEND program _tests)
    if(arg_PROGRAM)
        set(program ${arg_PROGRAM})
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})

    collprobe_wanted(wanted ${labels})
    foreach(library IN LISTS libraries)
        if(NOT TARGET ${library})
            set(wanted OFF) # the headers of CUDA or NCCL were not found: support/CMakeLists.txt says so
        endif()
    endforeach()
    if(wanted)
        if(NOT TARGET ${program})
            add_executable(${program})
            target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR})
            target_link_libraries(${program} PRIVATE collprobe::collprobe test_main)
        endif()
        target_sources(${program} PRIVATE ${file})
        get_target_property(linked ${program} LINK_LIBRARIES)
        list(REMOVE_ITEM libraries ${linked})
        target_link_libraries(${program} PRIVATE ${libraries})
        string(REGEX REPLACE "_test\\.cpp$" "" name ${folder}.${file})
        add_test(NAME ${name} COMMAND ${program} --source-file=*/${folder}/${file})
        collprobe_test_properties(${name} ${arg_TIMEOUT} "${labels}")
    endif()
endfunction()

function(collprobe_add_cuda_test file)
    if(NOT CMAKE_CUDA_COMPILER)
        return()
    endif()
    string(REGEX REPLACE "_test\\.cu$" ".cu" name ${folder}.${file})
    file(STRINGS ${file} nccl_includes REGEX "#include <collprobe/(.*/)?nccl")
    if(nccl_includes AND NOT TARGET collprobe::nccl)
        message(STATUS "${name} is left out: NCCL was not found (NCCL_ROOT)")
        return()
    endif()
    set(labels ${arg_LABELS} cuda)
    add_executable(${name} ${file})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE collprobe::collprobe test_main)
    if(nccl_includes)
        target_link_libraries(${name} PRIVATE collprobe::nccl)
    endif()
    if(arg_STREAM_ORDER)
        target_link_libraries(${name} PRIVATE collprobe::stream_order)
    endif()
    if(file MATCHES "_gpu_test\\.cu$")
        list(APPEND labels gpu) # does nothing without a GPU: ends with status 77
        # For the GPU at hand, if any: that every kernel compiles for every architecture is another test.
        set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${COLLPROBE_GPU_TEST_ARCHITECTURES}")
    endif()
    add_dependencies(cuda_tests ${name})
    add_test(NAME ${name} COMMAND ${name})
    collprobe_test_properties(${name} ${arg_TIMEOUT} "${labels}")
endfunction()

# A run of no test case is a failure (main.cpp says so too), exit status 77 a skip.
function(collprobe_test_properties name timeout labels)
    set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS "${labels}"
        SKIP_RETURN_CODE 77 FAIL_REGULAR_EXPRESSION "test cases: +0 " ENVIRONMENT "${sanitizer_options}")
endfunction()

# collprobe_add_program(<name> [LABELS label...] [PROCESSORS n]): <name>.cpp of this folder, with a main() of its own;
# the test `<folder>.<name>` is its run without arguments.
function(collprobe_add_program name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "PROCESSORS" "LABELS")
    collprobe_wanted(wanted ${arg_LABELS})
    if(NOT wanted)
        return()
    endif()
    if(NOT arg_PROCESSORS)
        set(arg_PROCESSORS 1)
    endif()
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    add_executable(${name} ${name}.cpp)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${name} PRIVATE collprobe::collprobe)
    add_test(NAME ${folder}.${name} COMMAND ${name})
    set_tests_properties(${folder}.${name} PROPERTIES TIMEOUT 300 LABELS "${arg_LABELS}" PROCESSORS ${arg_PROCESSORS}
        ENVIRONMENT "${sanitizer_options}")
endfunction()

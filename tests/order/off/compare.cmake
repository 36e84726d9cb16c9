# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# cmake -D COMPILER=g++ -D INCLUDE=<dir> -D UNIT=use_everything.cpp -D WORK=<dir> [-D FLAGS=-DWITH_NCCL;-isystem;...]
#     -P compare.cmake
#
# Shows that the hooks of the checker of stream order cost nothing while they are off: the unit gives the same object
# file, byte for byte, with headers from which all lines of theirs were taken out. And that the comparison would
# tell: with the switch on the object file is another one.

file(REMOVE_RECURSE ${WORK})
foreach(kind IN ITEMS with without)
    file(COPY ${INCLUDE}/ DESTINATION ${WORK}/${kind}/include)
    file(COPY ${UNIT} DESTINATION ${WORK}/${kind})
endforeach()
get_filename_component(unit ${UNIT} NAME)

# An empty line stays, since line numbers are part of the object file.
set(hook "\n[ \t]*(if constexpr .order_hooks::active. |..maybe_unused.. )?order_hooks::[^\n]*;[ \t]*(//[^\n]*)?\n")
set(taken_out 0)
file(GLOB_RECURSE headers ${WORK}/without/include/*.hpp ${WORK}/without/include/*.ipp)
list(FILTER headers EXCLUDE REGEX "/collprobe/order/")
foreach(header IN LISTS headers)
    file(READ ${header} text)
    string(FIND "${text}" "order_hooks::" found)
    if(found EQUAL -1)
        continue()
    endif()
    string(REGEX REPLACE "order_hooks::with_point<([^>]*)>" "\\1" text "${text}")
    string(REGEX MATCHALL "\n[ \t]*(if constexpr .order_hooks::active. |..maybe_unused.. )?order_hooks::" lines "${text}")
    list(LENGTH lines count)
    math(EXPR taken_out "${taken_out} + ${count}")
    # Each match takes the line break that the next would begin with.
    string(REPLACE "\n" "\n\n" text "${text}")
    string(REGEX REPLACE "${hook}" "\n\n" text "${text}")
    string(REPLACE "\n\n" "\n" text "${text}")
    string(FIND "${text}" "order_hooks::" found)
    if(NOT found EQUAL -1)
        message(FATAL_ERROR "${header} has a hook that is no statement on a line of its own")
    endif()
    file(WRITE ${header} "${text}")
endforeach()
message(STATUS "${taken_out} lines taken out")
if(taken_out LESS 35)
    message(FATAL_ERROR "fewer hooks than there should be")
endif()

# In a large unit what g++ inlines depends on the size of all functions before it is optimised, where a statement that is
# discarded counts.
execute_process(COMMAND ${COMPILER} --version OUTPUT_VARIABLE version)
if(version MATCHES "Free Software Foundation")
    list(APPEND FLAGS --param=large-unit-insns=1000000)
endif()

# From within each directory, so that the file names in the objects are the same.
function(compile kind object)
    execute_process(COMMAND ${COMPILER} -std=c++20 -O2 -Iinclude ${FLAGS} ${ARGN} -c ${unit} -o ${object}
        WORKING_DIRECTORY ${WORK}/${kind} RESULT_VARIABLE status ERROR_VARIABLE errors)
    if(NOT status EQUAL 0)
        message(FATAL_ERROR "${kind}: ${errors}")
    endif()
endfunction()
compile(with ${WORK}/with.o)
compile(without ${WORK}/without.o)
compile(with ${WORK}/on.o -DCOLLPROBE_STREAM_ORDER=1)

function(compare first second equal)
    execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${WORK}/${first} ${WORK}/${second}
        RESULT_VARIABLE different OUTPUT_QUIET ERROR_QUIET)
    if(equal AND different)
        message(FATAL_ERROR "the hooks leave code where they are off: compare ${WORK}/${first} with ${second}")
    elseif(NOT equal AND NOT different)
        message(FATAL_ERROR "the switch changes nothing: ${first} and ${second} are the same")
    endif()
endfunction()
compare(with.o without.o TRUE)
compare(with.o on.o FALSE)
message(STATUS "the same code")

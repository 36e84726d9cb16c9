# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# cmake -DREADME=file -DPROGRAM=file -P readme.cmake
# The lines of the README's block are those of the program, in their order.
file(READ ${README} readme)
file(READ ${PROGRAM} program)
string(REGEX MATCH "```c\n(.*)\n```" block "${readme}")
string(REPLACE ";" "<semicolon>" block "${CMAKE_MATCH_1}")
string(REPLACE ";" "<semicolon>" program "${program}")
string(REPLACE "\n" ";" lines "${block}")
foreach(line IN LISTS lines)
    string(FIND "${program}" "${line}\n" at)
    if(at EQUAL -1)
        message(FATAL_ERROR "${PROGRAM} does not have, behind the line before it: ${line}")
    endif()
    string(LENGTH "${line}" length)
    math(EXPR at "${at} + ${length}")
    string(SUBSTRING "${program}" ${at} -1 program)
endforeach()

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# cmake -Dregex=R -P expect.cmake -- compiler and arguments
# With an empty R the command must succeed; else it must fail and its output match R. (A test
# property alone would accept a warning of the right text, or any error.) If R begins with "first error: ",
# the rest must match the first error that the compiler tells.
set(command "")
set(past_dashes OFF)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
    if(past_dashes)
        list(APPEND command "${CMAKE_ARGV${i}}")
    elseif(CMAKE_ARGV${i} STREQUAL "--")
        set(past_dashes ON)
    endif()
endforeach()

execute_process(COMMAND ${command} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(regex MATCHES "^first error: (.+)$")
    set(regex "${CMAKE_MATCH_1}")
    string(REGEX MATCH "[^\n]*error: [^\n]*" output "${output}")
endif()
if(regex STREQUAL "")
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "the control does not compile:\n${output}")
    endif()
elseif(result EQUAL 0)
    message(FATAL_ERROR "it compiles, but must not")
elseif(NOT output MATCHES "${regex}")
    message(FATAL_ERROR "it fails, but not with '${regex}':\n${output}")
endif()

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# cmake -DCOMMAND="program;argument;..." -DCODE=n [-DOUT="regex;..."] [-DERR="regex;..."] [-DNOT_OUT=regex] [-DNOT_ERR=regex]
#     [-DTHEN="program;argument;..."] -P expect.cmake
# Runs the command and requires its exit status, and what it must (or must not) have printed. Then runs
# another, which must succeed.
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
set(shown "exit status ${code}\n--- stdout\n${out}--- stderr\n${err}")
if(NOT code STREQUAL CODE)
    message(FATAL_ERROR "expected exit status ${CODE}\n${shown}")
endif()
foreach(pattern IN LISTS OUT)
    if(NOT out MATCHES "${pattern}")
        message(FATAL_ERROR "stdout lacks: ${pattern}\n${shown}")
    endif()
endforeach()
foreach(pattern IN LISTS ERR)
    if(NOT err MATCHES "${pattern}")
        message(FATAL_ERROR "stderr lacks: ${pattern}\n${shown}")
    endif()
endforeach()
if(NOT_OUT AND out MATCHES "${NOT_OUT}")
    message(FATAL_ERROR "stdout has what it must not: ${NOT_OUT}\n${shown}")
endif()
if(NOT_ERR AND err MATCHES "${NOT_ERR}")
    message(FATAL_ERROR "stderr has what it must not: ${NOT_ERR}\n${shown}")
endif()
if(THEN)
    execute_process(COMMAND ${THEN} RESULT_VARIABLE code)
    if(NOT code EQUAL 0)
        message(FATAL_ERROR "exit status ${code}: ${THEN}")
    endif()
endif()

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# cmake -DBEFORE=file -DAFTER=file -DMOST=n -P changed_lines.cmake
# Shows the lines that differ and fails if more than MOST are new in AFTER, or if nothing differs.
execute_process(COMMAND diff ${BEFORE} ${AFTER} RESULT_VARIABLE code OUTPUT_VARIABLE differences ERROR_VARIABLE problem)
if(NOT code EQUAL 1)
    message(FATAL_ERROR "diff: exit status ${code} ${problem}")
endif()
string(REGEX MATCHALL "(^|\n)> *[^\n ]" added "${differences}") # empty lines do not count
string(REGEX MATCHALL "(^|\n)< *[^\n ]" removed "${differences}")
list(LENGTH added added)
list(LENGTH removed removed)
message("${differences}\n${added} lines are new, ${removed} lines are gone")
if(added GREATER MOST OR removed GREATER added)
    message(FATAL_ERROR "more than ${MOST} lines changed")
endif()

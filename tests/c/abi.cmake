# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# cmake -DPROGRAM=abi -DNM=nm -DLIBRARY=libcollprobe.so -DEXPECTED=abi.txt -P abi.cmake
# Compares what programs rely on, sizes, offsets, numbers and symbols, with the list that was promised.
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE found COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[0-9a-f]+ ([A-Za-z]) ([^\n]+)" "\\1 \\2" symbols "${symbols}")
string(APPEND found "${symbols}")
file(READ ${EXPECTED} expected)
if(NOT found STREQUAL expected)
    message(FATAL_ERROR "The interface is another one than ${EXPECTED} says. If members or functions were added, add "
        "their lines there. Found:\n${found}")
endif()

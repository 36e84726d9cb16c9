# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# cmake -DNM=nm -DLIBRARY=libcollprobe.so -DEXPECTED=abi.txt -P abi.cmake
# Compares the symbols of the library with those that were promised.
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[0-9a-f]+ ([A-Za-z]) ([^\n]+)" "\\1 \\2" symbols "${symbols}")
file(READ ${EXPECTED} expected)
if(NOT symbols STREQUAL expected)
    message(FATAL_ERROR "The functions are other ones than ${EXPECTED} says; new ones are added there. Found:\n${symbols}")
endif()

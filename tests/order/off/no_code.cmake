# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# cmake -D COMPILER=g++ -D INCLUDE=<dir> -D UNIT=use_everything.cpp -D WORK=<dir> [-D FLAGS=-DWITH_NCCL;-isystem;...]
#     -P no_code.cmake
#
# Shows that the hooks of the checker of stream order leave no function in optimised code while they are off: the object
# file has no name of theirs. And that the search would tell: with the switch on it finds some.

file(MAKE_DIRECTORY ${WORK})
foreach(on IN ITEMS 0 1)
    set(object ${WORK}/${on}.o)
    execute_process(COMMAND ${COMPILER} -std=c++20 -O2 -I${INCLUDE} ${FLAGS} -DCOLLPROBE_STREAM_ORDER=${on}
            -c ${UNIT} -o ${object}
        RESULT_VARIABLE status ERROR_VARIABLE errors)
    if(NOT status EQUAL 0)
        message(FATAL_ERROR "${errors}")
    endif()
    file(STRINGS ${object} found_${on} REGEX "order_hooks|order_point" LIMIT_COUNT 1)
endforeach()
if(found_0)
    message(FATAL_ERROR "the hooks leave code where they are off: ${found_0}")
endif()
if(NOT found_1)
    message(FATAL_ERROR "the hooks are not in the object where they are on")
endif()
message(STATUS "no code")

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# cmake -D COMPILER=g++ -D INCLUDE=<dir> -D WORK=<dir> -P link.cmake
#
# Two object files that disagree on COLLPROBE_STREAM_ORDER, or on the version, do not link where one calls the other
# with a type of collprobe. Two that agree do.
get_filename_component(here ${CMAKE_CURRENT_LIST_FILE} DIRECTORY)
file(REMOVE_RECURSE ${WORK})

# The headers of the next patch of the version: only their number differs.
set(next ${WORK}/next/collprobe/core)
file(READ ${INCLUDE}/collprobe/core/version.hpp version)
string(REGEX REPLACE "(VERSION_PATCH) [0-9]+" "\\1 12345" changed "${version}")
if(changed STREQUAL version)
    message(FATAL_ERROR "version.hpp has no line of COLLPROBE_VERSION_PATCH")
endif()
file(WRITE ${next}/version.hpp "${changed}")

set(plain "")
set(checked -DCOLLPROBE_STREAM_ORDER=1)
set(next_version -I ${WORK}/next)
foreach(kind IN ITEMS plain checked next_version)
    foreach(unit IN ITEMS caller callee)
        execute_process(COMMAND ${COMPILER} -std=c++20 ${${kind}} -I ${INCLUDE} -c ${here}/${unit}.cpp
            -o ${WORK}/${unit}_${kind}.o COMMAND_ERROR_IS_FATAL ANY)
    endforeach()
endforeach()
foreach(caller IN ITEMS plain checked next_version)
    foreach(callee IN ITEMS plain checked next_version)
        set(program ${WORK}/${caller}_${callee})
        execute_process(COMMAND ${COMPILER} ${WORK}/caller_${caller}.o ${WORK}/callee_${callee}.o -o ${program}
            RESULT_VARIABLE failed ERROR_VARIABLE said)
        if(caller STREQUAL callee)
            if(failed)
                message(FATAL_ERROR "${caller} and ${callee} agree, but do not link:\n${said}")
            endif()
            execute_process(COMMAND ${program} COMMAND_ERROR_IS_FATAL ANY)
        elseif(NOT failed)
            message(FATAL_ERROR "${caller} calls ${callee}, and that links")
        elseif(NOT said MATCHES "undefined.*first_of.collprobe::v")
            message(FATAL_ERROR "${caller} calls ${callee}: does not link, but not for its name:\n${said}")
        endif()
    endforeach()
endforeach()

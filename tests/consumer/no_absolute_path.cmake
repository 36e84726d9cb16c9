# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# Fails if a file under `tree` contains one of the `forbidden` strings.
file(GLOB_RECURSE files ${tree}/*)
if(NOT files)
    message(FATAL_ERROR "${tree} holds no file")
endif()
foreach(file IN LISTS files)
    file(READ ${file} text)
    foreach(path IN LISTS forbidden)
        string(FIND "${text}" "${path}" position)
        if(NOT position EQUAL -1)
            message(SEND_ERROR "${file} contains ${path}")
        endif()
    endforeach()
endforeach()

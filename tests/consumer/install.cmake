# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# Installs the build tree `build` and moves the result to `work`/moved.
file(REMOVE_RECURSE ${work}/installed ${work}/moved)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --prefix ${work}/installed
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${work}/installed ${work}/moved)

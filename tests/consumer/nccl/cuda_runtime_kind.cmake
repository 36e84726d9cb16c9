# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# How `module` gets cudaGetDevice must be what `kind` (of CUDA_RUNTIME_LIBRARY) says.
execute_process(COMMAND ${objdump} -p ${module} OUTPUT_VARIABLE libraries COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${objdump} -T ${module} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
set(found Static)
if(libraries MATCHES "NEEDED +libcudart")
    set(found Shared)
elseif(symbols MATCHES "\\*UND\\*[^\n]* cudaGetDevice")
    set(found None)
endif()
if(NOT found STREQUAL kind)
    message(FATAL_ERROR "the CUDA runtime of ${module} is ${found}, not ${kind}")
endif()

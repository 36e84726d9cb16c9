# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# Programs that know CUDA's runtime and NCCL but not this project. Gives FOREIGN_ENVIRONMENT and FOREIGN_DIR.
include(${CMAKE_CURRENT_LIST_DIR}/stand_in/stand_in.cmake)
set(foreign ${CMAKE_CURRENT_LIST_DIR}/foreign)
set(FOREIGN_DIR ${CMAKE_CURRENT_BINARY_DIR}/foreign)
set(deadline_s 60)
if(COLLPROBE_EMULATED) # ranks that execute kernels let the others wait
    set(deadline_s 240)
endif()
set(FOREIGN_ENVIRONMENT "STAND_IN_NCCL_DEADLINE_S=${deadline_s};${sanitizer_options}")

# In C, with the sanitizers of the C++ that they are linked to.
foreach(name mixed trainer)
    set(target foreign_${name})
    add_executable(${target} ${foreign}/${name}.c)
    set_target_properties(${target} PROPERTIES C_STANDARD 11 LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY ${FOREIGN_DIR})
    target_compile_options(${target} PRIVATE -O2 -Wall -Wextra -Wconversion -Wshadow ${sanitizer_flags})
    target_include_directories(${target} SYSTEM PRIVATE ${COLLPROBE_CUDA_INCLUDE_DIR} ${COLLPROBE_NCCL_INCLUDE_DIR})
    target_link_libraries(${target} PRIVATE $<LINK_ONLY:stand_in_cudart_shared> $<LINK_ONLY:stand_in_nccl_shared>
        Threads::Threads m ${CMAKE_DL_LIBS})
    # DT_RPATH, as PyTorch has it: it is searched before LD_LIBRARY_PATH.
    target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
endforeach()
add_custom_target(foreign_programs DEPENDS foreign_mixed foreign_trainer)

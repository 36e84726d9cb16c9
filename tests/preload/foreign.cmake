# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# Programs that know CUDA's runtime and NCCL but not this project, for each way to reach NCCL. What they do without a
# preload is tested here. Gives FOREIGN_RUN (starts a program's ranks), FOREIGN_ENVIRONMENT and FOREIGN_DIR.
include(${CMAKE_CURRENT_LIST_DIR}/stand_in/stand_in.cmake)
set(foreign ${CMAKE_CURRENT_LIST_DIR}/foreign)
set(FOREIGN_DIR ${CMAKE_CURRENT_BINARY_DIR}/foreign)
find_package(Python3 COMPONENTS Interpreter)
set(FOREIGN_RUN ${Python3_EXECUTABLE} ${foreign}/run_ranks.py)
set(deadline_s 60)
if(COLLPROBE_EMULATED) # ranks that execute kernels let the others wait
    set(deadline_s 240)
endif()
set(FOREIGN_ENVIRONMENT "STAND_IN_NCCL_DEADLINE_S=${deadline_s};${sanitizer_options}")

# In C, with the sanitizers of the C++ that they are linked to.
function(foreign_properties target)
    set_target_properties(${target} PROPERTIES C_STANDARD 11 LINKER_LANGUAGE CXX
        RUNTIME_OUTPUT_DIRECTORY ${FOREIGN_DIR} LIBRARY_OUTPUT_DIRECTORY ${FOREIGN_DIR})
    target_compile_options(${target} PRIVATE -O2 -Wall -Wextra -Wconversion -Wshadow ${sanitizer_flags})
    target_include_directories(${target} SYSTEM PRIVATE ${COLLPROBE_CUDA_INCLUDE_DIR} ${COLLPROBE_NCCL_INCLUDE_DIR})
    target_link_libraries(${target} PRIVATE $<LINK_ONLY:stand_in_cudart_shared> m ${CMAKE_DL_LIBS})
    # DT_RPATH, as PyTorch has it: it is searched before LD_LIBRARY_PATH.
    target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
endfunction()
function(add_foreign_program name)
    add_executable(foreign_${name} ${ARGN})
    foreign_properties(foreign_${name})
endfunction()
# A program that opens a library with the work, and that library with an NCCL.
function(add_foreign_library name library nccl)
    add_library(${library} SHARED ${foreign}/work.c)
    foreign_properties(${library})
    target_link_libraries(${library} PRIVATE $<LINK_ONLY:${nccl}>)
    add_foreign_program(${name} ${foreign}/local.c)
    add_dependencies(foreign_${name} ${library})
    target_compile_definitions(foreign_${name} PRIVATE FOREIGN_LIBRARY="$<TARGET_FILE:${library}>")
endfunction()

add_foreign_program(rpath ${foreign}/main.c ${foreign}/work.c)
target_link_libraries(foreign_rpath PRIVATE $<LINK_ONLY:stand_in_nccl_shared>)

add_foreign_library(local foreign_work stand_in_nccl_shared)

add_foreign_program(by_name ${foreign}/main.c ${foreign}/work.c)
add_dependencies(foreign_by_name stand_in_nccl_shared)
target_compile_definitions(foreign_by_name PRIVATE FOREIGN_BY_NAME)
set_target_properties(foreign_by_name PROPERTIES BUILD_RPATH $<TARGET_FILE_DIR:stand_in_nccl_shared>)

add_foreign_library(static_exported foreign_work_static_exported stand_in_nccl_static)
add_foreign_library(static_hidden foreign_work_static_hidden stand_in_nccl_static)
target_link_options(foreign_work_static_hidden PRIVATE LINKER:--exclude-libs,ALL)

add_foreign_program(mixed ${foreign}/mixed.c)
target_link_libraries(foreign_mixed PRIVATE $<LINK_ONLY:stand_in_nccl_shared> Threads::Threads)

add_foreign_program(trainer ${foreign}/trainer.c)
target_link_libraries(foreign_trainer PRIVATE $<LINK_ONLY:stand_in_nccl_shared>)

add_custom_target(foreign_programs DEPENDS foreign_rpath foreign_local foreign_by_name foreign_static_exported
    foreign_static_hidden foreign_mixed foreign_trainer)

if(NOT Python3_FOUND)
    message(STATUS "Python 3 was not found: the tests of foreign programs are left out")
    return()
endif()

function(add_foreign_test name)
    add_test(NAME preload.foreign_${name} COMMAND ${ARGN})
    set_tests_properties(preload.foreign_${name} PROPERTIES
        LABELS "stand_in;threads" TIMEOUT 120 PROCESSORS 2 ENVIRONMENT "${FOREIGN_ENVIRONMENT}")
endfunction()

foreach(name IN ITEMS rpath local by_name static_exported static_hidden)
    add_foreign_test(${name} ${FOREIGN_RUN} --ranks 4 -- $<TARGET_FILE:foreign_${name}>)
endforeach()
add_foreign_test(in_pieces ${FOREIGN_RUN} --ranks 3 --env STAND_IN_NCCL_PIECE_BYTES=4096
    -- $<TARGET_FILE:foreign_rpath>)
add_foreign_test(mixed ${FOREIGN_RUN} --ranks 2 -- $<TARGET_FILE:foreign_mixed>)
# Python is not linked to the sanitizers' runtimes.
if(NOT COLLPROBE_SANITIZER)
    add_foreign_test(python_by_name ${FOREIGN_RUN} --ranks 3
        --env LD_LIBRARY_PATH=$<TARGET_FILE_DIR:stand_in_nccl_shared>:$<TARGET_FILE_DIR:stand_in_cudart_shared>
        --env CUDART_LIBRARY=$<TARGET_FILE_NAME:stand_in_cudart_shared> -- ${foreign}/by_name.py)
    add_foreign_test(python_extension ${FOREIGN_RUN} --ranks 3
        --env EXTENSION=$<TARGET_FILE:foreign_work> -- ${foreign}/torch_like.py)
endif()

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# NCCL between processes, as the real library is linked: libnccl.so.2.
include_guard(DIRECTORY)
set(here ${CMAKE_CURRENT_LIST_DIR})
set(support ${PROJECT_SOURCE_DIR}/tests/support/stand_in)

add_library(stand_in_nccl_objects OBJECT EXCLUDE_FROM_ALL
    ${support}/nccl.cpp ${here}/nccl_processes.cpp)
target_include_directories(stand_in_nccl_objects SYSTEM PUBLIC ${COLLPROBE_NCCL_INCLUDE_DIR})
target_link_libraries(stand_in_nccl_objects PUBLIC stand_in_cudart_shared)
set_target_properties(stand_in_nccl_objects PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
# The sums of programs that run ten thousand steps.
target_compile_options(stand_in_nccl_objects PRIVATE -O3)
set_source_files_properties(${support}/nccl.cpp PROPERTIES
    COMPILE_OPTIONS "-include;${here}/weak_names.hpp" OBJECT_DEPENDS ${here}/weak_names.hpp)

add_library(stand_in_nccl_shared SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:stand_in_nccl_objects>)
set_target_properties(stand_in_nccl_shared PROPERTIES OUTPUT_NAME nccl SOVERSION 2
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/stand_in LINK_DEPENDS ${here}/nccl.map)
target_link_options(stand_in_nccl_shared PRIVATE LINKER:--version-script=${here}/nccl.map)
target_link_libraries(stand_in_nccl_shared PRIVATE stand_in_cudart_shared)
target_include_directories(stand_in_nccl_shared SYSTEM INTERFACE
    ${COLLPROBE_NCCL_INCLUDE_DIR} ${COLLPROBE_CUDA_INCLUDE_DIR})

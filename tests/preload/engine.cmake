# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# The engine over the stand-ins: its hooks called by tests in their own process, with ranks as threads; and, opened by
# the first stage, under foreign programs, with ranks as processes.
include(${CMAKE_CURRENT_LIST_DIR}/stand_in/stand_in.cmake)
set(engine ${PROJECT_SOURCE_DIR}/examples/preload/engine)
file(GLOB engine_sources CONFIGURE_DEPENDS ${engine}/*.cpp)

# Its kernels are host loops here, and where a GPU is emulated those that nvcc makes.
add_library(preload_engine OBJECT EXCLUDE_FROM_ALL ${engine_sources})
target_include_directories(preload_engine PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(preload_engine SYSTEM PRIVATE ${COLLPROBE_CUDA_INCLUDE_DIR})
target_link_libraries(preload_engine PUBLIC collprobe::collprobe)
set_target_properties(preload_engine PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)

collprobe_add_tests(sampler settings)
if(TARGET preload_tests)
    target_sources(preload_tests PRIVATE ${engine}/settings.cpp)
endif()
collprobe_add_tests(engine_stand_in LABELS threads)
if(TARGET preload_stand_in_tests)
    target_sources(preload_stand_in_tests PRIVATE reads_stand_in.cpp)
    target_link_libraries(preload_stand_in_tests PRIVATE preload_engine)
endif()

# The object that the first stage opens.
if(COLLPROBE_EMULATED)
    set(kernels ${engine}/reads.cu)
else()
    set(kernels ${CMAKE_CURRENT_LIST_DIR}/reads_stand_in.cpp)
endif()
add_library(preload_engine_module MODULE EXCLUDE_FROM_ALL ${kernels})
target_include_directories(preload_engine_module PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(preload_engine_module PRIVATE collprobe::collprobe preload_engine stand_in_cudart_shared)
target_link_options(preload_engine_module PRIVATE LINKER:--version-script=${engine}/engine.map)
set_target_properties(preload_engine_module PROPERTIES OUTPUT_NAME collprobe_engine PREFIX lib
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/engine POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)

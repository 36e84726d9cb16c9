# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# Finds NCCL: a CMake package of it if there is one, else header and library by path.
#
#   NCCL_ROOT or the environment's NCCL_ROOT or NCCL_HOME   where to look first
#   NCCL::nccl           the target, which wants CUDA's headers beside it
#   NCCL_VERSION         read from nccl.h
#   NCCL_INCLUDE_DIR, NCCL_LIBRARY   the cached results

if(NOT TARGET NCCL::nccl)
    find_package(NCCL ${NCCL_FIND_VERSION} CONFIG QUIET)
    if(NCCL_FOUND AND TARGET NCCL::nccl)
        set(NCCL_CONFIG_FOUND TRUE)
    endif()
endif()

if(NOT NCCL_CONFIG_FOUND)
    set(NCCL_places ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_TARGET_DIR}
        ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda)
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_places} PATH_SUFFIXES include)
    find_library(NCCL_LIBRARY NAMES nccl HINTS ${NCCL_places} PATH_SUFFIXES lib lib64)
    unset(NCCL_places)
    mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

    unset(NCCL_VERSION)
    if(NCCL_INCLUDE_DIR)
        foreach(NCCL_part IN ITEMS MAJOR MINOR PATCH)
            file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" NCCL_line REGEX "^#define NCCL_${NCCL_part} +[0-9]+" LIMIT_COUNT 1)
            string(REGEX MATCH "[0-9]+" NCCL_number "${NCCL_line}")
            list(APPEND NCCL_VERSION ${NCCL_number})
        endforeach()
        string(REPLACE ";" "." NCCL_VERSION "${NCCL_VERSION}")
        unset(NCCL_part)
        unset(NCCL_line)
        unset(NCCL_number)
    endif()
endif()

include(FindPackageHandleStandardArgs)
if(NCCL_CONFIG_FOUND)
    find_package_handle_standard_args(NCCL CONFIG_MODE)
else()
    find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
    if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
        add_library(NCCL::nccl UNKNOWN IMPORTED)
        set_target_properties(NCCL::nccl PROPERTIES
            IMPORTED_LOCATION "${NCCL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
    endif()
endif()

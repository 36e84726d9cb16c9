# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# Finds NCCL: the target NCCL::nccl that a project has already, else a CMake package of it, else header and
# library by path, both of the same prefix.
#
#   NCCL_ROOT or the environment's NCCL_ROOT or NCCL_HOME   where to look first
#   NCCL::nccl           the target, which wants CUDA's headers beside it
#   NCCL_VERSION         read from nccl.h, or the package's
#   NCCL_NOT_FOUND_MESSAGE   what is missing where the header was found alone
#   NCCL_INCLUDE_DIR, NCCL_LIBRARY   the cached results; who sets them answers for their fit

include(FindPackageHandleStandardArgs)
unset(NCCL_NOT_FOUND_MESSAGE)

# Sets NCCL_VERSION from the header in the directory `include`, if there is one.
function(NCCL_read_version include)
    if(EXISTS "${include}/nccl.h")
        set(version "")
        foreach(part IN ITEMS MAJOR MINOR PATCH)
            file(STRINGS "${include}/nccl.h" line REGEX "^#define NCCL_${part} +[0-9]+" LIMIT_COUNT 1)
            string(REGEX MATCH "[0-9]+" number "${line}")
            list(APPEND version ${number})
        endforeach()
        string(REPLACE ";" "." version "${version}")
        set(NCCL_VERSION "${version}" PARENT_SCOPE)
    endif()
endfunction()

if(TARGET NCCL::nccl)
    get_target_property(NCCL_includes NCCL::nccl INTERFACE_INCLUDE_DIRECTORIES)
    foreach(NCCL_include IN LISTS NCCL_includes)
        string(REGEX REPLACE "^\\$<(BUILD_INTERFACE|INSTALL_INTERFACE):(.*)>$" "\\2" NCCL_include "${NCCL_include}")
        NCCL_read_version("${NCCL_include}")
    endforeach()
    # Where its header cannot be seen from here, who made it may have set NCCL_VERSION; else the compiler
    # will see.
    set(NCCL_target NCCL::nccl)
    if(NCCL_VERSION)
        find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_target VERSION_VAR NCCL_VERSION)
    else()
        find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_target)
    endif()
    unset(NCCL_includes)
    unset(NCCL_include)
    unset(NCCL_target)
    return()
endif()

find_package(NCCL ${NCCL_FIND_VERSION} CONFIG QUIET)
if(NCCL_FOUND AND TARGET NCCL::nccl)
    find_package_handle_standard_args(NCCL CONFIG_MODE)
    return()
endif()

find_path(NCCL_INCLUDE_DIR nccl.h
    HINTS ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_TARGET_DIR} ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
    PATH_SUFFIXES include)
if(NCCL_INCLUDE_DIR)
    # The library of another NCCL would do silently what this header does not say. Wheels and run-time
    # packages of distributions have no libnccl.so, which is only there to link with.
    get_filename_component(NCCL_prefix "${NCCL_INCLUDE_DIR}" DIRECTORY)
    find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 PATHS "${NCCL_prefix}"
        PATH_SUFFIXES lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE} NO_DEFAULT_PATH)
    if(NOT NCCL_LIBRARY)
        set(NCCL_NOT_FOUND_MESSAGE "nccl.h is in ${NCCL_INCLUDE_DIR}, but no libnccl.so or libnccl.so.2 is in ${NCCL_prefix}")
    endif()
    unset(NCCL_prefix)
endif()
unset(NCCL_VERSION)
NCCL_read_version("${NCCL_INCLUDE_DIR}")
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION
    REASON_FAILURE_MESSAGE "${NCCL_NOT_FOUND_MESSAGE}")
if(NCCL_FOUND)
    add_library(NCCL::nccl UNKNOWN IMPORTED)
    set_target_properties(NCCL::nccl PROPERTIES
        IMPORTED_LOCATION "${NCCL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# CLI11::CLI11, by CLI11's own configuration or by its header. Only this project's studies and benchmarks use it.
find_package(CLI11 CONFIG QUIET)
if(CLI11_FOUND)
    set(CLI11_INCLUDE_DIR ${CLI11_CONFIG})
else()
    find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp)
    mark_as_advanced(CLI11_INCLUDE_DIR)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CLI11 REQUIRED_VARS CLI11_INCLUDE_DIR
    REASON_FAILURE_MESSAGE "CLI/CLI.hpp is missing (Debian: libcli11-dev)")
if(CLI11_FOUND AND NOT TARGET CLI11::CLI11)
    add_library(CLI11::CLI11 INTERFACE IMPORTED)
    target_include_directories(CLI11::CLI11 INTERFACE ${CLI11_INCLUDE_DIR})
endif()

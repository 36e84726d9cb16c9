# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# The target docs: the reference of all that is documented, by Doxygen, in reference/html of the build tree.
find_package(Doxygen 1.9.4 QUIET)
if(NOT DOXYGEN_FOUND)
    message(STATUS "No target docs: Doxygen 1.9.4 or newer was not found (Debian: doxygen)")
    return()
endif()
set(DOXYGEN_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/reference)
set(DOXYGEN_QUIET YES)
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
set(DOXYGEN_WARN_IF_UNDOCUMENTED NO)
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_FILE_PATTERNS *.hpp *.cuh)
set(DOXYGEN_EXTENSION_MAPPING cuh=C++)
set(DOXYGEN_EXCLUDE_PATTERNS */detail/*)
set(DOXYGEN_EXCLUDE_SYMBOLS *::detail)
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_EXPAND_ONLY_PREDEF YES)
set(DOXYGEN_PREDEFINED COLLPROBE_HD= COLLPROBE_STREAM_ORDER=1)
# Doxygen does not know `namespace a::inline b`, and readers need not know the namespace of the ABI.
set(DOXYGEN_INPUT_FILTER "sed -e s/::inline[[:space:]]COLLPROBE_ABI//")
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_SORT_MEMBER_DOCS NO)
set(DOXYGEN_STRIP_FROM_PATH ${PROJECT_SOURCE_DIR}/include)
set(DOXYGEN_STRIP_FROM_INC_PATH ${PROJECT_SOURCE_DIR}/include)
doxygen_add_docs(docs ${PROJECT_SOURCE_DIR}/include/collprobe)

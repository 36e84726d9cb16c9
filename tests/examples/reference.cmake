# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# The reference is made without a warning.
if(NOT TARGET docs)
    return()
endif()
add_test(NAME lint.reference WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMAND sh -c "(cat \"$1\" && printf '%s\\n' 'GENERATE_HTML = NO' 'GENERATE_XML = YES' \"OUTPUT_DIRECTORY = $2\") | \"$3\" -" sh
        ${PROJECT_BINARY_DIR}/Doxyfile.docs ${CMAKE_CURRENT_BINARY_DIR}/reference ${DOXYGEN_EXECUTABLE})
set_tests_properties(lint.reference PROPERTIES LABELS lint TIMEOUT 300)

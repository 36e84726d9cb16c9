# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# The reference is made without a warning; and a comment that is wrong is noticed.
if(NOT TARGET docs)
    return()
endif()
function(collprobe_add_reference_test name change)
    add_test(NAME lint.${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
        COMMAND sh -c "(cat \"$1\" && printf '%s\\n' 'GENERATE_HTML = NO' 'GENERATE_XML = YES' \"$2\") | \"$3\" -" sh
            ${PROJECT_BINARY_DIR}/Doxyfile.docs "${change}" ${DOXYGEN_EXECUTABLE})
    set_tests_properties(lint.${name} PROPERTIES LABELS lint TIMEOUT 300)
endfunction()
collprobe_add_reference_test(reference "OUTPUT_DIRECTORY = ${CMAKE_CURRENT_BINARY_DIR}/reference")
collprobe_add_reference_test(reference_notices_a_wrong_comment "INPUT = ${CMAKE_CURRENT_SOURCE_DIR}/reference/bad.hpp\nOUTPUT_DIRECTORY = ${CMAKE_CURRENT_BINARY_DIR}/bad_reference")
set_tests_properties(lint.reference_notices_a_wrong_comment PROPERTIES
    PASS_REGULAR_EXPRESSION "argument 'missing' of command @param is not found")

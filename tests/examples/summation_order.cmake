# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# examples/studies/summation_order as a user runs it.
set(summation_order $<TARGET_FILE:summation_order>)
find_package(Python3 COMPONENTS Interpreter)
find_package(nlohmann_json QUIET)

function(collprobe_add_summation_order_test name)
    collprobe_add_run_test(summation_order.${name} PROGRAM ${summation_order} ${ARGN})
endfunction()

collprobe_add_summation_order_test(no_input CODE 2 ERR "a path or --random KIND was expected")

# What the number of ranks does: halves are exact in float; recursive doubling is the same for 4 and 8 ranks of 8 rows.
collprobe_add_summation_order_test(ranks ARGS --random heavy --ranks 8 --elements 20000 --as half --permutations 4 CODE 0
    OUT "# summation_order: 8 ranks, 20000 elements of half" "native ring +[0-9.]+ %" "\nnative recursive_doubling +[0-9.]+ % [^\n]* 0\n"
        "\nexact +0 +0 +0 +0 +- +0 " "Of the accumulations, [a-z0-9, ]+ and [a-z0-9]+ have the same bits in every order tried and for 2, 4 and 8 ranks on\nthese data .exact has them for any.. the cheapest, "
    NOT_OUT "\nexact [^\n]*%")
# A running sum of one sign stagnates: its errors have a sign, too.
collprobe_add_summation_order_test(stagnation ARGS --random same_sign --ranks 300 --elements 2000 --as bfloat16
    --accumulations native --orders linear,recursive_doubling --ranks 300 CODE 0
    OUT "native linear +[0-9.]+ % [^\n]* -[0-9][0-9][0-9]*\\.[0-9] " "No accumulation that was compared has the same bits")
collprobe_add_summation_order_test(csv ARGS --random wide --ranks 4 --elements 1000 --csv CODE 0
    OUT "^type,order,accumulation,ranks,elements,differ,[^\n]*\nfloat,linear,native,2,1000,")
if(Python3_FOUND)
    set(with "")
    if(nlohmann_json_FOUND)
        set(with safetensors)
    endif()
    add_test(NAME summation_order.oracle COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/check_summation_order.py
        ${summation_order} ${scratch}/summation_order ${with})
    set_tests_properties(summation_order.oracle PROPERTIES TIMEOUT 300 LABELS trainer ENVIRONMENT "${sanitizer_options}")
    # The picture is well-formed XML.
    collprobe_add_summation_order_test(svg ARGS --random normal --ranks 8 --elements 5000 --svg ${scratch}/sums.svg CODE 0
        THEN ${Python3_EXECUTABLE} -c "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])" ${scratch}/sums.svg)
endif()

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# examples/studies/world_size as a user runs it.
set(world_size $<TARGET_FILE:world_size>)
set(steps 20)
find_package(Python3 COMPONENTS Interpreter)

function(collprobe_add_world_size_test name)
    collprobe_add_run_test(world_size.${name} ${ARGN})
endfunction()

collprobe_add_world_size_test(uneven_ranks RUN ${world_size} --ranks 2,3 CODE 2
    ERR "--ranks: 16 micro-batches cannot be dealt out evenly to 3 ranks" "--help")
collprobe_add_world_size_test(one_run RUN ${world_size} --ranks 4 --steps 3 --reductions native CODE 0
    OUT "native: one run, nothing to compare it with")

# The contracts leave no trace of the number of ranks, whatever the order; the native sum does.
foreach(element IN ITEMS float bfloat16 half)
    foreach(order IN ITEMS ring tree linear)
        if(NOT element STREQUAL "float" AND NOT order STREQUAL "ring")
            continue()
        endif()
        set(file ${scratch}/world_size_${element}_${order}.jsonl)
        set(check "")
        if(Python3_FOUND)
            set(all_runs native order_invariant correctly_rounded)
            list(TRANSFORM all_runs REPLACE "(.+)" "\\1:2x8,\\1:4x4,\\1:8x2,\\1:16x1")
            list(JOIN all_runs "," all_runs)
            set(check THEN ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/check_world_size.py ${element} ${all_runs} ${file})
        endif()
        collprobe_add_world_size_test(${element}_${order}
            RUN ${world_size} --element ${element} --order ${order} --steps ${steps} --jsonl ${file} CODE 0
            OUT "order of the native all-reduce: ${order}" "native: the same gradients, added in another order"
                "order_invariant: the number of ranks leaves no trace: 4 runs, one digest"
                "correctly_rounded: the number of ranks leaves no trace: 4 runs, one digest"
            NOT_OUT "native: the number of ranks leaves no trace" ${check})
        set_tests_properties(world_size.${element}_${order} PROPERTIES FIXTURES_SETUP world_size_files)
    endforeach()
endforeach()
function(collprobe_add_digest_test name)
    add_test(NAME world_size.${name}
        COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/check_world_size.py float any ${ARGN})
    set_tests_properties(world_size.${name} PROPERTIES TIMEOUT 60 LABELS trainer FIXTURES_REQUIRED world_size_files)
endfunction()
set(of_local ${scratch}/world_size_float_ring.jsonl ${scratch}/world_size_float_tree.jsonl
    ${scratch}/world_size_float_linear.jsonl)
if(Python3_FOUND)
    collprobe_add_digest_test(one_digest_over_all_orders ${of_local})
endif()

if(Python3_FOUND)
    set(compare ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/examples/programs/launcher.py compare)
    # Where 8 and 16 ranks part, and that they do not part if sums are rounded once.
    function(collprobe_add_ranks_test name reduction)
        collprobe_add_run_test(tools.compare_${name} RUN ${compare} ${scratch}/world_size_float_ring.jsonl
            ${scratch}/world_size_float_ring.jsonl --run-a "${reduction} 8x2" --run-b "${reduction} 16x1" ${ARGN})
        set_tests_properties(tools.compare_${name} PROPERTIES FIXTURES_REQUIRED world_size_files)
    endfunction()
    collprobe_add_ranks_test(native_ranks native CODE 1 NOT_OUT identical
        OUT "first in step 0, bucket 0 'gradient', call 0, all_reduce of 8970 float. other results in [0-9]+ of [0-9]+ calls"
            "  max ulp" "\nstep 0 +1 of 1 ")
    collprobe_add_ranks_test(rounded_ranks correctly_rounded CODE 0
        OUT "\nidentical: [0-9]+ steps, [0-9]+ calls with equal digests, 8 and 16 ranks")
endif()

if(NOT TARGET collprobe::mpi)
    collprobe_add_world_size_test(mpi_not_built RUN ${world_size} --communicator mpi CODE 1 ERR "built without MPI")
    return()
endif()
foreach(n IN ITEMS 2 4)
    set(file ${scratch}/world_size_mpi_${n}.jsonl)
    collprobe_add_world_size_test(mpi_${n}_ranks CODE 0 OUT "order of the native all-reduce: MPI's own"
        RUN ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${n} ${MPIEXEC_PREFLAGS} ${world_size} ${MPIEXEC_POSTFLAGS}
            --communicator mpi --steps ${steps} --jsonl ${file})
    # Open MPI refuses to run as root, and more ranks than cores, unless told so.
    set_tests_properties(world_size.mpi_${n}_ranks PROPERTIES LABELS "trainer;mpi" PROCESSORS ${n}
        FIXTURES_SETUP world_size_files
        ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1")
    list(APPEND of_mpi ${file})
endforeach()
if(Python3_FOUND)
    collprobe_add_digest_test(one_digest_over_local_and_mpi ${scratch}/world_size_float_ring.jsonl ${of_mpi})
endif()

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

# examples/studies/inspect_all_reduce as a user runs it.
set(inspect $<TARGET_FILE:inspect_all_reduce>)
find_package(Python3 COMPONENTS Interpreter)

function(collprobe_add_inspect_test name)
    collprobe_add_run_test(inspect_all_reduce.${name} LABEL inspector ${ARGN})
endfunction()

collprobe_add_inspect_test(bad_size RUN ${inspect} -b 4KB CODE 2 ERR "--min-bytes: '4KB' is not a number from 1 to")
collprobe_add_inspect_test(sizes_swapped RUN ${inspect} -b 2M -e 1M CODE 2
    ERR "--min-bytes: 2097152 are more than --max-bytes, 1048576")
collprobe_add_inspect_test(order_of_mpi RUN ${inspect} --communicator mpi --order ring CODE 2
    ERR "--order: belongs to --communicator local")
collprobe_add_inspect_test(contract_of_nccl RUN ${inspect} --communicator nccl --contract size_invariant CODE 2
    ERR "--contract: not with --communicator nccl")

# Each order of local has its name, and the JSON lines say what the table says.
foreach(order IN ITEMS ring tree linear)
    set(file ${scratch}/inspection_${order}.jsonl)
    set(check "")
    if(Python3_FOUND)
        set(check THEN ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/check_inspection.py ${file} 4 ${order})
    endif()
    collprobe_add_inspect_test(${order} RUN ${inspect} --order ${order} -b 1K -e 16K --jsonl ${file} CODE 0
        OUT "communicator local.${order}: ranks as threads, order ${order}, 4 ranks"
            "16384 +8192 +bfloat16 +4 +${order} +8 .bfloat16. +3 +r"
            "16384 +4096 +float +4 +${order} +24 .float. +3 +r"
        NOT_OUT "differs" ${check})
endforeach()
collprobe_add_inspect_test(contract CODE 0
    RUN ${inspect} --ranks 5 --contract size_invariant --types bfloat16 -b 8K -e 8K
    OUT "local.ring with size_invariant" "8192 +4096 +bfloat16 +5 +linear +53 .double. +1 +rs. +0.5 .*100 %")
collprobe_add_inspect_test(verbose RUN ${inspect} --types float -b 256 -e 256 --verbose CODE 0
    OUT "float, 256 bytes: ring" "from element 0, 16 of them: ..1.2..3..0")

if(NOT TARGET collprobe::nccl OR NOT COLLPROBE_CUDA)
    collprobe_add_inspect_test(nccl_not_built RUN ${inspect} --communicator nccl CODE 1
        ERR "built without NCCL.*cmake --preset cuda")
else()
    add_dependencies(cuda_tests inspect_all_reduce)
    collprobe_add_inspect_test(nccl_no_gpu RUN ${inspect} --communicator nccl CODE 1 ERR "no GPU here: ")
    set_tests_properties(inspect_all_reduce.nccl_no_gpu PROPERTIES LABELS "inspector;cuda"
        ENVIRONMENT CUDA_VISIBLE_DEVICES=)
    # One rank, which is all that one GPU can have.
    collprobe_add_inspect_test(nccl_one_rank RUN ${inspect} --communicator nccl CODE 0
        OUT "communicator nccl: NCCL [0-9.]+, 1 rank" NOT_OUT "differs")
    set_tests_properties(inspect_all_reduce.nccl_one_rank PROPERTIES LABELS "inspector;cuda;gpu"
        SKIP_REGULAR_EXPRESSION "no GPU here")
endif()

if(NOT TARGET collprobe::mpi)
    collprobe_add_inspect_test(mpi_not_built RUN ${inspect} --communicator mpi CODE 1 ERR "built without MPI")
    return()
endif()
foreach(n IN ITEMS 2 3)
    set(file ${scratch}/inspection_mpi_${n}.jsonl)
    set(check "")
    if(Python3_FOUND)
        set(check THEN ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/check_inspection.py ${file} ${n} any)
    endif()
    collprobe_add_inspect_test(mpi_${n}_ranks CODE 0 OUT "communicator mpi: [^:]+, ${n} ranks"
        RUN ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${n} ${MPIEXEC_PREFLAGS} ${inspect} ${MPIEXEC_POSTFLAGS}
            --communicator mpi -b 256 -e 4K --jsonl ${file} ${check})
    # Open MPI refuses to run as root, and more ranks than cores, unless told so.
    set_tests_properties(inspect_all_reduce.mpi_${n}_ranks PROPERTIES LABELS "inspector;mpi" PROCESSORS ${n}
        ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1")
endforeach()

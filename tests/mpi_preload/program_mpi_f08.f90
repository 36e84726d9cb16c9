! SPDX-FileCopyrightText: The collprobe authors
! SPDX-License-Identifier: Apache-2.0
!
! The same by the module mpi_f08, whose calls have other symbols.
program reduces
    use mpi_f08
    implicit none
    integer, parameter :: n = 4096, fault_step = 7
    real, asynchronous :: a(n), b(n), sums(n), first(n), second(n)
    double precision, asynchronous :: d(n)
    double precision :: total = 0
    integer :: rank, step, steps, numbers(2)
    type(MPI_Request) :: requests(2)
    logical :: is_done
    character(32) :: argument, fault
    integer, allocatable :: seed(:)
    integer :: seeds

    call mpi_init()
    call mpi_comm_rank(MPI_COMM_WORLD, rank)
    call get_command_argument(1, argument)
    read (argument, *) steps
    call get_command_argument(2, fault)
    call random_seed(size=seeds)
    allocate (seed(seeds))
    seed = 17 + 1009 * rank
    call random_seed(put=seed)
    do step = 0, steps - 1
        call random_number(a)
        call random_number(b)
        call random_number(d)
        a = a - 0.5
        b = b - 0.5
        d = d - 0.5
        if (step == fault_step .and. rank == 1) then
            if (fault == "nan") a(778) = 0 / (a(1) - a(1)) ! element 777, counted from 0
            if (fault == "in_place") d(43) = 1 / (d(1) - d(1))
        end if
        call mpi_allreduce(a, sums, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD)
        call mpi_allreduce(MPI_IN_PLACE, d, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
        total = total + sum(sums) + sum(d)
        call mpi_iallreduce(a, first, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, requests(1))
        call mpi_iallreduce(b, second, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, requests(2))
        call mpi_wait(requests(2), MPI_STATUS_IGNORE)
        is_done = .false.
        do while (.not. is_done)
            call mpi_testall(2, requests, is_done, MPI_STATUSES_IGNORE)
        end do
        total = total + sum(first) - sum(second)
        numbers = step
        call mpi_allreduce(MPI_IN_PLACE, numbers, 2, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD)
    end do
    if (rank == 0) print "(a, z16.16)", "total ", total
    call mpi_finalize()
end program

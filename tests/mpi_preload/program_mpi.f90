! SPDX-FileCopyrightText: The collprobe authors
! SPDX-License-Identifier: Apache-2.0
!
! A Fortran program by the module mpi: program STEPS FAULT. It prints a sum of all results.
program reduces
    use mpi
    implicit none
    integer, parameter :: n = 4096, fault_step = 7
    real :: a(n), b(n), sums(n), first(n), second(n)
    double precision :: d(n)
    double precision :: total = 0
    integer :: rank, ranks, step, steps, error, requests(2), statuses(MPI_STATUS_SIZE, 2), numbers(2), place
    character(32) :: argument, fault
    integer, allocatable :: seed(:)
    integer :: seeds

    call mpi_init(error)
    call mpi_comm_rank(MPI_COMM_WORLD, rank, error)
    call mpi_comm_size(MPI_COMM_WORLD, ranks, error)
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
        call mpi_allreduce(a, sums, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, error)
        call mpi_allreduce(MPI_IN_PLACE, d, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
        total = total + sum(sums) + sum(d)
        call mpi_iallreduce(a, first, n, MPI_REAL4, MPI_SUM, MPI_COMM_WORLD, requests(1), error)
        call mpi_iallreduce(b, second, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, requests(2), error)
        if (mod(step, 2) == 0) then
            call mpi_waitany(2, requests, place, statuses(:, 1), error)
            call mpi_waitall(2, requests, statuses, error)
        else
            call mpi_wait(requests(2), statuses(:, 1), error)
            call mpi_wait(requests(1), MPI_STATUS_IGNORE, error)
        end if
        total = total + sum(first) - sum(second)
        numbers = step
        call mpi_allreduce(MPI_IN_PLACE, numbers, 2, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, error)
    end do
    if (rank == 0) print "(a, z16.16)", "total ", total
    call mpi_finalize(error)
end program

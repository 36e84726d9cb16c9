! SPDX-FileCopyrightText: The collprobe authors
! SPDX-License-Identifier: Apache-2.0
!
! A Fortran program by the module mpi, or with F08 by the module mpi_f08, whose calls have other symbols: program STEPS
! FAULT. It prints a sum of all results.
program reduces
#ifdef F08
    use mpi_f08
    implicit none
    type(MPI_Request) :: requests(2)
    type(MPI_Status) :: status
#else
    use mpi
    implicit none
    integer :: requests(2), status(MPI_STATUS_SIZE)
#endif
    integer, parameter :: n = 4096, fault_step = 7
    real, asynchronous :: a(n), b(n), sums(n), first(n), second(n)
    double precision, asynchronous :: d(n)
    double precision :: total = 0
    integer :: rank, step, steps, error, numbers(2), place, seeds
    logical :: is_done
    character(32) :: argument, fault
    integer, allocatable :: seed(:)

    call mpi_init(error)
    call mpi_comm_rank(MPI_COMM_WORLD, rank, error)
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
            call mpi_waitany(2, requests, place, status, error)
            call mpi_waitall(2, requests, MPI_STATUSES_IGNORE, error)
        else
            call mpi_wait(requests(2), MPI_STATUS_IGNORE, error)
            is_done = .false.
            do while (.not. is_done)
                call mpi_testall(2, requests, is_done, MPI_STATUSES_IGNORE, error)
            end do
        end if
        total = total + sum(first) - sum(second)
        numbers = step
        call mpi_allreduce(MPI_IN_PLACE, numbers, 2, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, error)
    end do
    if (rank == 0) print "(a, z16.16)", "total ", total
    call mpi_finalize(error)
end program

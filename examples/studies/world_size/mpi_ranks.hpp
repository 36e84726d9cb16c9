// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/mpi/communicator.hpp>

#include "../../support/mpi_session.hpp"

namespace world_size {

/// The ranks that mpirun has started, of which this process is one.
class mpi_ranks {
public:
    int most() const { return world_.size(); }
    /// Whether it is this process that reports.
    bool speaks() const { return world_.rank() == 0; }
    /// Calls `fn` with a communicator of the first `ranks`. The others do not wait for its end.
    template <class Fn>
    void run(int ranks, Fn fn)
    {
        MPI_Comm part = MPI_COMM_NULL;
        MPI_Comm_split(world_.native_handle(), world_.rank() < ranks ? 0 : MPI_UNDEFINED, world_.rank(), &part);
        if (part == MPI_COMM_NULL) return;
        collprobe::mpi::communicator_ref rank(part);
        fn(rank);
        MPI_Comm_free(&part);
    }

private:
    collprobe::mpi::communicator_ref world_{mpi_session::duplicate()};
};

} // namespace world_size

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/mpi/communicator.hpp>

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
        auto part = world_.split(world_.rank() < ranks ? 0 : collprobe::no_color, world_.rank());
        if (!part) return;
        collprobe::mpi::communicator_ref rank(*part);
        fn(rank);
    }

private:
    collprobe::mpi::communicator world_ = collprobe::mpi::communicator::duplicate(MPI_COMM_WORLD);
};

} // namespace world_size

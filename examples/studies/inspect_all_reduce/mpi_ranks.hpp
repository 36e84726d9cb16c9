// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/comm/mpi/communicator.hpp>

#include "../../support/mpi_session.hpp"

namespace inspect_all_reduce {

/// The ranks that mpirun has started, of which this process is one.
class mpi_ranks {
public:
    int size() const { return world_.size(); }
    bool speaks() const { return world_.rank() == 0; }
    /// Name and version of the MPI library.
    std::string library() const
    {
        char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
        int length = 0;
        MPI_Get_library_version(text, &length);
        std::string name(text);
        for (char& each : name) {
            if (each == '\t') each = ' ';
        }
        return name.substr(0, name.find_first_of(",\n"));
    }
    template <class Fn>
    void run(Fn fn)
    {
        fn(world_);
    }

private:
    collprobe::mpi::communicator_ref world_{mpi_session::duplicate()};
};

} // namespace inspect_all_reduce

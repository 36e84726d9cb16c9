// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "layer.hpp"
#include "mpi_library.hpp"

#define COLLPROBE_EXPORT extern "C" __attribute__((visibility("default")))

namespace collprobe_mpi {

/// A call that may complete some of these requests, which MPI then sets to MPI_REQUEST_NULL. `has_results`: what is
/// completed has its result.
template <class Call>
int completing(std::size_t count, MPI_Request* requests, const Call& call, bool has_results = true)
{
    if (!mpi().is_known || requests == nullptr) return call();
    layer& own = layer::get();
    if (!own.has_kept()) {
        const int status = call();
        own.progress();
        return status;
    }
    const std::vector<std::size_t> places = own.find_kept(count, requests);
    std::vector<MPI_Request> before;
    for (const std::size_t at : places) before.push_back(requests[at]);
    const int status = call();
    for (std::size_t each = 0; each < places.size(); ++each) {
        if (requests[places[each]] != mpi().no_request) continue;
        own.end_kept(before[each], has_results && status == MPI_SUCCESS);
    }
    own.progress();
    return status;
}

} // namespace collprobe_mpi

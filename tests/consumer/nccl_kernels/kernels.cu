// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/collprobe.cuh>

using namespace collprobe;

template class collprobe::probed<nccl::communicator_ref>;
template void probed<nccl::communicator_ref>::all_reduce(
    view<const float>, view<float>, reduction, collprobe::cuda::stream_ref, call_site);

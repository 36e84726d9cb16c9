// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/collprobe.cuh>

using namespace collprobe;

template class collprobe::probed<nccl::communicator_ref>;
template void probed<nccl::communicator_ref>::make<float>(const collective_call&, collprobe::cuda::stream_ref);

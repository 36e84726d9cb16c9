// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/device/cuda/detail/kernel_loading.hpp>

namespace {

template <class>
void kernel()
{
}

} // namespace

/// A library with one kernel, that a test opens and closes.
extern "C" const void* plugin_kernel()
{
    return collprobe::cuda::detail::entry_of<&kernel<int>>.kernel();
}

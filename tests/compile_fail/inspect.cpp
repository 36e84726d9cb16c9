// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/inspect/inspect.hpp>

// compile_fail range_too_small: inspectable

using namespace collprobe;

int main()
{
    local::communicator comm = local::group(1).communicator(0);
    const host::stream stream;
    static_cast<void>(inspect<float16>(comm, stream, 8));
#if defined(SECTION_range_too_small)
    static_cast<void>(inspect<float8_e5m2>(comm, stream, 8));
#endif
}

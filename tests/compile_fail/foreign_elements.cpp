// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <collprobe/comm/local/communicator.hpp>

// compile_fail type_in_brackets: write view.pointer, count. without the type in <>
// compile_fail other_layout: no matching|conversion

using namespace collprobe;

struct trainer_bfloat16 {
    std::uint16_t bits;
};
template <>
struct collprobe::foreign_element<trainer_bfloat16> {
    using type = bfloat16;
};

int main()
{
    trainer_bfloat16 values[4] = {};
    local::communicator comm = local::group(1).communicator(0);
    const host::stream stream;
    comm.all_reduce({values, 4}, view(values, 4), reduction::sum, stream);
#if defined(SECTION_type_in_brackets)
    comm.all_reduce({values, 4}, view<trainer_bfloat16>(values, 4), reduction::sum, stream);
#endif
#if defined(SECTION_other_layout)
    comm.all_reduce({values, 4}, view<float16>(values, 4), reduction::sum, stream);
#endif
}

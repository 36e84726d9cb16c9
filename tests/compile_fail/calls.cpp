// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/probed.hpp>

// A wrong call is told in words, before anything else: what the collective takes.

// compile_fail pointer_without_count: first error: all_reduce takes .send, receive, operation, stream.
// compile_fail const_result: first error: all_reduce takes .* and receive not to const
// compile_fail const_result_of_views: first error: all_reduce takes .* and receive not to const
// compile_fail two_element_types: first error: all_reduce takes .* all to one type of element
// compile_fail two_element_types_of_views: first error: all_reduce takes .* all to one type of element
// compile_fail no_elements: first error: all_reduce takes .* pointers
// compile_fail missing_stream: first error: all_reduce takes .*, stream.
// compile_fail missing_operation: first error: reduce_scatter takes .*, operation, stream.
// compile_fail container_as_result: first error: all_gather takes .* of views
// compile_fail operation_of_a_gather: first error: all_gather takes .*, stream. of views
// compile_fail in_place_all_to_all: first error: all_to_all takes .send, receive, stream. of views
// compile_fail missing_root: first error: broadcast takes .*, root, stream.
// compile_fail operation_as_number: first error: all_reduce takes .*, operation, stream.

using namespace collprobe;

int main()
{
    probed comm{local::group(1).communicator(0)};
    const host::stream stream;
    std::vector<float> a(4), b(4);
    float* const send = a.data();
    float* const receive = b.data();
    comm.all_reduce(send, receive, 4, reduction::sum, stream);
    comm.all_reduce(std::as_const(a), view(b), reduction::sum, stream);
    comm.broadcast(nullptr, receive, 4, 0, stream);
#if defined(SECTION_pointer_without_count)
    comm.all_reduce(send, receive, reduction::sum, stream);
#endif
#if defined(SECTION_const_result)
    comm.all_reduce(send, static_cast<const float*>(receive), 4, reduction::sum, stream);
#endif
#if defined(SECTION_const_result_of_views)
    comm.all_reduce(a, view<const float>(b), reduction::sum, stream);
#endif
#if defined(SECTION_two_element_types)
    comm.all_reduce(send, reinterpret_cast<double*>(receive), 2, reduction::sum, stream);
#endif
#if defined(SECTION_two_element_types_of_views)
    comm.all_reduce(a, view<double>(reinterpret_cast<double*>(receive), 2), reduction::sum, stream);
#endif
#if defined(SECTION_no_elements)
    comm.all_reduce(send, static_cast<void*>(receive), 4, reduction::sum, stream);
#endif
#if defined(SECTION_missing_stream)
    comm.all_reduce(send, receive, 4, reduction::sum);
#endif
#if defined(SECTION_missing_operation)
    comm.reduce_scatter(send, receive, 4, stream);
#endif
#if defined(SECTION_container_as_result)
    comm.all_gather(a, b, stream);
#endif
#if defined(SECTION_operation_of_a_gather)
    comm.all_gather(send, receive, 4, reduction::sum, stream);
#endif
#if defined(SECTION_in_place_all_to_all)
    comm.all_to_all(view(a), stream);
#endif
#if defined(SECTION_missing_root)
    comm.broadcast(send, receive, 4, stream);
#endif
#if defined(SECTION_operation_as_number)
    comm.all_reduce(send, receive, 4, 0, stream);
#endif
}

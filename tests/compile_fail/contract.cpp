// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/step/probed.hpp>

// compile_fail rounds_but_shall_not_depend_on_order: first error: of a reproducible one, the contract does not hold
// compile_fail narrower_than_the_terms: first error: of a reproducible one, the contract does not hold
// compile_fail wrapped_without_a_move: (deleted function|deleted copy constructor).*probed
// compile_fail two_accumulators: a contract names at most one accumulator

using namespace collprobe;

template <class Contract, class T>
void sum(Contract asked)
{
    std::vector<T> values(4);
    const host::stream stream;
    reproducible comm(local::group(1).communicator(0), asked);
    comm.all_reduce(view<const T>(values), view<T>(values), reduction::sum, stream);
}

int main()
{
    using enum reproducibility;
    sum<contract<size_invariant, accumulation::float32>, float>({});
    sum<contract<correctly_rounded, accumulation::float64>, float16>({}); // exact up to 8192 terms
#if defined(SECTION_rounds_but_shall_not_depend_on_order)
    sum<contract<order_invariant, accumulation::float32>, float>({});
#endif
#if defined(SECTION_narrower_than_the_terms)
    sum<contract<size_invariant, accumulation::float32>, double>({});
#endif
    // What is not reduced is under no contract.
    std::vector<float> values(4);
    const host::stream stream;
    reproducible gathers(local::group(1).communicator(0), contract<order_invariant, accumulation::float32>{});
    gathers.all_gather(view(values), stream);
    probed inner{reproducible{local::group(1).communicator(0)}};
    probed probe{local::group(1).communicator(0)};
#if defined(SECTION_wrapped_without_a_move)
    reproducible outer{probe};
#else
    reproducible outer{std::move(probe)};
#endif
#if defined(SECTION_two_accumulators)
    sum<contract<size_invariant, accumulation::float32, accumulation::float64>, float>({});
#endif
}

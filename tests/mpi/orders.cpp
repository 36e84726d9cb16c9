// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// orders <order>... [not <order>...]: an MPI_Allreduce of floats has the bits of one of these orders, as the program
// summation_order names them and adds in them, and of none of those behind "not".
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <collprobe/comm/mpi/detail/types.hpp>

#include "../../examples/studies/summation_order/orders.hpp"
#include "../../examples/studies/summation_order/random_terms.hpp"

int main(int argc, char** argv)
{
    using namespace collprobe;
    MPI_Init(&argc, &argv);
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    constexpr std::size_t count = 1003;
    const summation::random_terms draw(summation::input_kind::wide, 7, ranks);
    std::vector<std::vector<float>> terms(static_cast<std::size_t>(ranks), std::vector<float>(count));
    std::vector<const float*> rows;
    for (int each = 0; each < ranks; ++each) {
        auto& row = terms[static_cast<std::size_t>(each)];
        for (std::size_t i = 0; i < count; ++i) row[i] = static_cast<float>(draw(each, i));
        rows.push_back(row.data());
    }
    std::vector<float> sum(count), wanted(count);
    const auto& own = terms[static_cast<std::size_t>(rank)];
    MPI_Allreduce(own.data(), sum.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    bool found = false, refused = false, negative = false;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "not") {
            negative = true;
            continue;
        }
        const auto orders = summation::orders_over_ranks(
            summation::parse_order("orders", name), ranks, {count, sizeof(float)});
        summation::add_rows(accumulation::native, rows.data(), orders, wanted.data(), 0, count);
        const bool same = std::memcmp(sum.data(), wanted.data(), count * sizeof(float)) == 0;
        (negative ? refused : found) |= same;
        if (rank == 0) std::printf("%s: %s\n", name.c_str(), same ? "the same bits" : "other bits");
    }
    const int failed = found && !refused ? 0 : 1;
    int any_failed = 0;
    MPI_Allreduce(&failed, &any_failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    if (any_failed != 0 && rank == 0) std::printf("no order that was expected, or one that was not\n");
    return any_failed;
}

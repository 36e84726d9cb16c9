// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/record.hpp>

/// A made-up step that has every kind of value a report must show.
inline collprobe::step_record sample_step(std::uint64_t step, double shift = 0)
{
    collprobe::step_record record;
    record.step = step;
    record.ranks = 3;
    record.loss = {.mean = 0.1 + shift, .std = 1.0 / 3.0, .std_sample = 0.5, .range = 2.25};
    record.loss_weighted = record.loss;
    record.gradient_norm = {.mean = 1e-300, .std = 12345.678901234567, .cv = 0.125};
    record.cosine.mean_pairwise = -0.25;
    record.cosine.pooled = 0.75;
    record.cosine.leave_one_out = {0.5, collprobe::detail::not_a_number(), -0.5};
    record.losses = {0.25, 0.5, 1};
    record.gradient_norms = {1, 2, 3};
    return record;
}

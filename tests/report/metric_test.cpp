// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <doctest/doctest.h>

#include <collprobe/report/metric.hpp>

#include "sample.hpp"

using namespace collprobe;

TEST_CASE("every metric has a label and takes its own member of the record")
{
    const step_record record = sample_step(1);
    for (int i = 0; i < report::detail::metric_count; ++i) {
        for (int j = 0; j < i; ++j) {
            CHECK(std::strcmp(report::name(static_cast<report::metric>(i)),
                      report::name(static_cast<report::metric>(j)))
                != 0);
        }
        CHECK(std::strcmp(report::name(static_cast<report::metric>(i)), "unknown") != 0);
    }
    CHECK(report::detail::value_of(report::metric::loss_mean, record) == record.loss.mean);
    CHECK(is_nan(report::detail::value_of(report::metric::loss_of_tokens, record)));
    step_record unequal = record;
    unequal.loss_weighted.mean = 9.2;
    CHECK(report::detail::value_of(report::metric::loss_of_tokens, unequal) == 9.2);
    unequal.loss_weighted.mean = record.loss.mean * (1 + 1e-6);
    CHECK(is_nan(report::detail::value_of(report::metric::loss_of_tokens, unequal)));
    CHECK(report::detail::value_of(report::metric::loss_std, record) == record.loss.std);
    CHECK(report::detail::value_of(report::metric::loss_std_sample, record) == record.loss.std_sample);
    CHECK(report::detail::value_of(report::metric::loss_range, record) == record.loss.range);
    CHECK(report::detail::value_of(report::metric::norm_mean, record) == record.gradient_norm.mean);
    CHECK(report::detail::value_of(report::metric::norm_std, record) == record.gradient_norm.std);
    CHECK(report::detail::value_of(report::metric::norm_cv, record) == record.gradient_norm.cv);
    CHECK(report::detail::value_of(report::metric::cosine_mean_pairwise, record) == record.cosine.mean_pairwise);
    CHECK(report::detail::value_of(report::metric::cosine_pooled, record) == record.cosine.pooled);
    CHECK(is_nan(report::detail::value_of(report::metric::cosine_predicted, record)));
    CHECK(is_nan(report::detail::value_of(report::metric::noise_scale, record)));
}

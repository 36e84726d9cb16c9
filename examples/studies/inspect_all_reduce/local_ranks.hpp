// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/comm/local/communicator.hpp>

#include "options.hpp"

namespace inspect_all_reduce {

/// Ranks as threads of this process.
class local_ranks {
public:
    explicit local_ranks(const options& given) : given_(given) {}

    int size() const { return given_.ranks; }
    /// Whether it is this process that reports.
    bool speaks() const { return true; }
    std::string library() const { return std::string("ranks as threads, order ") + collprobe::local::name(given_.order); }
    template <class Fn>
    void run(Fn fn) const
    {
        const std::string name = std::string("local.") + collprobe::local::name(given_.order);
        collprobe::local::run(given_.ranks, {.name = name, .order = given_.order}, fn);
    }

private:
    const options& given_;
};

} // namespace inspect_all_reduce

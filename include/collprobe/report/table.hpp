// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/words.hpp>

/// Records as text for people.
namespace collprobe::inline COLLPROBE_ABI::report {

/// Rows of cells, printed in columns: the first column is aligned left, the others right. The first row is the heading.
class text_table {
public:
    /// Starts a row with its first cell.
    text_table& row(std::string first)
    {
        rows_.emplace_back();
        return cell(std::move(first));
    }
    /// Adds a cell to the row. Rows may differ in length.
    text_table& cell(std::string text)
    {
        rows_.back().push_back(std::move(text));
        return *this;
    }

    /// The lines, each ended by a newline, with a rule below the heading. Widths are in bytes.
    std::string text() const;

private:
    std::vector<std::vector<std::string>> rows_;
};

/// A finding in one line: "bucket 1 'wte': rank 3 sent NaN or infinity (non_finite): in 5 elements, the first at index
/// 7". "Some rank" stands for a rank that the check could not name.
std::string describe(const finding& of);

/// What quantisation did to a call, in one line: formats, errors, bytes, verdict and advice.
std::string describe(int call, const call_site& site, const call_quantisation& of);

/// The weights of a call in one line:
/// "bucket 3 'wte': rank 5 entered the average with weight 0 (others 1/8): rank lost".
std::string describe(int call, const call_site& site, const call_weights& of);

/// A line each about the calls that were not looked at, with the reason; empty if all were.
std::string coverage(const step_record& record);

/// One step by rank (loss, gradient norm, leave-one-out cosine; the pooled cosine where only that is known; of more
/// than 32 ranks the extremes, and those of findings with at most 32), then its `coverage`, lines about the weights of
/// averages, a line about the last rank if it stands out, one per rank that is late, and one per finding.
std::string step_table(const step_record& record);

/// What each rank sent in a call of a step: norm, mean, deviation, largest magnitude, zeros, NaN, infinities of either
/// sign, the first index that is not finite, and the digest of the bytes. No rows if a rank's own numbers are not
/// known: in `summary` mode, of integers, and if `call` is no index of `record.calls`.
std::string call_table(const step_record& record, std::size_t call);

/// An alarm as one line of text, without a newline at its end: "step 17, bucket 1: rank 3 held other bits of a result
/// than the other ranks (result_differs); damage: on the result's way to the ranks, or in their memory; what to do:
/// resync from rank 0". A statistical alarm has its number and rate too.
std::string describe_alarm(const finding& raised);

} // namespace collprobe::report

#include <collprobe/report/detail/table.hpp>

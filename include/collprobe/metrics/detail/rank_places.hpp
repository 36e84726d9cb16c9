// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The places of numbers, counted from the largest. Numbers in the same bucket share their places.
/// Fewer than `sorted_below`: a bucket holds equal numbers. More: the buckets are 512 equal parts of the range, which
/// ends about six standard deviations from the median where a few numbers would make all others share few buckets. The
/// limits are symmetric functions of the numbers.
/// Cost: n^2 / 2 comparisons without branches, or O(n). Only the constructor allocates.
class rank_places {
public:
    static constexpr std::size_t sorted_below = 32;
    static constexpr std::size_t parts = 512;

    static constexpr std::size_t most_buckets(std::size_t numbers) noexcept
    {
        return numbers < sorted_below ? 2 * numbers + 1 : parts + 2;
    }
    explicit rank_places(std::size_t most)
        : numbers_(most), work_(most), bucket_(most), before_(most_buckets(most) + 1)
    {
    }
    void clear() noexcept { size_ = 0; }
    /// Preconditions: finite, of at most half the largest double; at most as many as the constructor has been told.
    void add(double number) noexcept { numbers_[size_++] = number; }
    double& operator[](std::size_t index) noexcept { return numbers_[index]; }
    view<double> copy_in(std::vector<double>& to) const noexcept
    {
        for (std::size_t i = 0; i < size_; ++i) to[i] = numbers_[i];
        return {to.data(), size_};
    }

    /// Fills the buckets, the largest numbers first. Precondition: there is a number.
    void order() noexcept
    {
        if (is_sorted()) return sort();
        const auto [bottom, top] = std::minmax_element(numbers_.data(), numbers_.data() + size_);
        top_ = *top, bottom_ = *bottom;
        count();
        half_of half = around_median();
        if (half.reach >= 20 || !(top_ > bottom_)) return;
        double median = top_ - (static_cast<double>(half.middle) - 0.5) / scale_;
        double distance = static_cast<double>(half.reach + 1) / scale_;
        if (half.reach < 4) {
            median = median_of(middle_of(copy_in(work_)), size_);
            for (std::size_t i = 0; i < size_; ++i) work_[i] = absolute(numbers_[i] - median);
            distance = median_of(middle_of(view<double>(work_.data(), size_)), size_);
            if (!(distance > 0)) return;
        }
        top_ = std::min(top_, median + 9 * distance); // 6 standard deviations of Gaussian numbers
        bottom_ = std::max(bottom_, median - 9 * distance);
        count();
    }
    /// From here on the numbers must be in order.
    std::size_t buckets() const noexcept { return buckets_; }
    std::size_t bucket(std::size_t index) const noexcept { return bucket_[index]; }
    /// The numbers in the buckets before this one, which may be `buckets()`.
    std::size_t before(std::size_t bucket) const noexcept { return before_[bucket]; }
    std::size_t in(std::size_t bucket) const noexcept { return before_[bucket + 1] - before_[bucket]; }
    /// Of any number. The bucket is empty if the number is larger or smaller than all, or between two that are sorted.
    std::size_t bucket_of(double number) const noexcept
    {
        if (is_sorted()) {
            std::size_t bucket = 1;
            while (bucket + 1 < buckets_ && work_[before_[bucket]] > number) bucket += 2;
            return bucket + 1 < buckets_ && !(work_[before_[bucket]] < number) ? bucket : bucket - 1;
        }
        if (number > top_) return 0;
        return number < bottom_ ? buckets_ - 1 : 1 + static_cast<std::size_t>((top_ - number) * scale_);
    }
    /// The last bucket that may have numbers of at least those in `bucket` less `margin`; and the first one that may
    /// have numbers of at most those plus `margin`. `from`: the answer for an earlier bucket, or 1.
    std::size_t last_within(std::size_t bucket, double margin, std::size_t from) const noexcept
    {
        if (!is_sorted()) return bucket + reach(margin, buckets_ - 1 - bucket);
        if (from < bucket) from = bucket;
        while (from + 3 < buckets_ && work_[before_[from + 2]] >= work_[before_[bucket]] - margin) from += 2;
        return from;
    }
    std::size_t first_within(std::size_t bucket, double margin, std::size_t from) const noexcept
    {
        if (!is_sorted()) return bucket - reach(margin, bucket);
        while (work_[before_[from]] > work_[before_[bucket]] + margin) from += 2;
        return from;
    }
    /// The median distance from the median; of numbers that are not sorted within a bucket.
    double median_distance() const noexcept
    {
        const std::size_t middle = size_ / 2;
        if (is_sorted()) {
            const double median = size_ % 2 == 1 ? work_[middle] : 0.5 * work_[middle - 1] + 0.5 * work_[middle];
            double distances[sorted_below];
            for (std::size_t i = 0; i < size_; ++i) distances[i] = absolute(work_[i] - median);
            return median_of(middle_of(view<double>(distances, size_)), size_);
        }
        return static_cast<double>(around_median().reach) / scale_;
    }

private:
    bool is_sorted() const noexcept { return size_ < sorted_below; }
    std::size_t reach(double margin, std::size_t most) const noexcept
    {
        const double buckets = margin * scale_ + 1;
        return buckets < static_cast<double>(most) ? static_cast<std::size_t>(buckets) : most;
    }
    struct half_of {
        std::size_t middle = 1; // the bucket of the median
        std::size_t reach = 0; // buckets on each side of it that together with it hold half of the numbers
    };
    half_of around_median() const noexcept
    {
        half_of half;
        while (before_[half.middle + 1] <= size_ / 2) ++half.middle;
        std::size_t first = half.middle;
        std::size_t last = half.middle;
        for (; before_[last + 1] - before_[first] <= size_ / 2; ++half.reach) {
            first -= first > 0 ? 1 : 0;
            last += last + 1 < buckets_ ? 1 : 0;
        }
        return half;
    }
    void count() noexcept
    {
        buckets_ = parts + 2;
        const double range = top_ - bottom_;
        // Half a part less than there are, for the roundings. Differences below 2^-1000 are none.
        scale_ = (static_cast<double>(parts) - 0.5) / (range > 0x1p-1000 ? range : 0x1p-1000);
        for (std::size_t b = 0; b <= buckets_; ++b) before_[b] = 0;
        for (std::size_t i = 0; i < size_; ++i) {
            const double number = std::clamp(numbers_[i], bottom_, top_);
            bucket_[i] = static_cast<std::uint16_t>(1 + static_cast<int>((top_ - number) * scale_));
            ++before_[bucket_[i] + 1u];
        }
        for (std::size_t b = 1; b <= buckets_; ++b) before_[b] += before_[b - 1];
    }
    void sort() noexcept
    {
        // By counting the larger ones, which has no branches to mispredict. Of equal numbers the first is first.
        std::uint32_t larger[sorted_below] = {};
        for (std::size_t i = 1; i < size_; ++i) {
            const double number = numbers_[i];
            std::uint32_t own = 0;
            for (std::size_t j = 0; j < i; ++j) {
                const std::uint32_t is_larger = numbers_[j] >= number ? 1 : 0;
                own += is_larger;
                larger[j] += 1 - is_larger;
            }
            larger[i] = own;
        }
        for (std::size_t i = 0; i < size_; ++i) work_[larger[i]] = numbers_[i];
        std::uint16_t bucket_at[sorted_below] = {1};
        before_[0] = before_[1] = 0;
        buckets_ = 3;
        for (std::uint32_t place = 1; place < size_; ++place) {
            if (work_[place] < work_[place - 1]) { // the bucket between two is for other numbers
                before_[buckets_ - 1] = before_[buckets_] = place;
                buckets_ += 2;
            }
            bucket_at[place] = static_cast<std::uint16_t>(buckets_ - 2);
        }
        before_[buckets_ - 1] = before_[buckets_] = static_cast<std::uint32_t>(size_);
        for (std::size_t i = 0; i < size_; ++i) bucket_[i] = bucket_at[larger[i]];
    }

    std::vector<double> numbers_;
    std::vector<double> work_; // the numbers in order, where they are sorted
    std::vector<std::uint16_t> bucket_; // by number
    std::vector<std::uint32_t> before_; // by bucket
    std::size_t size_ = 0, buckets_ = 0;
    double top_ = 0; // the ends of the range, and buckets for each unit of it
    double bottom_ = 0, scale_ = 0;
};

} // namespace collprobe::detail

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A polynomial by its coefficients, that of the highest power first.
COLLPROBE_HD constexpr double horner(const double (&of)[8], double x) noexcept
{
    return ((((((of[0] * x + of[1]) * x + of[2]) * x + of[3]) * x + of[4]) * x + of[5]) * x + of[6]) * x + of[7];
}

/// The quantile of the standard normal distribution at `p`, 0 < p < 1; relative error about 1e-15.
/// Source: Wichura, algorithm AS 241 (PPND16), Applied Statistics 37 (1988).
COLLPROBE_HD inline double normal_quantile(double p) noexcept
{
    const double q = p - 0.5;
    if (absolute(q) <= 0.425) {
        constexpr double above[] = {2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
            4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2,
            3.3871328727963666080e0};
        constexpr double below[] = {5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
            2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0};
        const double r = 0.180625 - q * q;
        return q * horner(above, r) / horner(below, r);
    }
    const double r = square_root(-natural_log(q < 0 ? p : 1 - p));
    double tail;
    if (r <= 5) {
        constexpr double above[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
            1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0,
            1.42343711074968357734e0};
        constexpr double below[] = {1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
            1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0,
            1.0};
        tail = horner(above, r - 1.6) / horner(below, r - 1.6);
    } else {
        constexpr double above[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
            2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0,
            6.65790464350110377720e0};
        constexpr double below[] = {2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
            7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1,
            1.0};
        tail = horner(above, r - 5) / horner(below, r - 5);
    }
    return q < 0 ? -tail : tail;
}

/// A standard normal variable made from 64 random bits.
COLLPROBE_HD inline double standard_normal(std::uint64_t bits) noexcept
{
    return normal_quantile((static_cast<double>(bits >> 12) + 0.5) * 0x1p-52);
}

/// x such that a standard normal exceeds it with probability p, 0 < p < 1.
inline double normal_upper_quantile(double p) noexcept { return -normal_quantile(p); }

/// The same quantile of Student's t, p <= 0.5: up to 0.5 % too high for 31 or more degrees of freedom and p >= 1e-12.
/// Source: Gaver and Kafadar, The American Statistician 38 (1984).
inline double student_upper_quantile(double p, double degrees) noexcept
{
    const double x = normal_upper_quantile(p);
    const double shifted = degrees - 2.0 / 3 + 0.1 / degrees;
    const double exponent = x * x * (degrees - 5.0 / 6) / (shifted * shifted);
    return square_root(degrees * (exponential(exponent) - 1));
}

} // namespace collprobe::detail

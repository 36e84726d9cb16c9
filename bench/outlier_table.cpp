// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// Prints include/collprobe/probe/outlier_table.hpp: cut-offs on the largest modified z-score of n
/// healthy Gaussian ranks. Deterministic for given options; progress and standard errors to stderr.
///
///     outlier_table [--work N] [--seed N] [--rows n,n,...] [--compare]
///
/// `--work` is the number of Gaussian draws that a row may spend (default 60 million: about five
/// minutes in all on one core; a hundredth of it gives a table good to 3 %), `--compare` prints both
/// estimates below. Exits with 1 where the work was too little for a column.
///
/// Counting exceedances among plain samples would need 1e9 of them for the 1e-7 column. Two
/// devices replace the counting, neither of which changes what is estimated:
///
/// 1. One rank is integrated out. Median and MAD are the same for any value of rank 0 far above the
///    others, so given the others, "rank 0 scores above t" is "x_0 > median + t MAD / 0.6745", whose
///    probability is a normal tail. By symmetry, P(some rank scores above t) is 2 n times the
///    expectation of that tail divided by the number of ranks that then score above t.
/// 2. With few ranks, the far tail comes from a small MAD: floor(n/2) + 1 ranks that happen to lie
///    close together. Half of the work draws such clusters on purpose: around one of the ranks, with
///    a log-uniform width, each other rank belonging to it or not by chance. A draw is weighed by
///    the ratio of the densities. It counts only if the rank in the middle is one of the closest
///    ones, and then by the share of the ranks that are, so each cluster is counted once.
///
/// Of the plain and the clustered estimate, the one with the smaller standard error is printed. The
/// second device also tells the law of the tail: P(score > t) ~ t^-floor(n/2).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct random_source {
    std::uint64_t state[4];

    explicit random_source(std::uint64_t seed)
    {
        for (std::uint64_t& word : state) {
            seed += 0x9e3779b97f4a7c15u;
            std::uint64_t mixed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
            mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
            word = mixed ^ (mixed >> 31);
        }
    }
    static std::uint64_t rotate(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
    /// xoshiro256++ (Blackman and Vigna, public domain).
    std::uint64_t next()
    {
        const std::uint64_t result = rotate(state[0] + state[3], 23) + state[0];
        const std::uint64_t kept = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= kept;
        state[3] = rotate(state[3], 45);
        return result;
    }
    double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
};

/// Normal deviates by the ziggurat of Marsaglia and Tsang in Doornik's form (128 layers, exact tail).
class normal_source {
public:
    explicit normal_source(std::uint64_t seed) : random_(seed)
    {
        double f = std::exp(-0.5 * tail * tail);
        edge_[0] = area / f;
        edge_[1] = tail;
        edge_[layers] = 0;
        for (int i = 2; i < layers; ++i) {
            edge_[i] = std::sqrt(-2 * std::log(area / edge_[i - 1] + f));
            f = std::exp(-0.5 * edge_[i] * edge_[i]);
        }
        for (int i = 0; i < layers; ++i) ratio_[i] = edge_[i + 1] / edge_[i];
    }
    double operator()()
    {
        for (;;) {
            const std::uint64_t bits = random_.next();
            const int i = static_cast<int>(bits & (layers - 1));
            const double u = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-52 - 1;
            if (std::fabs(u) < ratio_[i]) return u * edge_[i];
            if (i == 0) {
                double x = 0;
                double y = 0;
                do {
                    x = -std::log(random_.uniform()) / tail;
                    y = -std::log(random_.uniform());
                } while (y + y < x * x);
                return u < 0 ? -tail - x : tail + x;
            }
            const double x = u * edge_[i];
            const double f0 = std::exp(-0.5 * (edge_[i] * edge_[i] - x * x));
            const double f1 = std::exp(-0.5 * (edge_[i + 1] * edge_[i + 1] - x * x));
            if (f1 + random_.uniform() * (f0 - f1) < 1) return x;
        }
    }
    random_source& uniform_bits() { return random_; }

private:
    static constexpr int layers = 128;
    static constexpr double tail = 3.442619855899;
    static constexpr double area = 9.91256303526217e-3;
    random_source random_;
    double edge_[layers + 1];
    double ratio_[layers];
};

constexpr double probabilities[] = {1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7};
constexpr int columns = 6;
/// Ranks up to which clusters are drawn too: beyond, plain samples do as well.
constexpr int cluster_rows = 96;

/// Survival function of the largest score on a geometric grid of scores, with its variance.
struct tail_estimate {
    int ranks;
    std::vector<double> score;
    std::vector<double> sum;
    std::vector<double> sum_of_squares;
    double trials = 0;

    explicit tail_estimate(int n) : ranks(n)
    {
        const double ratio = n < 6 ? 1.25 : n < 12 ? 1.12 : n < 32 ? 1.06 : 1.03;
        const double last = n == 3 ? 1e9 : n == 4 || n == 5 ? 1e5 : n < 8 ? 1e4 : n < 12 ? 1e3 : 100;
        for (double t = 3.5; t < last; t *= ratio) score.push_back(t);
        sum.assign(score.size(), 0);
        sum_of_squares.assign(score.size(), 0);
    }

    /// One draw of the other ranks: their deviations from `center`, their MAD and its weight.
    void add(const std::vector<double>& deviation, double center, double mad, double weight)
    {
        const double scale = mad / 0.6745;
        large_.clear();
        for (double d : deviation)
            if (d > score[0] * scale) large_.push_back(d);
        for (std::size_t j = 0; j < score.size(); ++j) {
            const double limit = center + score[j] * scale;
            if (limit > 8.5) break; // a tail below 1e-17
            int above = 1;
            for (double d : large_) above += d > score[j] * scale ? 1 : 0;
            const double value = weight * std::erfc(limit * 0.70710678118654752) * ranks / above;
            sum[j] += value;
            sum_of_squares[j] += value * value;
        }
    }
    double probability(std::size_t j) const { return sum[j] / trials; }
    /// Relative standard error of probability(j).
    double error(std::size_t j) const
    {
        const double mean = probability(j);
        const double variance = sum_of_squares[j] / trials - mean * mean;
        return std::sqrt(std::max(variance, 0.0) / trials) / mean;
    }
    /// Score that is exceeded with probability p, and the relative standard error of that score.
    bool invert(double p, double& t, double& relative_error) const
    {
        for (std::size_t j = 1; j + 2 < score.size(); ++j) {
            if (!(probability(j) > p && probability(j + 1) <= p)) continue;
            if (!(probability(j + 2) > 0)) return false;
            double x[4];
            double y[4];
            for (std::size_t k = 0; k < 4; ++k) {
                x[k] = std::log(probability(j - 1 + k));
                y[k] = std::log(score[j - 1 + k]);
            }
            double result = 0;
            for (int a = 0; a < 4; ++a) {
                double term = y[a];
                for (int b = 0; b < 4; ++b)
                    if (a != b) term *= (std::log(p) - x[b]) / (x[a] - x[b]);
                result += term;
            }
            t = std::exp(result);
            relative_error = error(j) * (y[2] - y[1]) / (x[1] - x[2]);
            return true;
        }
        return false;
    }

private:
    std::vector<double> large_;
};

/// Median of the others and one rank at +infinity; reorders `values`.
double median_with_infinity(std::vector<double>& values)
{
    const std::size_t n = values.size() + 1;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(n / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (n % 2 == 1) return *middle;
    return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

tail_estimate plain(int n, std::uint64_t draws, std::uint64_t seed)
{
    normal_source normal(seed);
    tail_estimate estimate(n);
    std::vector<double> others(static_cast<std::size_t>(n - 1));
    std::vector<double> work;
    std::vector<double> deviation(others.size());
    const std::uint64_t trials = draws / others.size() + 1;
    for (std::uint64_t trial = 0; trial < trials; ++trial) {
        for (double& x : others) x = normal();
        work = others;
        const double center = median_with_infinity(work);
        for (std::size_t i = 0; i < others.size(); ++i) deviation[i] = std::fabs(others[i] - center);
        work = deviation;
        estimate.add(deviation, center, median_with_infinity(work), 1);
    }
    estimate.trials = static_cast<double>(trials);
    return estimate;
}

tail_estimate clustered(int n, std::uint64_t draws, std::uint64_t seed)
{
    normal_source normal(seed);
    tail_estimate estimate(n);
    const std::size_t count = static_cast<std::size_t>(n - 1);
    const std::size_t closest = std::min(count, static_cast<std::size_t>(n / 2 + 1));
    const double inside = n == 3 ? 0.9 : static_cast<double>(closest) / static_cast<double>(count);
    // Widths from 1 down to what the rarest column needs.
    const double narrowest = n == 3 ? 24 : n <= 5 ? 13 : n <= 7 ? 9.5 : n <= 9 ? 7.5 : n <= 16 ? 6 : n <= 32 ? 4 : 2.5;
    const int widths = static_cast<int>(narrowest / (n <= 16 ? 0.5 : 0.25)) + 1;
    std::vector<double> width;
    for (int l = 0; l < widths; ++l) width.push_back(std::exp2(-narrowest * l / (widths - 1)));

    std::vector<double> others(count);
    std::vector<double> deviation(count);
    std::vector<double> work;
    const std::uint64_t trials = draws / count + 1;
    for (std::uint64_t trial = 0; trial < trials; ++trial) {
        const double spread = width[normal.uniform_bits().next() % width.size()];
        for (std::size_t i = 0; i < count; ++i) {
            others[i] = normal();
            if (i > 0 && normal.uniform_bits().uniform() < inside) others[i] = others[0] + spread * others[i];
        }
        work = others;
        const double center = median_with_infinity(work);
        for (std::size_t i = 0; i < count; ++i) deviation[i] = std::fabs(others[i] - center);
        std::size_t closer = 0;
        for (double d : deviation) closer += d < deviation[0] ? 1u : 0u;
        if (closer >= closest) continue;
        double density = 0; // of the draw, over that of independent normals
        for (double w : width) {
            double product = 1;
            for (std::size_t i = 1; i < count; ++i) {
                const double d = (others[i] - others[0]) / w;
                product *= 1 - inside + inside / w * std::exp(0.5 * (others[i] * others[i] - d * d));
            }
            density += product;
        }
        const double weight = static_cast<double>(count * width.size()) / (static_cast<double>(closest) * density);
        work = deviation;
        estimate.add(deviation, center, median_with_infinity(work), weight);
    }
    estimate.trials = static_cast<double>(trials);
    return estimate;
}

} // namespace

int main(int argc, char** argv)
{
    std::uint64_t work = 60000000;
    std::uint64_t seed = 20260101;
    std::vector<int> rows;
    for (int n = 3; n <= 25; ++n) rows.push_back(n);
    for (int n : {32, 33, 48, 49, 64, 65, 96, 128, 192, 256, 384, 512, 768, 1024}) rows.push_back(n);
    bool compare = false;
    bool complete = true;
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        if (option == "--compare") {
            compare = true;
        } else if (option == "--work" && i + 1 < argc) {
            work = std::strtoull(argv[++i], nullptr, 10);
        } else if (option == "--seed" && i + 1 < argc) {
            seed = std::strtoull(argv[++i], nullptr, 10);
        } else if (option == "--rows" && i + 1 < argc) {
            rows.clear();
            for (const char* text = argv[++i]; text != nullptr; text = std::strchr(text, ',')) {
                if (*text == ',') ++text;
                rows.push_back(std::max(3, std::atoi(text)));
            }
        } else {
            std::fprintf(stderr, "usage: outlier_table [--work N] [--seed N] [--rows n,n,...] [--compare]\n");
            return 2;
        }
    }

    std::printf(R"(// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>

/// Generated by bench/outlier_table.cpp: edit that, not this.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The probabilities of the columns of `outlier_table`.
inline constexpr double outlier_table_p[] = {1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7};

/// A row: the scores that the largest modified z of `ranks` independent Gaussian values exceeds with
/// the probabilities of the columns. The comment has the largest relative standard error of the row,
/// and the probability of exceeding the textbook's 3.5.
struct outlier_table_row {
    int ranks;
    double cutoff[6];
};

inline constexpr outlier_table_row outlier_table[] = {
)");
    for (int n : rows) {
        const bool both = n <= cluster_rows;
        const std::uint64_t row_seed = seed + 2 * static_cast<std::uint64_t>(n);
        const tail_estimate direct = plain(n, both ? work / 2 : work, row_seed);
        const tail_estimate rare = both ? clustered(n, work / 2, row_seed + 1) : direct;
        double worst = 0;
        std::printf("    {%d, {", n);
        std::fprintf(stderr, "n = %d:", n);
        for (int c = 0; c < columns; ++c) {
            double t[2] = {0, 0};
            double e[2] = {9, 9};
            direct.invert(probabilities[c], t[0], e[0]);
            rare.invert(probabilities[c], t[1], e[1]);
            const int better = e[1] < e[0] ? 1 : 0;
            if (t[better] <= 0) complete = false;
            worst = std::max(worst, e[better]);
            std::printf("%s%.5g", c == 0 ? "" : ", ", t[better]);
            if (compare) std::fprintf(stderr, " %.5g (%.2g %%) or %.5g (%.2g %%),", t[0], 100 * e[0], t[1], 100 * e[1]);
            else std::fprintf(stderr, " %.5g (%.2g %%)", t[better], 100 * e[better]);
        }
        std::printf("}}, // %.2g %%, %.4f\n", 100 * worst, direct.probability(0));
        std::fprintf(stderr, "\n");
        std::fflush(stdout);
    }
    std::printf("};\n\n} // namespace collprobe::detail\n");
    if (!complete) std::fprintf(stderr, "too little work: cut-offs printed as 0 were not reached\n");
    return complete ? 0 : 1;
}

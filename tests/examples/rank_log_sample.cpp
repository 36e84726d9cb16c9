// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// rank_log_sample FOLDER [WORD...]: the files that the ranks of a preloaded program write, without the program. Each
// rank is a process: 4 ranks on 2 hosts, 60 steps with two all-reduces, a reduce-scatter and an all-gather.
// Words: "ranks=N", "steps=N", "every=N" (probed steps), "count=N" (elements of a buffer), "run=NAME", "seed=N"
// (of the gradients).
// Faults: "nan", "stale", "flipped", "wrong_sum" (of rank 2, in step 40), "overflow" (of the sum of call 0 from step 40
// on, of all ranks), "other_call" (rank 1 makes another call from
// step 40 on), "missing" (rank 3 has no file), "killed" (rank 3 stops in step 40), "cut" (the last line of rank 1 is
// cut off), "nested" (rank 1 looks at every second step that the others look at), "groups" (besides, two communicators
// of half of the ranks), "named" (the communicator of all ranks has a name), "partial" (rank 2 lacks call 1 of each
// step), "dropped", "unended", "premul" (call 0 is a sum of products by 0.25),
// "unlocked" (steps are numbers of calls), "rollback" (from step 45 back to step 42, once), "without=N" (no call 1 from
// step N on). "fault=N": instead of step 40, "lasting": and from then on. "found": steps and places are those that call_period finds. Healthy: "evaluates" (5 steps of another call
// behind each 15), "large" (the gradients of rank 2 are twice as large), "rebuilt" (the first step has call 1 in two parts).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/report/json.hpp>

#include "../../examples/preload/engine/call_period.hpp"
#include "audit/rank_blocks.hpp"

using namespace collprobe;
using collprobe_preload::call_period;
using collprobe_preload::call_place;
using collprobe_preload::call_signature;
using collprobe_preload::step_source;

namespace {

std::string base64(const unsigned char* bytes, std::size_t count)
{
    constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t i = 0; i < count; i += 3) {
        std::uint32_t bits = 0;
        for (std::size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < count ? bytes[i + k] : 0u);
        for (std::size_t k = 0; k < 4; ++k) text += i * 8 + k * 6 < count * 8 ? digits[bits >> (18 - 6 * k) & 63] : '=';
    }
    return text;
}

double normal(std::uint64_t seed)
{
    double sum = -6;
    for (std::uint64_t i = 0; i < 12; ++i) {
        sum += static_cast<double>(detail::mix64(seed * 12 + i + 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
    }
    return sum;
}

struct settings {
    std::string folder;
    std::map<std::string, std::string> words;

    bool has(const char* word) const { return words.count(word) != 0; }
    std::uint64_t number(const char* word, std::uint64_t otherwise) const
    {
        return has(word) ? std::stoull(words.at(word)) : otherwise;
    }
};

/// A communicator of some ranks of the job.
struct group {
    std::uint64_t key = 0;
    std::string name;
    std::vector<int> members; ///< ranks of the job
    std::uint64_t sequence = 0;
    std::unique_ptr<call_period> period = std::make_unique<call_period>();
};

class writer {
public:
    explicit writer(const settings& with)
        : with_(with), ranks_(static_cast<int>(with.number("ranks", 4))), every_(with.number("every", 1)),
          files_(static_cast<std::size_t>(ranks_))
    {
        std::filesystem::create_directories(with.folder);
        const std::uint64_t salt = detail::mix64(std::hash<std::string>()(with.folder) | 1);
        groups_.push_back({salt, with.has("named") ? "data" : "", {}});
        for (int r = 0; r < ranks_; ++r) groups_[0].members.push_back(r);
        if (with.has("groups")) {
            groups_.push_back({salt + 1, "half", {}});
            groups_.push_back({salt + 2, "half", {}});
            for (int r = 0; r < ranks_; ++r) groups_[1 + static_cast<std::size_t>(2 * r / ranks_)].members.push_back(r);
        }
        for (int r = 0; r < ranks_; ++r) begin(r);
    }

    void write_step(std::uint64_t step)
    {
        step_ = step;
        for (group& of : groups_) {
            bucket_ = 0;
            if (with_.has("evaluates") && step_ % 20 >= 15) {
                for (std::uint64_t c = 0; c < 3; ++c)
                    all<double>(of, collective::all_reduce, reduction::max, 48 + 12 * c);
                continue;
            }
            all<float>(of, collective::all_reduce, reduction::sum);
            if (with_.has("rebuilt") && step_ == 0) {
                all<bfloat16>(of, collective::all_reduce, reduction::average, 600);
                all<bfloat16>(of, collective::all_reduce, reduction::average, 600);
            } else if (step_ < with_.number("without", ~std::uint64_t{0})) {
                all<bfloat16>(of, collective::all_reduce, reduction::average);
            }
            all<float>(of, collective::reduce_scatter, reduction::average);
            all<float>(of, collective::all_gather, reduction::sum);
        }
        now_us_ += 1'000'000;
        for (std::size_t r = 0; r < files_.size(); ++r) {
            files_[r] << lines_[static_cast<int>(r)];
            lines_[static_cast<int>(r)].clear();
            files_[r].flush();
        }
    }
    void end()
    {
        for (int r = 0; r < ranks_; ++r) {
            for (const group& of : groups_) {
                if (member_of(of, r) < 0 || is_silent(r)) continue;
                line(r, "coverage", of, [&](report::detail::json_writer& json) {
                    const std::uint64_t probed = probed_[{of.key, r}];
                    json.key("calls").integer(of.sequence).key("probed").integer(probed).key("skipped").open('{');
                    json.key("budget").integer(of.sequence - probed).key("size").integer(3).close('}');
                    json.key("step").integer(step_).key("every").integer(every_).key("share_predicted").number(0.004);
                    json.key("share_measured").number(0.005).key("windows").integer(0);
                });
                if (with_.has("unended")) continue;
                line(r, "comm_end", of, [&](report::detail::json_writer& json) {
                    json.key("how").text("destroy").key("calls").integer(of.sequence);
                });
            }
            std::string& text = lines_[r];
            if (with_.has("cut") && r == 1) text += "{\"schema\":1,\"kind\":\"cal";
            files_[static_cast<std::size_t>(r)] << text << std::flush;
        }
    }

private:
    static constexpr std::uint64_t fault_step = 40;

    bool has_factors(const merged_call& call) const { return with_.has("premul") && call.bucket == 0; }
    bool is_missing(int r) const { return with_.has("missing") && r == 3; }
    bool is_silent(int r) const { return with_.has("killed") && r == 3 && step_ >= fault_step; }
    bool hits(const char* fault, int r) const
    {
        const std::uint64_t begin = with_.number("fault", fault_step);
        return with_.has(fault) && r == 2 && (with_.has("lasting") ? step_ >= begin : step_ == begin);
    }
    static int member_of(const group& of, int r)
    {
        for (std::size_t i = 0; i < of.members.size(); ++i) {
            if (of.members[i] == r) return static_cast<int>(i);
        }
        return -1;
    }

    void begin(int r)
    {
        const std::string host = 2 * r < ranks_ ? "a" : "b";
        const auto pid = static_cast<std::uint64_t>(1000 + r);
        if (!is_missing(r)) {
            files_[static_cast<std::size_t>(r)].open(
                with_.folder + "/" + host + "-pid" + std::to_string(pid) + ".jsonl", std::ios::binary);
        }
        std::string& text = lines_[r];
        report::detail::json_writer json(text);
        json.open('{').key("schema").integer(1).key("kind").text("process").key("run");
        json.text(with_.has("run") ? with_.words.at("run") : "sample").key("job").text("7").key("host").text(host);
        json.key("pid").integer(pid).key("global_rank").index(r).key("started_us").integer(start_us).key("version");
        json.text("0").key("nccl").text("libnccl.so.2").key("settings").open('{').key("COLLPROBE_EVERY");
        json.text(std::to_string(every_)).close('}').close('}');
        text += '\n';
        for (const group& of : groups_) {
            if (member_of(of, r) < 0) continue;
            line(r, "comm", of, [&](report::detail::json_writer& out) {
                out.key("name").text(of.name).key("parent").index(-1).key("ranks").integer(of.members.size());
                out.key("global_rank").index(r).key("device").text("GPU-" + std::to_string(r));
                out.key("bins").integer(4096).key("sketch_seed").bits(sketch_options().seed);
            });
        }
    }
    template <class Members>
    void line(int r, const char* kind, const group& of, const Members& members)
    {
        std::string& text = lines_[r];
        report::detail::json_writer json(text);
        json.open('{').key("schema").integer(1).key("kind").text(kind).key("comm").bits(of.key);
        json.key("writer").index(member_of(of, r));
        members(json);
        json.key("time_us").integer(now_us_).key("records_dropped").integer(with_.has("dropped") && r == 0 ? 5 : 0);
        json.close('}');
        text += '\n';
    }

    template <element T>
    std::vector<T> gradient(const group& of, int r, std::uint64_t step, std::uint64_t count)
    {
        const std::uint64_t seed
            = detail::mix64(with_.number("seed", 1) + 1000 * step + 10 * bucket_ + of.members.size());
        std::vector<T> data;
        for (std::uint64_t i = 0; i < count; ++i) {
            const double own = normal(detail::mix64(seed + 7 + static_cast<std::uint64_t>(r)) + i);
            data.push_back(static_cast<T>((with_.has("large") && r == 2 ? 2 : 1) * (normal(seed + i) + own)));
        }
        return data;
    }

    /// A call of all members of a communicator.
    template <element T>
    void all(group& of, collective what, reduction operation, std::uint64_t count = 0)
    {
        const std::size_t n = of.members.size();
        const bool scatters = what == collective::reduce_scatter;
        const bool gathers = what == collective::all_gather;
        const std::uint64_t sequence = of.sequence++;
        const std::uint64_t bucket = bucket_++;
        const std::uint64_t each = (count != 0 ? count : with_.number("count", 1200)) / n;
        merged_call call{.call = what, .type = element_traits<T>::type, .operation = operation,
            .count = gathers ? each : each * n, .result_count = scatters ? each : each * n, .bucket = bucket};
        place_ = {step_, static_cast<std::uint32_t>(bucket),
            with_.has("unlocked") ? step_source::calls : step_source::period};
        if (with_.has("found")) {
            place_ = of.period->add(call_signature(static_cast<unsigned>(what), static_cast<unsigned>(call.type),
                call.count, static_cast<unsigned>(operation), 0), each * n * sizeof(T));
        }
        call.bins = testing::bins_of<T>(call);
        if ((place_.source == step_source::period ? place_.step : step_) % every_ != 0) return;
        const bool is_hit = bucket == 1 && &of == &groups_[0];
        std::vector<std::vector<T>> inputs;
        for (const int r : of.members) {
            inputs.push_back(gradient<T>(of, r, is_hit && hits("stale", r) ? step_ - every_ : step_, call.count));
            if (is_hit && hits("nan", r)) inputs.back()[5] = static_cast<T>(detail::not_a_number());
            if (with_.has("overflow") && bucket == 0 && &of == &groups_[0] && step_ >= fault_step)
                inputs.back()[100] = static_cast<T>(3e38f);
        }
        const double factor = has_factors(call) ? 0.25 : 1;
        std::vector<T> whole;
        if (gathers) {
            for (const auto& shard : inputs) whole.insert(whole.end(), shard.begin(), shard.end());
        } else {
            for (std::uint64_t i = 0; i < call.count; ++i) {
                double sum = 0;
                for (const auto& input : inputs) sum += factor * detail::widen(input[i]);
                if (with_.has("wrong_sum") && is_hit && step_ == fault_step && i == 9) sum += 1e4;
                whole.push_back(static_cast<T>(operation == reduction::average ? sum / static_cast<double>(n) : sum));
            }
        }
        for (std::size_t m = 0; m < n; ++m) {
            const int r = of.members[m];
            const bool skips = with_.has("nested") && r == 1 && step_ / every_ % 2 != 0;
            if (skips || is_silent(r) || (with_.has("partial") && r == 2 && bucket == 1)) continue;
            std::vector<T> result = whole;
            if (scatters)
                result.assign(
                    whole.begin() + static_cast<long>(m * each), whole.begin() + static_cast<long>((m + 1) * each));
            if (is_hit && hits("flipped", r)) reinterpret_cast<unsigned char&>(result[3]) ^= 1;
            testing::rank_reader<T> reader(call, view<const T>(inputs[m]), false);
            write(of, r, sequence, call, reader.with_result(view<const T>(result), scatters ? m * each : 0));
        }
    }
    void write(const group& of, int r, std::uint64_t sequence, const merged_call& call, testing::block_words block)
    {
        ++probed_[{of.key, r}];
        const unsigned char* const bytes = testing::bytes_of(block);
        rank_measurement& measured = rank_call_layout::measurement(reinterpret_cast<unsigned char*>(block.data()));
        const auto ticks = static_cast<clock_stamp>(4000 * sequence);
        measured.input_begun = ticks;
        measured.input_done = ticks + 100;
        measured.result_begun
            = ticks + 900 + static_cast<clock_stamp>(detail::mix64(sequence * 64 + static_cast<std::uint64_t>(r)) % 50);
        measured.result_done = measured.result_begun + 100;
        const bool is_other = with_.has("other_call") && r == 1 && step_ >= fault_step && call.bucket == 1;
        line(r, "call", of, [&](report::detail::json_writer& json) {
            json.key("collective_seq_id").integer(sequence).key("step").integer(place_.step);
            json.key("bucket").integer(place_.bucket).key("step_source").text(name(place_.source));
            json.key("call").text(is_other ? "broadcast" : name(call.call)).key("type").text(name(call.type));
            if (call.call != collective::all_gather && !is_other) json.key("reduction").text(name(call.operation));
            if (has_factors(call)) json.key("scale").number(0.25);
            const auto size = [&](const char* key, std::uint64_t count) {
                json.key(key).open('[').element().open('[').element().integer(count).close(']').close(']');
            };
            size("input_sizes", call.count);
            size("output_sizes", call.result_count);
            json.key("in_place").boolean(false).key("nonfinite").integer(measured.entry.input.nonfinite());
            json.key("input_norm").number(measured.entry.input.l2()).key("digest").bits(measured.entry.result.digest);
            json.key("message").text(base64(bytes, sizeof(rank_measurement)));
            const std::size_t sketched = 4 * call.bins * sizeof(double);
            if (sketched != 0) json.key("sketch").text(base64(bytes + sizeof(rank_measurement), sketched));
            json.key("has_input").boolean(true).key("has_result").boolean(true);
        });
        if (measured.entry.input.nonfinite() == 0) return;
        finding raised; // a rank sees that alone
        raised.step = place_.step;
        raised.call = static_cast<int>(place_.bucket);
        raised.ranks = {member_of(of, r)};
        raised.what = finding_kind::non_finite;
        raised.where = damage::input;
        raised.statistic = 1;
        raised.action = advice::skip;
        raised.site = call_site::named("nan");
        run_record run;
        run.name = "sample";
        run.communicator = of.name.empty() ? detail::hexadecimal(of.key) : of.name;
        run.rank = member_of(of, r);
        const record_context context{run, 1000 * now_us_, 0};
        lines_[r] += report::json_line(context, raised);
    }

    static constexpr std::uint64_t start_us = 1'700'000'000'000'000;
    settings with_;
    int ranks_;
    std::uint64_t every_;
    std::vector<std::ofstream> files_;
    std::map<std::pair<std::uint64_t, int>, std::uint64_t> probed_; ///< calls, by communicator and rank
    std::map<int, std::string> lines_; ///< by rank
    std::vector<group> groups_;
    std::uint64_t step_ = 0;
    std::uint64_t bucket_ = 0;
    call_place place_; ///< of the last call, as the ranks write it
    std::uint64_t now_us_ = start_us;
};

} // namespace

int main(int argc, char** argv)
{
    if (argc < 2) return 2;
    settings with{argv[1], {}};
    for (int i = 2; i < argc; ++i) {
        const std::string word = argv[i];
        const std::size_t equals = word.find('=');
        with.words[word.substr(0, equals)] = equals == word.npos ? "" : word.substr(equals + 1);
    }
    writer out(with);
    const std::uint64_t steps = with.number("steps", 60);
    for (std::uint64_t step = 0; step < steps; ++step) {
        if (step == 45 && with.has("rollback")) {
            for (std::uint64_t again = 42; again < 45; ++again) out.write_step(again);
        }
        out.write_step(step);
    }
    out.end();
}

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include "writer.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <collprobe/core/version.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/device/cuda/error.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/sinks.hpp>

#include "live_channel.hpp"

namespace collprobe_preload {

namespace report = collprobe::report;
using collprobe::collective;
using collprobe::rank_call_layout;
using collprobe::rank_measurement;

namespace {

constexpr std::uint64_t coverage_period_ns = 5'000'000'000;
constexpr int most_told_alarms = 10;

std::uint64_t now_ns() noexcept
{
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

void nap(long nanoseconds) noexcept
{
    const timespec time{0, nanoseconds};
    nanosleep(&time, nullptr);
}

/// Creates a folder and those above it. 0, or the reason why not.
int make_folders(const std::string& path)
{
    for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
        if (::mkdir(path.substr(0, end).c_str(), 0700) != 0 && errno != EEXIST) return errno;
        if (end == std::string::npos) return 0;
    }
}

const char* name_of_end(int how) noexcept
{
    switch (how) {
    case collprobe_finalize: return "finalize";
    case collprobe_destroy: return "destroy";
    case collprobe_abort: return "abort";
    default: return "exit";
    }
}

report::detail::json_writer& begin_line(report::detail::json_writer& json, std::string_view kind)
{
    json.open('{').key("schema").integer(static_cast<std::uint64_t>(report::json_schema));
    json.key("kind").text(kind);
    return json;
}

std::uint64_t unix_us() noexcept { return report::detail::unix_ns() / 1000; }

/// What was not read is zero; a dot that was not made is no number.
rank_measurement measured(const slot& done)
{
    rank_measurement result = rank_call_layout::measurement(done.on_host);
    const bool has_statistics = collprobe_preload::has_statistics(done.facts.type);
    if (!done.facts.has_input) {
        result.entry.input = {};
        result.input_begun = result.input_done = 0;
    }
    if (!has_statistics || !done.facts.has_result) {
        const std::uint64_t digest = done.facts.has_result ? result.entry.result.digest : 0;
        result.entry.result = {};
        result.entry.result.digest = digest;
        result.entry.result.dot = collprobe::detail::not_a_number();
    }
    return result;
}

} // namespace

std::string uuid_of(int device)
{
    using uuid_query = int (*)(unsigned char* uuid, int device);
    static const auto ask
        = reinterpret_cast<uuid_query>(collprobe::cuda::detail::driver_function("cuDeviceGetUuid", 11040));
    unsigned char bytes[16] = {};
    if (ask == nullptr || ask(bytes, device) != 0) return {};
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += "0123456789abcdef"[bytes[i] / 16];
        text += "0123456789abcdef"[bytes[i] % 16];
    }
    return text;
}

void append_base64(std::string& out, const unsigned char* bytes, std::size_t count)
{
    constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (std::size_t i = 0; i < count; i += 3) {
        const std::size_t there = count - i < 3 ? count - i : 3;
        std::uint32_t group = static_cast<std::uint32_t>(bytes[i]) << 16;
        if (there > 1) group |= static_cast<std::uint32_t>(bytes[i + 1]) << 8;
        if (there > 2) group |= bytes[i + 2];
        out += digits[group >> 18];
        out += digits[group >> 12 & 63];
        out += there > 1 ? digits[group >> 6 & 63] : '=';
        out += there > 2 ? digits[group & 63] : '=';
    }
}

writer::writer(const settings& options) : options_(options), process_(report::describe_process(options.run))
{
    process_.global_rank = options.global_rank;
}

bool writer::start()
{
    if (options_.jsonl) {
        path_
            = options_.directory + "/" + process_.host + "-pid" + std::to_string(process_.process) + ".jsonl";
        try {
            if (const int reason = make_folders(options_.directory); reason != 0) {
                throw std::runtime_error(
                    "cannot create '" + options_.directory + "': " + std::strerror(reason));
            }
            file_.emplace(report::line_file::own(path_));
        } catch (const std::exception& problem) {
            say(std::string("nothing is written: ") + problem.what());
        }
    }
    report::detail::json_writer json(lines_);
    begin_line(json, "process").key("run").text(process_.name).key("job").text(process_.job);
    json.key("host").text(process_.host).key("pid").integer(static_cast<std::uint64_t>(process_.process));
    json.key("global_rank").index(process_.global_rank).key("started_us").integer(process_.started_ns / 1000);
    json.key("version").text(process_.library).key("channel");
    json.text(options_.channel == settings::channel_kind::files ? "files" : "inband");
    json.key("settings").open('{');
    for (const auto& [name, value] : options_.given) json.key(name).text(value);
    json.close('}').close('}');
    lines_ += '\n';

    // The thread takes no signals of the program.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread{};
    const int problem = pthread_create(
        &thread, nullptr,
        [](void* self) -> void* {
            static_cast<writer*>(self)->work();
            return nullptr;
        },
        this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (problem != 0) {
        failure_ = std::string("no more threads can be started: ") + std::strerror(problem);
        return false;
    }
    pthread_setname_np(thread, "collprobe");
    pthread_detach(thread);
    // Runs before what CUDA's runtime has registered, because that was there before.
    static writer* const only = this;
    std::atexit([] { only->finish(); });
    return true;
}

void writer::add(communicator* made) noexcept
{
    made->next = first_.load(std::memory_order_relaxed);
    while (!first_.compare_exchange_weak(
        made->next, made, std::memory_order_release, std::memory_order_relaxed)) {}
}

void writer::wait_for(const communicator& ended) noexcept
{
    if (::getpid() != static_cast<pid_t>(process_.process)) return;
    const std::uint64_t until = now_ns() + 1'000'000'000u;
    while (ended.state.load(std::memory_order_acquire) == communicator::phase::ended && now_ns() < until
        && !stopped_.load(std::memory_order_acquire)) {
        nap(500'000);
    }
}

/// At the end of the process: lets the thread write what the GPU has finished, and stop.
void writer::finish() noexcept
{
    if (::getpid() != static_cast<pid_t>(process_.process))
        return; // a child of fork, which has no such thread
    stopping_.store(true, std::memory_order_release);
    const std::uint64_t until = now_ns() + 1'000'000'000u;
    while (!stopped_.load(std::memory_order_acquire) && now_ns() < until) nap(200'000);
}

void writer::work() noexcept
{
    std::uint64_t next_second = now_ns();
    int idle = 0;
    for (;;) {
        const bool last = stopping_.load(std::memory_order_acquire);
        bool busy = false;
        const std::uint64_t now = now_ns();
        for (communicator* each = first(); each != nullptr; each = each->next) {
            try {
                busy = look_at(*each) || busy;
                const auto phase = each->state.load(std::memory_order_acquire);
                if (phase == communicator::phase::open && each->writing.is_begun
                    && (last || now >= each->writing.next_coverage_ns)) {
                    each->writing.next_coverage_ns = now + coverage_period_ns;
                    write_coverage(*each);
                }
            } catch (const std::exception& problem) {
                ++lost_;
                say(std::string("a record is lost: ") + problem.what());
            }
        }
        if (now >= next_second) {
            next_second = now + 1'000'000'000u;
            read_control_file();
        }
        flush();
        rounds_.fetch_add(1, std::memory_order_release);
        if (last) break;
        idle = busy ? 0 : idle < 20 ? idle + 1 : idle;
        nap(idle < 5 ? 1'000'000 : 5'000'000);
    }
    stopped_.store(true, std::memory_order_release);
}

/// Takes the finished slots of a communicator, in their order. Whether there were any.
bool writer::look_at(communicator& each)
{
    const auto phase = each.state.load(std::memory_order_acquire);
    if (phase == communicator::phase::unused || phase == communicator::phase::written) return false;
    if (!each.is_known() && phase == communicator::phase::open) return false;
    if (each.writing.generation != each.generation()) begin(each);
    bool any = false;
    bool waits = false;
    if (each.memory() != nullptr && each.how_ended() != collprobe_abort) {
        const collprobe::cuda::device_guard current(each.device());
        const collprobe::cuda::detail::relaxed_capture_mode relaxed;
        for (;;) {
            const std::size_t done = each.written.load(std::memory_order_relaxed);
            slot& next = each.memory()->ring[done % probe_memory::slots];
            if (!take(each, next)) {
                waits = next.state.load(std::memory_order_acquire) != slot_state::free;
                break;
            }
            each.written.store(done + 1, std::memory_order_release);
            any = true;
        }
        live_channel* const live = each.live_for_writer.load(std::memory_order_acquire);
        if (live != nullptr) {
            while (live->look()) any = true;
            waits = waits || live->is_waiting();
        }
    }
    if (phase == communicator::phase::ended && !waits) end(each);
    return any;
}

/// Whether the slot was in use and is free now.
bool writer::take(communicator& of, slot& next)
{
    const slot_state state = next.state.load(std::memory_order_acquire);
    if (state != slot_state::in_flight && state != slot_state::dropped) return false;
    const cudaError_t code = cudaEventQuery(next.done);
    if (code == cudaErrorNotReady) {
        collprobe::cuda::detail::forget(code);
        return false;
    }
    if (code != cudaSuccess) {
        collprobe::cuda::detail::forget(code);
        ++lost_;
        of.skipped[static_cast<std::size_t>(skip_reason::failed)].add();
    } else if (state == slot_state::in_flight) {
        write_call(of, next);
        tell_nonfinite(of, next);
    }
    next.state.store(slot_state::free, std::memory_order_release);
    return true;
}

collprobe::run_record writer::run_of(const communicator& of, const std::string& device) const
{
    collprobe::run_record run = process_;
    run.communicator = of.name().empty() ? collprobe::detail::hexadecimal(of.key()) : of.name();
    run.communicator_id = collprobe::detail::hexadecimal(of.key());
    run.rank = of.rank();
    run.ranks = of.ranks();
    run.device = device;
    return run;
}

void writer::begin(communicator& of)
{
    of.writing = {};
    of.writing.generation = of.generation();
    of.writing.is_begun = true;
    of.writing.next_coverage_ns = now_ns() + coverage_period_ns;
    if (of.device() >= 0) of.writing.uuid = uuid_of(of.device());
    report::detail::json_writer json(lines_);
    begin_line(json, "comm").key("comm").bits(of.key()).key("name").text(of.name()).key("parent");
    if (of.parent() != 0) json.bits(of.parent());
    else json.index(-1);
    json.key("writer").index(of.rank()).key("ranks").index(of.ranks());
    json.key("global_rank").index(process_.global_rank).key("device").text(of.writing.uuid);
    json.key("bins").integer(of.memory() != nullptr ? of.memory()->layout.bins : 0);
    json.key("sketch_seed").bits(sketch_seed);
    json.key("device_bytes").integer(of.memory() != nullptr ? of.memory()->device_bytes() : 0);
    json.key("nccl").text(of.nccl() != nullptr && of.nccl()->path != nullptr ? of.nccl()->path : "");
    json.key("time_us").integer(of.unix_us()).close('}');
    lines_ += '\n';
}

void writer::end(communicator& of)
{
    if (live_channel* const live = of.live_for_writer.load(std::memory_order_acquire)) live->close();
    if (of.is_known()) {
        write_coverage(of);
        report::detail::json_writer json(lines_);
        begin_line(json, "comm_end").key("comm").bits(of.key()).key("writer").index(of.rank());
        json.key("how").text(name_of_end(of.how_ended())).key("calls").integer(of.calls.get());
        json.key("time_us").integer(unix_us()).close('}');
        lines_ += '\n';
        flush();
    }
    of.state.store(communicator::phase::written, std::memory_order_release);
}

void writer::write_call(communicator& of, const slot& done)
{
    const call_facts& facts = done.facts;
    const rank_measurement numbers = measured(done);
    const double read_ns
        = (facts.has_input ? collprobe::nanoseconds_between(numbers.input_begun, numbers.input_done) : 0)
        + (facts.has_result ? collprobe::nanoseconds_between(numbers.result_begun, numbers.result_done) : 0);
    if (read_ns > 0) of.probe_ns.fetch_add(static_cast<std::uint64_t>(read_ns), std::memory_order_relaxed);
    const std::uint64_t elements
        = (facts.has_input ? facts.count : 0) + (facts.has_result ? facts.result_count : 0);
    of.finished_bytes.fetch_add(
        elements * static_cast<std::uint64_t>(collprobe::bytes_of(facts.type)), std::memory_order_relaxed);
    of.finished_probes.fetch_add(1, std::memory_order_relaxed);
    if (!file_) return;
    report::detail::json_writer json(lines_);
    begin_line(json, "call").key("comm").bits(of.key()).key("writer").index(of.rank());
    json.key("collective_seq_id").integer(facts.sequence).key("step").integer(facts.place.step);
    json.key("bucket").integer(facts.place.bucket).key("step_source").text(name(facts.place.source));
    json.key("call").text(name(facts.call)).key("type").text(collprobe::name(facts.type));
    if (facts.reduces()) {
        json.key("reduction").text(name(facts.operation));
        if (collprobe::is_nan(facts.scale)) json.key("scale").index(-1);
        else if (facts.scale < 1 || facts.scale > 1) json.key("scale").number(facts.scale);
    }
    json.key("input_sizes")
        .open('[')
        .element()
        .open('[')
        .element()
        .integer(facts.count)
        .close(']')
        .close(']');
    json.key("output_sizes")
        .open('[')
        .element()
        .open('[')
        .element()
        .integer(facts.result_count)
        .close(']')
        .close(']');
    json.key("in_place").boolean(facts.in_place);
    json.key("has_input").boolean(facts.has_input).key("has_result").boolean(facts.has_result);
    if (facts.has_input) {
        json.key("nonfinite")
            .integer(numbers.entry.input.nonfinite())
            .key("input_norm")
            .number(numbers.entry.input.l2());
    }
    if (facts.has_result) {
        if (const auto& result = numbers.entry.result; collprobe_preload::has_statistics(facts.type)) {
            json.key("result_norm")
                .number(result.nonfinite != 0
                        ? collprobe::detail::not_a_number()
                        : collprobe::detail::square_root(result.sum_of_squares));
        }
        json.key("digest").bits(numbers.entry.result.digest);
    }
    std::string encoded;
    append_base64(encoded, reinterpret_cast<const unsigned char*>(&numbers), sizeof numbers);
    json.key("message").text(encoded);
    if (facts.has_sketch) {
        encoded.clear();
        append_base64(encoded, done.on_host + sizeof(rank_measurement),
            of.memory()->layout.bytes() - sizeof(rank_measurement));
        json.key("sketch").text(encoded);
    }
    json.key("time_us").integer(facts.unix_us).key("records_dropped").integer(lost_).close('}');
    lines_ += '\n';
}

/// What one rank alone can tell at once: a value in its input that is not finite.
void writer::tell_nonfinite(const communicator& of, const slot& done)
{
    const call_facts& facts = done.facts;
    if (!facts.has_input) return;
    const collprobe::statistics& input = rank_call_layout::measurement(done.on_host).entry.input;
    if (input.nonfinite() == 0) return;
    const std::string name = name_of(facts);
    collprobe::finding raised;
    raised.step = facts.place.step;
    raised.call = static_cast<int>(facts.place.bucket);
    raised.what = collprobe::finding_kind::non_finite;
    raised.where = collprobe::damage::input;
    raised.ranks = {of.rank()};
    raised.statistic = static_cast<double>(input.nonfinite());
    raised.action = collprobe::advice::skip;
    raised.site = {};
    raised.site.name = name.c_str();
    const collprobe::run_record run = run_of(of, of.writing.uuid);
    const collprobe::record_context context{run, report::detail::unix_ns(), lost_};
    lines_ += report::json_line(context, raised);
    if (options_.log == settings::log_kind::off || told_alarms_ > most_told_alarms) return;
    if (++told_alarms_ > most_told_alarms) return say("more such alarms are in '" + path_ + "'");
    say("rank " + std::to_string(of.rank()) + " of communicator " + run.communicator
        + (process_.global_rank >= 0 ? " (rank " + std::to_string(process_.global_rank) + " of the job)" : "")
        + ", step " + std::to_string(facts.place.step) + ", " + name + ": "
        + std::to_string(input.nonfinite()) + " of " + std::to_string(input.count)
        + " elements that it sends are NaN or infinite, the first at index "
        + std::to_string(input.first_nonfinite));
}

void writer::write_coverage(const communicator& of)
{
    if (!file_) return;
    report::detail::json_writer json(lines_);
    begin_line(json, "coverage").key("comm").bits(of.key()).key("writer").index(of.rank());
    json.key("calls").integer(of.calls.get()).key("probed").integer(of.probed.get()).key("skipped").open('{');
    for (std::size_t i = 0; i < skip_reasons; ++i) {
        if (of.skipped[i].get() != 0)
            json.key(name(static_cast<skip_reason>(i))).integer(of.skipped[i].get());
    }
    json.close('}').key("transfers").integer(of.transfers.get()).key("windows").integer(of.windows.get());
    json.key("step").integer(of.step.get()).key("every").integer(of.every.get());
    json.key("share_predicted").number(of.share_predicted.load(std::memory_order_relaxed));
    json.key("share_measured").number(of.share_measured.load(std::memory_order_relaxed));
    json.key("time_us").integer(unix_us()).close('}');
    lines_ += '\n';
}

/// "every=8", "every=auto", or "off".
void writer::read_control_file()
{
    if (options_.control_file.empty()) return;
    const int file = ::open(options_.control_file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return; // it may come later
    char text[64] = "";
    const ssize_t length = ::read(file, text, sizeof text - 1);
    ::close(file);
    std::string_view order(text, length < 0 ? 0 : static_cast<std::size_t>(length));
    while (!order.empty() && (order.back() == '\n' || order.back() == ' ')) order.remove_suffix(1);
    if (order == last_order_) return;
    last_order_ = order;
    const std::optional<std::uint64_t> every = operators_order(order);
    if (!every)
        return say("'" + options_.control_file + "' is not obeyed: it says none of every=NUMBER (1 to 1e9), every=auto and off");
    operator_choice& choice = operator_choice::instance();
    choice.every.store(*every, std::memory_order_relaxed);
    choice.serial.fetch_add(1, std::memory_order_release);
}

void writer::flush() noexcept
{
    if (lines_.empty()) return;
    try {
        if (file_) file_->append(lines_);
    } catch (const std::exception& problem) {
        say(std::string("nothing is written any more: ") + problem.what());
        file_.reset();
    }
    lines_.clear();
}

} // namespace collprobe_preload

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/step/detail/step_block.hpp>
#include <collprobe/step/detail/summary.hpp>
#include <collprobe/step/detail/write_message.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The exchange of the ranks' messages of a step, which makes the step's report on the device. There is one block for
/// it, and the means of a summary's last step: exchanges run one after the other.
template <class Device>
class report_exchange {
public:
    using stream_ref = typename Device::stream_ref;
    using bytes = typename Device::template buffer<unsigned char>;

    report_exchange(const step_report::shape& form, std::uint64_t room, call_site where)
        : form_(form),
          report_(zeroed<Device>(step_report::room_bytes(form, room), where)), // else it may hold a report of another
          references_(zeroed<Device>(
              form.mode == report_mode::summary ? step_report::reference_bytes(room) : 0, where)), // the bits of 0.0
          totals_(form.total_bytes()) {}

    const unsigned char* block() const noexcept { return report_.data(); }
    step_report report(const step_block<Device>& step) noexcept { return report_of(form_, step, report_.data()); }
    /// Makes room for the report of so many calls, behind all exchanges on `stream`. Work may use `left`.
    void make_room(std::uint64_t room, std::vector<bytes>& left, stream_ref stream, call_site where)
    {
        enlarge(report_, step_report::room_bytes(form_, room), 0, left, stream, where);
        if (form_.mode == report_mode::gather) return;
        enlarge(references_, step_report::reference_bytes(room), references_.size(), left, stream, where);
    }

    /// Completes the message of a step whose calls are done on `stream`, and lets the ranks exchange their messages.
    /// `pack_parts(words)` writes the words of the parts in a summary.
    template <communicator Comm>
    void run(Comm& ranks, const step_block<Device>& step, const write_header& write_header,
        function_ref<void(std::uint64_t*)> pack_parts, stream_ref stream, call_site where);

private:
    /// Makes it so large: the first `kept` bytes stay, the others are zero. What it had goes to `left`; or, if work
    /// could not be enqueued, what it would have got.
    static void enlarge(bytes& memory, std::uint64_t count, std::uint64_t kept, std::vector<bytes>& left,
        stream_ref stream, call_site where)
    {
        if (memory.size() >= count) return;
        left.reserve(left.size() + 1);
        left.push_back(bytes(count));
        const view<unsigned char> larger(left.back());
        Device::zero(stream, larger, where);
        const view<const unsigned char> known(memory.data(), kept);
        if (kept != 0) Device::copy(stream, known, larger.part(0, kept), where);
        std::swap(memory, left.back());
    }

    step_report::shape form_;
    bytes report_; ///< a `step_report`
    bytes references_; ///< as in a `step_report`
    bytes totals_; ///< of this rank
};

template <class Device>
template <communicator Comm>
void report_exchange<Device>::run(Comm& ranks, const step_block<Device>& step, const write_header& write_header,
    function_ref<void(std::uint64_t*)> pack_parts, stream_ref stream, call_site where)
{
    Device::for_each(stream, step.call_count + 1, write_header);
    const view<unsigned char> own = step.message_of(step.call_count);
    if (step.value_count != 0) {
        Device::for_each(stream, step.value_count, write_values{
            step.layout.values(own.data(), step.call_count), step.values.data(), step.read_values.data()});
    }
    const step_report to = report(step);
    if (form_.mode == report_mode::gather) {
        const view<unsigned char> all(to.messages, form_.ranks * own.count());
        ranks.all_gather(view<const unsigned char>(own), all, stream, where);
    } else {
        auto* const reference = reinterpret_cast<double*>(references_.data());
        Device::for_each(stream, 1 + step.call_count + step.value_count,
            pack_summary{step.message(), step.flags.data(), step.call_count, ranks.rank(), ranks.size(), reference,
                to.summary, form_.with_values(step.value_count).layout,
                whole_gradient({step.calls.data(), step.call_count}).call,
                form_.has_totals() ? totals_.data() : nullptr});
        if (form_.has_totals())
            ranks.all_gather(view<const unsigned char>(totals_),
                view<unsigned char>(to.messages, form_.ranks * totals_.size()), stream, where);
        pack_parts(to.part_words);
        if constexpr (Comm::has_collective(collective::all_reduce)) {
            ranks.all_reduce(to.sums, reduction::sum, stream, where);
            ranks.all_reduce(to.keys, reduction::max, stream, where);
        }
        Device::for_each(stream, of_first_call + step.call_count, advance_reference{to.summary, reference});
    }
    if constexpr (Comm::has_collective(collective::all_reduce)) {
        if (step.has_gram)
            ranks.all_reduce(view<const double>(step.gram), to.gram, reduction::sum, stream, where);
    }
}

} // namespace collprobe::detail

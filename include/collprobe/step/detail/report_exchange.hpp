// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/step/detail/captured_steps.hpp>
#include <collprobe/step/detail/step_block.hpp>
#include <collprobe/step/detail/summary.hpp>

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
          totals_(form.has_totals() ? form.totals().bytes(gradient_kinds::most) : 0)
    {
    }

    const unsigned char* block() const noexcept { return report_.data(); }
    step_report report(const step_block<Device>& step) noexcept
    {
        return {report_.data(), form_.with_values(step.value_count), step.call_count, step.kinds.count};
    }
    /// Makes room for the report of so many calls, behind all exchanges on `stream`. Work may use `left`.
    void make_room(std::uint64_t room, std::vector<bytes>& left, stream_ref stream, call_site where)
    {
        enlarge(report_, step_report::room_bytes(form_, room), left, stream, where);
        if (form_.mode == report_mode::gather) return;
        const std::uint64_t known = references_.size();
        if (!enlarge(references_, step_report::reference_bytes(room), left, stream, where)) return;
        Device::copy(stream, view<const unsigned char>(left.back()),
            view<unsigned char>(references_).part(0, known), where);
    }

    /// Completes the message of a step whose calls are done on `stream`, and lets the ranks exchange their messages.
    template <communicator Comm>
    void run(Comm& ranks, const auto& parts, const step_block<Device>& step, const write_header& write_header,
        stream_ref stream, call_site where)
    {
        Device::for_each(stream, step.call_count + 1, write_header);
        const view<unsigned char> own = step.message_of(step.call_count);
        told_value* const values = step.layout.values(own.data(), step.call_count);
        if (step.value_count != 0) {
            Device::for_each(
                stream, step.value_count, write_values{values, step.values.data(), step.read_values.data()});
        }
        const step_report to = report(step);
        if (form_.mode == report_mode::gather) {
            const view<unsigned char> all(to.messages, form_.ranks * own.count());
            ranks.all_gather(view<const unsigned char>(own), all, stream, where);
        } else {
            sum_up(ranks, parts, step, to, values, stream, where);
        }
        if constexpr (Comm::has_collective(collective::all_reduce)) {
            if (step.has_gram)
                ranks.all_reduce(view<const double>(step.gram), to.gram, reduction::sum, stream, where);
        }
    }

private:
    template <communicator Comm>
    void sum_up(Comm& ranks, const auto& parts, const step_block<Device>& step, const step_report& to,
        const told_value* values, stream_ref stream, call_site where)
    {
        auto* const reference = reinterpret_cast<step_reference*>(references_.data());
        const message_layout layout = form_.with_values(step.value_count).layout;
        if (form_.has_totals()) {
            pack_totals pack{step.message(), layout, step.gradients.data(), step.call_count, {}, totals_.data()};
            for (std::uint64_t k = 0; k < step.kinds.count; ++k) pack.kinds[k] = step.kinds.number[k];
            Device::for_each(stream, step.kinds.count + 1, pack);
            const view<const unsigned char> own(totals_.data(), form_.totals().bytes(step.kinds.count));
            ranks.all_gather(own, view(to.messages, form_.ranks * own.count()), stream, where);
        }
        Device::for_each(stream, step.call_count + 1,
            pack_summary{step.message(), step.gradients.data(), step.call_count, ranks.rank(), ranks.size(),
                reference, to.summary, layout});
        if (step.value_count != 0)
            Device::for_each(stream, step.value_count, pack_values{values, ranks.rank(), to.told_keys});
        parts.pack(step, to.part_words, [&](const auto& body) { Device::for_each(stream, step.call_count, body); });
        if constexpr (Comm::has_collective(collective::all_reduce)) {
            ranks.all_reduce(to.sums, reduction::sum, stream, where);
            ranks.all_reduce(to.keys, reduction::max, stream, where);
        }
        Device::for_each(stream, step.call_count + 1, advance_reference{to.summary, reference});
    }
    /// False if it is large enough. Else the one before is the last of `left`, and this one is zero.
    static bool enlarge(
        bytes& memory, std::uint64_t count, std::vector<bytes>& left, stream_ref stream, call_site where)
    {
        if (memory.size() >= count) return false;
        left.reserve(left.size() + 1);
        bytes larger(count);
        left.push_back(std::exchange(memory, std::move(larger)));
        Device::zero(stream, view<unsigned char>(memory), where);
        return true;
    }

    step_report::shape form_;
    bytes report_; ///< a `step_report`
    bytes references_; ///< as in a `step_report`
    bytes totals_; ///< of this rank
};

} // namespace collprobe::detail

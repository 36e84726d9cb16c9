// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/step/step_observation.hpp>
#include <collprobe/step/probed.hpp>

#include "../digits/dump.hpp"
#include "device_kernels.hpp"
#include "device_memory.hpp"
#include "device_model.hpp"
#include "faults.hpp"
#include "job.hpp"

namespace trainer {

/// `rank_trainer` on the communicator's device, which must be current: weights, gradients and loss never
/// leave it, except to be dumped or damaged. Streams are used as in a trainer that overlaps: backward on
/// one, all-reduces on another.
template <class Wire, class Communicator>
class device_trainer {
public:
    device_trainer(const job& work, Communicator comm)
        : job_(work),
          model_(work.widths(), work.weights_seed(), work.given.dropout, work.given.batch),
          skipped_(1),
          damaged_(1),
          // Without times, so that a run on a busy machine has the same records; a trace needs them.
          comm_(std::move(comm), {.direction = collprobe::direction_mode::exact, .times = !work.given.files.trace.empty()})
    {
        for (std::size_t bucket = 0; bucket < model_.layers(); ++bucket) {
            const std::uint64_t count = model_.parameters(layer_of(bucket)).count();
            send_.emplace_back(count);
            receive_.emplace_back(count);
            velocity_.emplace_back(count);
            device::fill(compute_, collprobe::view<float>(velocity_.back()), 0.0f);
        }
        device::fill(compute_, collprobe::view<std::uint64_t>(skipped_), 0);
        device::fill(compute_, collprobe::view<std::uint32_t>(damaged_), 0);
        compute_.synchronize();
    }

    /// One step of stochastic gradient descent: the same update on every rank.
    void step(std::uint64_t number)
    {
        job_.load(comm_.rank(), comm_.size(), number, batch_);
        const double* const loss
            = model_.forward(batch_.inputs, batch_.labels, batch_.dropout_seeds, compute_);
        model_.backward(compute_, [&](std::size_t layer) { send(bucket_of(layer), number); });
        comm_.expect_distinct("samples", batch_.sample_digest);
        comm_.end_step(number, {.loss = loss}, communication_);
        reduced_.record(communication_);
        compute_.wait(reduced_);
        update();
        dump(number);
        // The probes copy the last record to the host in front of this: it will be polled.
        compute_.synchronize();
    }

    /// The next finished step as all ranks know it; false if there is none yet.
    bool poll(collprobe::step_record& out) { return comm_.poll(out); }

    double test_accuracy() { return model_.accuracy(job_.data.test.inputs, job_.data.test.labels, compute_); }
    /// Updates left out because an averaged gradient was not finite.
    std::uint64_t skipped_updates()
    {
        return download<device>(collprobe::view<const std::uint64_t>(skipped_), compute_)[0];
    }
    /// Of all weights: equal on all ranks, or something is wrong.
    std::uint64_t weights_digest()
    {
        std::uint64_t combined = 0;
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
            const std::vector<float> weights
                = download<device>(collprobe::view<const float>(model_.parameters(layer)), compute_);
            combined = derive(combined, collprobe::digest(collprobe::view<const float>(weights)));
        }
        return combined;
    }

private:
    using device = typename Communicator::device;
    template <class T>
    using buffers = std::vector<typename device::template buffer<T>>;

    /// Hands a layer's gradient to the all-reduce, after what a fault makes of it.
    void send(std::size_t bucket, std::uint64_t step)
    {
        const fault* const hit = job_.fault_in(comm_.rank(), step, bucket);
        const collprobe::view<const float> gradient = model_.gradient(layer_of(bucket));
        const collprobe::view<Wire> to(send_[bucket]);
        if (hit != nullptr && hit->kind != fault_kind::stale) {
            std::vector<float> staging = download<device>(gradient, compute_);
            damage(*hit, step, staging, job_.fault_seed(bucket));
            const std::vector<Wire> narrow = [&] {
                std::vector<Wire> values;
                for (const float value : staging) values.push_back(static_cast<Wire>(value));
                return values;
            }();
            upload<device, Wire>(narrow, to, compute_);
        } else if (hit == nullptr) { // a stale buffer is what nobody wrote to
            device::for_each(compute_, gradient.count(), kernels::convert<Wire>{gradient.data(), to.data()});
        }
        ready_.record(compute_);
        communication_.wait(ready_);
        comm_.all_reduce(collprobe::view<const Wire>(to), collprobe::view<Wire>(receive_[bucket]),
            collprobe::reduction::average, communication_);
    }

    void dump(std::uint64_t step)
    {
        if (!job_.dumps(step)) return;
        std::vector<Wire> whole;
        for (const auto& bucket : send_) {
            const std::vector<Wire> part = download<device>(collprobe::view<const Wire>(bucket), compute_);
            whole.insert(whole.end(), part.begin(), part.end());
        }
        write_gradient(gradient_file(job_.dump_folder, step, comm_.rank()), whole);
    }

    /// SGD with momentum. An average that is not finite is left out, as loss scaling does: all ranks
    /// received the same bits, so all of them leave it out.
    void update()
    {
        for (const auto& bucket : receive_) {
            device::for_each(
                compute_, bucket.size(), kernels::look_for_damage<Wire>{bucket.data(), damaged_.data()});
        }
        const auto rate = static_cast<float>(job_.given.learning_rate);
        const auto momentum = static_cast<float>(job_.given.momentum);
        for (std::size_t bucket = 0; bucket < receive_.size(); ++bucket) {
            device::for_each(compute_, receive_[bucket].size(),
                kernels::update<Wire>{receive_[bucket].data(), velocity_[bucket].data(),
                    model_.parameters(layer_of(bucket)).data(), rate, momentum, damaged_.data()});
        }
        device::for_each(compute_, 1, kernels::count_damage{damaged_.data(), skipped_.data()});
    }

    const job& job_;
    step_batch batch_;
    device_mlp<device> model_;
    buffers<Wire> send_; // a buffer per bucket, as the next two
    buffers<Wire> receive_;
    buffers<float> velocity_;
    typename device::template buffer<std::uint64_t> skipped_;
    typename device::template buffer<std::uint32_t> damaged_;
    // Behind the buffers, so that they are gone before; the probes wait for them in turn.
    typename device::event ready_;
    typename device::event reduced_;
    typename device::stream compute_;
    typename device::stream communication_;
    collprobe::probed<Communicator> comm_;
};

} // namespace trainer

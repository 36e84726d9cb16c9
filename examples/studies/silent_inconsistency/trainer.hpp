// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/step/probed.hpp>

#include "../digits/dump.hpp"
#include "../digits/model.hpp"
#include "faults.hpp"
#include "job.hpp"

namespace trainer {

/// One rank of a data-parallel training run on the CPU. `Wire` is the element type that gradients travel
/// as; `device_trainer` is its like for any device.
///
/// Every all-reduce starts as soon as its layer is ready, out of place, so that the probes see each
/// rank's own gradient.
template <class Wire, class Communicator>
class rank_trainer {
public:
    rank_trainer(const job& work, Communicator comm)
        : job_(work),
          model_(work.widths(), work.weights_seed(), work.given.dropout),
          // Without times, so that a run on a busy machine has the same records; a trace needs them.
          comm_(std::move(comm), {.direction = collprobe::direction_mode::exact, .times = !work.given.files.trace.empty()})
    {
        for (std::size_t bucket = 0; bucket < model_.layers(); ++bucket) {
            const std::size_t count = model_.parameters(layer_of(bucket)).size();
            send_.emplace_back(count);
            receive_.emplace_back(count);
            velocity_.emplace_back(count);
        }
    }

    /// One step of stochastic gradient descent: the same update on every rank.
    void step(std::uint64_t number)
    {
        job_.load(comm_.rank(), comm_.size(), number, batch_);
        const double loss = model_.forward(batch_.inputs, batch_.labels, batch_.dropout_seeds);
        model_.backward([&](std::size_t layer) { send(bucket_of(layer), number); });
        comm_.expect_distinct("samples", batch_.sample_digest);
        comm_.end_step(number, {.loss = loss}, stream_);
        dump(number);
        stream_.synchronize();
        update();
    }

    /// The next finished step as all ranks know it; false if there is none yet.
    bool poll(collprobe::step_record& out) { return comm_.poll(out); }

    double test_accuracy() { return model_.accuracy(job_.data.test.inputs, job_.data.test.labels); }
    /// Updates left out because an averaged gradient was not finite.
    std::uint64_t skipped_updates() const { return skipped_updates_; }
    /// Of all weights: equal on all ranks, or something is wrong.
    std::uint64_t weights_digest()
    {
        std::uint64_t combined = 0;
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
            combined
                = derive(combined, collprobe::digest(collprobe::view<const float>(model_.parameters(layer))));
        }
        return combined;
    }

private:
    /// Hands a layer's gradient to the all-reduce, after what a fault makes of it.
    void send(std::size_t bucket, std::uint64_t step)
    {
        const fault* const hit = job_.fault_in(comm_.rank(), step, bucket);
        if (hit == nullptr || hit->kind != fault_kind::stale) { // a stale buffer is what nobody wrote to
            const auto gradient = model_.gradient(layer_of(bucket));
            staging_.assign(gradient.begin(), gradient.end());
            if (hit != nullptr) damage(*hit, step, staging_, job_.fault_seed(bucket));
            for (std::size_t i = 0; i < staging_.size(); ++i)
                send_[bucket][i] = static_cast<Wire>(staging_[i]);
        }
        comm_.all_reduce(collprobe::view<const Wire>(send_[bucket]), collprobe::view<Wire>(receive_[bucket]),
            collprobe::reduction::average, stream_);
    }

    void dump(std::uint64_t step)
    {
        if (!job_.dumps(step)) return;
        std::vector<Wire> whole;
        for (const auto& bucket : send_) whole.insert(whole.end(), bucket.begin(), bucket.end());
        write_gradient(gradient_file(job_.dump_folder, step, comm_.rank()), whole);
    }

    /// SGD with momentum. An average that is not finite is left out, as loss scaling does: all ranks
    /// received the same bits, so all of them leave it out.
    void update()
    {
        for (const auto& bucket : receive_) {
            for (const Wire value : bucket) {
                if (collprobe::is_finite(value)) continue;
                ++skipped_updates_;
                return;
            }
        }
        const auto rate = static_cast<float>(job_.given.learning_rate);
        const auto momentum = static_cast<float>(job_.given.momentum);
        for (std::size_t bucket = 0; bucket < receive_.size(); ++bucket) {
            const auto weights = model_.parameters(layer_of(bucket));
            for (std::size_t i = 0; i < weights.size(); ++i) {
                float& velocity = velocity_[bucket][i];
                velocity = momentum * velocity + static_cast<float>(receive_[bucket][i]);
                weights[i] -= rate * velocity;
            }
        }
    }

    const job& job_;
    mlp<float> model_;
    step_batch batch_;
    std::vector<float> staging_;
    std::vector<std::vector<Wire>> send_; // [bucket][element], as the next two
    std::vector<std::vector<Wire>> receive_;
    std::vector<std::vector<float>> velocity_;
    std::uint64_t skipped_updates_ = 0;
    // Behind the buffers, so that it is gone before they are; the probes wait for it in turn.
    collprobe::host::stream stream_;
    collprobe::probed<Communicator> comm_;
};

} // namespace trainer

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/random.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <collprobe/comm/bootstrap_job.hpp>
#include <collprobe/comm/detail/bootstrap_hash.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

/// The largest value that an exchange carries.
inline constexpr std::uint64_t max_value_bytes = std::uint64_t{64} * 1024;
/// The longest text of a failure.
inline constexpr std::uint64_t max_text_bytes = 4096;

using bytes = std::vector<std::uint8_t>;

/// One call of an exchange: what its messages and its errors need to know.
struct exchange_call {
    const job& of;
    view<std::uint8_t> value;
    const char* name; ///< the public function
    call_site where;

    error failure(status code, const std::string& message, std::vector<int> culprits = {}) const
    {
        return {code, message,
            {.call = name, .rank = of.rank, .size = of.size, .communicator = {}, .where = where},
            std::move(culprits)};
    }
};

/// Random bytes that no earlier exchange has seen: an answer to them cannot be a recorded one.
inline hash fresh_nonce(const exchange_call& call)
{
    hash nonce;
    if (getentropy(nonce.data(), nonce.size()) != 0) {
        throw call.failure(status::unsupported, "the system has no random numbers (getentropy failed)");
    }
    return nonce;
}

inline void put(bytes& out, const void* data, std::size_t count)
{
    if (count == 0) return;
    out.resize(out.size() + count);
    std::memcpy(out.data() + out.size() - count, data, count);
}
inline void put(bytes& out, const hash& data) { put(out, data.data(), data.size()); }
/// Little-endian, on every machine.
inline void put_number(bytes& out, std::uint64_t value, int width)
{
    for (int i = 0; i < width; ++i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

/// Takes a message apart; what is read behind its end is zero and makes `ended()` false.
class reader {
public:
    reader(const std::uint8_t* data, std::size_t count) : data_(data), left_(count) {}

    std::uint64_t number(int width)
    {
        std::uint64_t value = 0;
        std::uint8_t part[8] = {};
        take(part, static_cast<std::size_t>(width));
        for (int i = 0; i < width; ++i) value |= std::uint64_t{part[i]} << (8 * i);
        return value;
    }
    hash nonce()
    {
        hash value{};
        take(value.data(), value.size());
        return value;
    }
    void take(void* to, std::size_t count)
    {
        if (count > left_) {
            overrun_ = true;
            return;
        }
        if (count != 0) std::memcpy(to, data_, count);
        data_ += count;
        left_ -= count;
    }
    const std::uint8_t* here() const { return data_; }
    std::size_t left() const { return left_; }
    bool good() const { return !overrun_; }
    bool ended() const { return good() && left_ == 0; }

private:
    const std::uint8_t* data_;
    std::size_t left_;
    bool overrun_ = false;
};

/// Computes what proves that a message was written by a member of the job, for this conversation: it
/// covers both sides' nonces, so that neither an earlier message nor one of another conversation fits.
class prover {
public:
    explicit prover(const job& of)
    {
        hmac derive(of.token);
        static constexpr std::string_view purpose = "collprobe bootstrap 1";
        derive.add(purpose.data(), purpose.size());
        const hash key = derive.finish();
        key_.assign(reinterpret_cast<const char*>(key.data()), key.size());
    }

    /// `label` keeps the kinds of messages apart.
    hash operator()(std::string_view label, const hash& root_nonce, const hash& peer_nonce,
        const std::uint8_t* message = nullptr, std::size_t count = 0) const
    {
        hmac proof(key_);
        const auto length = static_cast<std::uint8_t>(label.size());
        proof.add(&length, 1);
        proof.add(label.data(), label.size());
        proof.add(root_nonce.data(), root_nonce.size());
        proof.add(peer_nonce.data(), peer_nonce.size());
        if (count != 0) proof.add(message, count);
        return proof.finish();
    }

private:
    std::string key_;
};

/// "2, 5 and 7"; the first of them only, where there are many.
inline std::string list_ranks(const std::vector<int>& ranks)
{
    constexpr std::size_t shown = 16;
    const std::size_t count = ranks.size() > shown + 1 ? shown : ranks.size();
    std::string text;
    for (std::size_t i = 0; i < count; ++i) {
        if (i != 0) text += i + 1 == ranks.size() ? " and " : ", ";
        text += std::to_string(ranks[i]);
    }
    if (count < ranks.size()) text += " and " + std::to_string(ranks.size() - count) + " more";
    return text;
}
/// "rank 2", "ranks 2 and 3"
inline std::string name_ranks(const std::vector<int>& ranks)
{
    return (ranks.size() == 1 ? "rank " : "ranks ") + list_ranks(ranks);
}

/// A failure as rank 0 tells it to its peers: they throw what it throws.
inline bytes pack_failure(status code, const std::vector<int>& culprits, const std::string& text)
{
    bytes packed;
    put_number(packed, static_cast<std::uint64_t>(code), 4);
    put_number(packed, culprits.size(), 4);
    for (const int rank : culprits) put_number(packed, static_cast<std::uint64_t>(rank), 4);
    put(packed, text.data(), text.size() < max_text_bytes ? text.size() : max_text_bytes);
    return packed;
}

inline error unpack_failure(const exchange_call& call, reader packed)
{
    const std::uint64_t code = packed.number(4);
    const std::uint64_t count = packed.number(4);
    std::vector<int> culprits;
    for (std::uint64_t i = 0; i < count && packed.good(); ++i) {
        culprits.push_back(static_cast<int>(packed.number(4)));
    }
    std::string text(packed.left(), '\0');
    packed.take(text.data(), text.size());
    const bool known = code <= static_cast<std::uint64_t>(status::unsupported);
    return call.failure(known ? static_cast<status>(code) : status::peer_failure, "rank 0 reports: " + text,
        std::move(culprits));
}

/// Refuses what no exchange can do, and says whether there is anything to exchange at all.
inline bool check_exchange(const exchange_call& call)
{
    const job& of = call.of;
    if (of.size < 1 || of.size > max_size || of.rank < 0 || of.rank >= of.size) {
        throw call.failure(status::invalid_argument,
            "a job of rank " + std::to_string(of.rank) + " of " + std::to_string(of.size)
                + ": expected 0 <= rank < size <= " + std::to_string(max_size));
    }
    if (call.value.data() == nullptr && !call.value.empty()) {
        throw call.failure(status::invalid_argument, "value is null");
    }
    if (call.value.count() > max_value_bytes) {
        throw call.failure(status::invalid_argument,
            "a value of " + std::to_string(call.value.count()) + " bytes: expected at most "
                + std::to_string(max_value_bytes));
    }
    return of.size > 1;
}

} // namespace collprobe::bootstrap::detail

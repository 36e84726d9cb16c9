// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Published vectors: FIPS 180-4 examples for SHA-256, RFC 4231 for HMAC-SHA-256.
#include <doctest/doctest.h>

#include <string>

#include <collprobe/comm/detail/bootstrap_hash.hpp>

using namespace collprobe::bootstrap;

namespace {

std::string hex(const detail::hash& value)
{
    std::string text;
    for (const std::uint8_t byte : value) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

std::string sha256_of(const std::string& message)
{
    detail::sha256 sha;
    sha.add(message.data(), message.size());
    return hex(sha.finish());
}

std::string hmac_of(const std::string& key, const std::string& message)
{
    detail::hmac mac(key);
    mac.add(message.data(), message.size());
    return hex(mac.finish());
}

} // namespace

TEST_CASE("SHA-256 of the published messages")
{
    CHECK(sha256_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(sha256_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")
        == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(sha256_of(std::string(1'000'000, 'a'))
        == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on how a message is cut, at any length around a block")
{
    for (std::size_t length = 50; length < 140; ++length) {
        const std::string message(length, 'x');
        detail::sha256 parts;
        for (std::size_t i = 0; i < length; i += 7) {
            const std::string part = message.substr(i, 7);
            parts.add(part.data(), part.size());
        }
        CHECK(hex(parts.finish()) == sha256_of(message));
    }
}

TEST_CASE("HMAC-SHA-256 of RFC 4231")
{
    CHECK(hmac_of(std::string(20, '\x0b'), "Hi There")
        == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(hmac_of("Jefe", "what do ya want for nothing?")
        == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK(hmac_of(std::string(20, '\xaa'), std::string(50, '\xdd'))
        == "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    CHECK(hmac_of(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")
        == "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    CHECK(hmac_of(std::string(131, '\xaa'),
              "This is a test using a larger than block-size key and a larger than block-size data. "
              "The key needs to be hashed before being used by the HMAC algorithm.")
        == "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("hashes compare equal only if every byte is")
{
    detail::hash one{};
    CHECK(detail::equal_in_constant_time(one, detail::hash{}));
    for (std::size_t i = 0; i < one.size(); ++i) {
        detail::hash other = one;
        other[i] ^= 1;
        CHECK_FALSE(detail::equal_in_constant_time(one, other));
    }
}

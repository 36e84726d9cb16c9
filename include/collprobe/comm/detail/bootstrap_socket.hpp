// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/detail/wait.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

using collprobe::detail::deadline;

/// Owns a file descriptor.
class descriptor {
public:
    descriptor() = default;
    explicit descriptor(int number) noexcept : number_(number) {}
    descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    descriptor& operator=(descriptor&& other) noexcept
    {
        if (this != &other) {
            close();
            number_ = std::exchange(other.number_, -1);
        }
        return *this;
    }
    ~descriptor() { close(); }

    int get() const noexcept { return number_; }
    bool open() const noexcept { return number_ >= 0; }
    void close() noexcept
    {
        if (number_ >= 0) ::close(std::exchange(number_, -1));
    }

private:
    int number_ = -1;
};

/// "connection refused"; not `strerror`, which threads share.
inline std::string describe_errno(int code)
{
    switch (code) {
    case ECONNREFUSED: return "connection refused";
    case ECONNRESET:
    case EPIPE: return "connection reset";
    case ETIMEDOUT: return "no answer";
    case EHOSTUNREACH: return "no route to the host";
    case ENETUNREACH: return "network unreachable";
    case EADDRINUSE: return "address already in use";
    case EADDRNOTAVAIL: return "address not available";
    case EAFNOSUPPORT: return "address family not supported";
    case EACCES: return "permission denied";
    case EPERM: return "operation not permitted";
    case EMFILE: return "too many open files in this process";
    case ENFILE: return "too many open files in the system";
    case ENOENT: return "no such file or directory";
    case ENOTDIR: return "not a directory";
    case ENOSPC: return "no space left";
    case EDQUOT: return "quota exceeded";
    case EROFS: return "read-only file system";
    case ESTALE: return "stale file handle";
    case EIO: return "input or output error";
    default: return "errno " + std::to_string(code);
    }
}

/// For `poll`: rounded up, so that it does not spin through the last millisecond.
inline int poll_ms(deadline until) noexcept
{
    if (until.is_never()) return -1;
    const std::int64_t ms = (until.remaining_ns() + 999'999) / 1'000'000;
    return ms < INT_MAX ? static_cast<int>(ms) : INT_MAX;
}

/// Waits until one of `events` or an error is there; false if the deadline came first.
inline bool wait_for(int number, short events, deadline until) noexcept
{
    for (;;) {
        pollfd one{number, events, 0};
        const int ready = poll(&one, 1, poll_ms(until));
        if (ready > 0) return true;
        if (ready == 0 && until.passed()) return false;
        if (ready < 0 && errno != EINTR && errno != EAGAIN) return true; // the next call on it says why
    }
}

struct address {
    sockaddr_storage storage{};
    socklen_t length = 0;

    const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
    sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
    int family() const noexcept { return storage.ss_family; }
    bool operator==(const address& other) const noexcept
    {
        return length == other.length && std::memcmp(&storage, &other.storage, length) == 0;
    }
    /// "10.0.0.1:29501" or "[fe80::1]:29501"
    std::string text() const
    {
        char host[NI_MAXHOST] = "?";
        char port[NI_MAXSERV] = "?";
        getnameinfo(get(), length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
        const bool six = family() == AF_INET6;
        return (six ? "[" : "") + std::string(host) + (six ? "]:" : ":") + port;
    }
};

inline address peer_address(int socket) noexcept
{
    address result;
    result.length = sizeof result.storage;
    if (getpeername(socket, result.get(), &result.length) != 0) result.length = 0;
    return result;
}
inline address own_address(int socket) noexcept
{
    address result;
    result.length = sizeof result.storage;
    if (getsockname(socket, result.get(), &result.length) != 0) result.length = 0;
    return result;
}

/// What a host name stands for. `problem` says why there is nothing.
struct resolved {
    std::vector<address> addresses;
    std::string problem;
};

/// Asks the system's resolver, with its own time-outs. `flags` as for getaddrinfo.
inline resolved resolve(const std::string& host, int port, int flags = 0)
{
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* list = nullptr;
    resolved result;
    const int code
        = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (code != 0) {
        result.problem = gai_strerror(code);
        return result;
    }
    for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
        if (each->ai_addrlen > sizeof(sockaddr_storage)) continue;
        address one;
        std::memcpy(&one.storage, each->ai_addr, each->ai_addrlen);
        one.length = each->ai_addrlen;
        result.addresses.push_back(one);
    }
    freeaddrinfo(list);
    return result;
}

inline bool is_numeric(const std::string& host)
{
    return !resolve(host, 1, AI_NUMERICHOST).addresses.empty();
}

/// A socket that never blocks, is not inherited by programs that this one starts, and does not wait
/// to collect small messages.
inline descriptor open_socket(int family) noexcept
{
    return descriptor(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}
inline void send_at_once(int socket) noexcept
{
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Closes so that the other side gets a reset and no port stays reserved.
inline void close_hard(descriptor& socket) noexcept
{
    const linger none{1, 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    socket.close();
}

enum class transfer { done, blocked, closed };

/// Sends of `count` bytes what goes without waiting; `sent` advances. `closed`: see errno.
inline transfer send_some(int socket, const std::uint8_t* data, std::size_t count, std::size_t& sent) noexcept
{
    while (sent < count) {
        const ssize_t gone = send(socket, data + sent, count - sent, MSG_NOSIGNAL);
        if (gone >= 0) {
            sent += static_cast<std::size_t>(gone);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return transfer::blocked;
        } else if (errno != EINTR) {
            return transfer::closed;
        }
    }
    return transfer::done;
}

/// Receives of `count` bytes what is there; `received` advances, never beyond `count`.
/// `closed` with errno 0: the other side ended the connection in good order.
inline transfer receive_some(
    int socket, std::uint8_t* data, std::size_t count, std::size_t& received) noexcept
{
    while (received < count) {
        const ssize_t come = recv(socket, data + received, count - received, 0);
        if (come > 0) {
            received += static_cast<std::size_t>(come);
        } else if (come == 0) {
            errno = 0;
            return transfer::closed;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return transfer::blocked;
        } else if (errno != EINTR) {
            return transfer::closed;
        }
    }
    return transfer::done;
}

/// The same two, waiting until the deadline (then `blocked`).
inline transfer send_all(int socket, const std::uint8_t* data, std::size_t count, deadline until) noexcept
{
    std::size_t sent = 0;
    for (;;) {
        const transfer now = send_some(socket, data, count, sent);
        if (now != transfer::blocked || !wait_for(socket, POLLOUT, until)) return now;
    }
}
inline transfer receive_all(int socket, std::uint8_t* data, std::size_t count, deadline until) noexcept
{
    std::size_t received = 0;
    for (;;) {
        const transfer now = receive_some(socket, data, count, received);
        if (now != transfer::blocked || !wait_for(socket, POLLIN, until)) return now;
    }
}

/// Lets this process open `needed` files for as long as this lives, as far as its hard limit goes.
class open_file_limit {
public:
    explicit open_file_limit(std::uint64_t needed) noexcept
    {
        if (getrlimit(RLIMIT_NOFILE, &before_) != 0 || before_.rlim_cur >= needed) return;
        now_ = before_;
        now_.rlim_cur = before_.rlim_max < needed ? before_.rlim_max : static_cast<rlim_t>(needed);
        raised_ = now_.rlim_cur > before_.rlim_cur && setrlimit(RLIMIT_NOFILE, &now_) == 0;
    }
    open_file_limit(const open_file_limit&) = delete;
    open_file_limit& operator=(const open_file_limit&) = delete;
    ~open_file_limit()
    {
        rlimit current{};
        if (raised_ && getrlimit(RLIMIT_NOFILE, &current) == 0 && current.rlim_cur == now_.rlim_cur) {
            setrlimit(RLIMIT_NOFILE, &before_);
        }
    }

private:
    rlimit before_{};
    rlimit now_{};
    bool raised_ = false;
};

} // namespace collprobe::bootstrap::detail

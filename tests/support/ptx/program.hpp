// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/ptx/engine.hpp"

/// What the text becomes: functions (parser), then kernels of instructions (decoder).
namespace ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using f32 = float;
using f64 = double;

/// The place of a register in a warp's memory: 32 values side by side, one for each lane. Predicates are
/// bytes.
using slot = u32;
inline constexpr slot none = ~slot{0};

struct warp;
struct instruction;
/// Executes an instruction for the lanes of `mask`, at least one.
using handler = void (*)(warp&, const instruction&, u32 mask);

enum class kind : u8 {
    plain, ///< `run`, then the next instruction
    branch,
    leave,
    barrier, ///< of the block
    warp_sync ///< `run` with all members; `e` is their mask
};

enum class space : u8 { generic, global, shared, local, param };

/// How an access of global memory is ordered and cached.
enum class order : u8 {
    cached, ///< a load through the first-level cache; a plain store
    read_only, ///< `ld.global.nc`: no thread writes there while the kernel runs
    fresh ///< `.cg`, `.cv`, `volatile`, `relaxed`: past the first-level cache
};

struct instruction {
    handler run = nullptr;
    kind what = kind::plain;
    space in = space::generic;
    order how = order::cached;
    u8 address_bytes = 0; ///< width of the address register `a`; 0: the offset alone is the address
    u8 elements = 1; ///< of a vector access
    u8 bytes = 0; ///< of an element in memory
    u8 widths[4] = {}; ///< of registers that may be wider than the type
    u8 mode = 0;
    bool negated = false; ///< the predicate
    slot predicate = none;
    slot d[4] = {none, none, none, none};
    slot a = none, b = none, c = none, e = none;
    u32 target = 0; ///< of a branch
    s64 offset = 0;
    u32 text = 0; ///< index in `kernel::texts`
    u32 line = 0; ///< of the PTX
};

/// Registers that the hardware fills in.
enum class special : u8 {
    tid, ///< of the first dimension, as the next three
    ntid,
    ctaid,
    nctaid,
    parameter_address ///< of the parameters' memory, plus `value`
};

struct block_pool;
/// Blocks that have run wait in it for the next launch of a kernel: their registers hold its constants.
std::shared_ptr<block_pool> make_block_pool();

struct kernel {
    struct constant {
        slot at;
        unsigned width;
        u64 value;
    };
    struct special_register {
        special what;
        slot at;
        u64 value;
    };
    std::string name;
    std::vector<parameter_place> parameters;
    std::size_t parameter_bytes = 0;
    u32 most_threads = 1024;
    u32 register_bytes = 0; ///< of a warp
    u32 local_bytes = 0; ///< of a lane
    u32 shared_bytes = 0; ///< static
    bool has_dynamic = false; ///< dynamic shared memory begins at `dynamic_at`
    std::vector<instruction> code;
    std::vector<std::string> texts;
    std::vector<constant> constants;
    std::vector<special_register> specials;
    std::shared_ptr<block_pool> idle = make_block_pool();
};
inline constexpr u32 dynamic_at = 48 * 1024;

// --- What the parser makes ---

struct parameter {
    std::string name;
    std::size_t bytes = 0, align = 1;
};
struct statement {
    enum kind_of { open, close, label, directive, operation } what;
    std::string text;
    u32 line = 0;
};
struct function {
    std::string name;
    bool is_entry = false;
    bool defined = false;
    u32 most_threads = 1024;
    std::vector<parameter> parameters, results;
    std::vector<statement> body;
};
struct symbol {
    space in = space::global;
    u64 at = 0;
    std::size_t bytes = 0;
    std::size_t align = 1;
    std::string problem = {}; ///< why no kernel can use it
};
struct module {
    std::map<std::string, function> functions;
    std::map<std::string, symbol> symbols;
    std::map<std::string, std::unique_ptr<kernel>> decoded;
};

std::unique_ptr<kernel> decode(module&, const function&);
/// The handler of a form such as `add.rn.f32`; null: it is unknown. Loads, stores and atomics are in the same
/// table.
handler find_handler(const std::string& form);

} // namespace ptx

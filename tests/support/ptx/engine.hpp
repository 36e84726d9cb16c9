// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Executes PTX, which nvcc makes of device code, on the CPU: for tests on machines without a GPU. Registers, local and
/// shared memory hold a pattern before a kernel writes there.
///
/// A warp of 32 lanes executes an instruction at a time. Calls are inlined. An instruction of a form that the engine
/// does not know is refused by name when its kernel is decoded; nothing is guessed.
namespace ptx {

struct module;
struct kernel;

struct dims {
    unsigned x = 1, y = 1, z = 1;
    std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

/// What a GPU or its checking tools would report: where, and why.
struct fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A range of the device's memory; empty if there is none.
struct memory_range {
    std::uint64_t begin = 0, end = 0;
};

/// How blocks, warps and lanes take turns, and what is checked.
struct schedule {
    /// 0: block after block, each warp as far as it comes, all stores visible at once; a kernel whose blocks, or lanes,
    /// wait for each other but by a barrier is then refused when it does not end. Else the seed of a random
    /// schedule, which can be repeated: blocks, warps and diverged lanes take turns; stores reach other blocks late and
    /// in any order, and loads through the first-level cache see old values, as far as the fences allow it.
    std::uint64_t seed = 0;
    unsigned resident_blocks = 8; ///< blocks that take turns
    /// Without a seed: instructions of a warp between two barriers. More are taken for a wait that nothing ends.
    std::uint64_t endless = std::uint64_t{1} << 32;
    /// Reports accesses of two threads to the same shared memory that no barrier orders. Costs about half of the speed.
    bool check = false;
    bool count = false; ///< fills in what `counts` has beyond instructions. Costs about a third of the speed.
    /// The live range of device memory that holds `address`. Null: all addresses are legal.
    memory_range (*find_range)(std::uint64_t address) = nullptr;
};

/// Counted exactly, over all blocks of a launch.
struct counts {
    std::uint64_t warp_instructions = 0;
    std::uint64_t thread_instructions = 0; ///< of active lanes
    // The rest only if `schedule::count` is set.
    std::uint64_t bytes_loaded = 0, bytes_stored = 0; ///< of all lanes, from and to global memory
    std::uint64_t load_sectors = 0, store_sectors = 0; ///< runs of 32 bytes that the warps touch
    std::uint64_t least_load_sectors = 0, least_store_sectors = 0; ///< if the lanes' bytes lay side by side
    std::uint64_t narrow_accesses = 0, narrow_bytes = 0; ///< of lanes, to global memory, of fewer than 16 bytes
    std::uint64_t shared_passes = 0; ///< a pass has one word of each bank
    std::uint64_t least_shared_passes = 0; ///< one for each 128 bytes, or part of them
    unsigned worst_bank_conflict = 0; ///< words of one bank in one pass, if all lanes had one
    std::uint64_t local_accesses = 0; ///< of warps
    counts& operator+=(const counts&);
};

/// Reads the module's outline. Kernels are decoded when they are first asked for.
std::shared_ptr<module> load(std::string text);
/// Null: there is no kernel of this name. Throws `std::runtime_error` naming the first form that is not supported.
const kernel* find_kernel(module&, const std::string& name);

struct parameter_place {
    std::size_t offset, bytes;
};
const std::vector<parameter_place>& parameters(const kernel&);
std::size_t parameter_bytes(const kernel&);
unsigned most_threads(const kernel&); ///< of a block
std::size_t static_shared_bytes(const kernel&);

/// Runs a kernel to its end. `arguments`: the parameters at their places. Throws `fault`.
counts run(const kernel&, dims grid, dims block, std::size_t dynamic_shared, std::span<const unsigned char> arguments,
    const schedule&);

/// For mutations: takes out the instruction number `which`, from 0, of a kernel's text that contains `text`, or puts
/// another in its place. False: there is none. Throws `std::runtime_error` if the other is none.
bool replace(module&, // not the first word of a line: nvcc takes it for a directive
    const std::string& kernel_name, std::string_view text, unsigned which, const std::string& by = {});

} // namespace ptx

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/ptx/program.hpp"

namespace collprobe::testing::decoder_test {
namespace {

const std::string registers = ".reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %d<8>;\n";

/// A kernel of this body, from line 3 on.
std::string kernel_of(const std::string& body)
{
    return ".visible .entry tested(.param .u64 to, .param .u32 n)\n{ " + registers + body + "\nret;\n}\n";
}
/// Throws what the decoder throws.
struct decoded {
    explicit decoded(const std::string& text) : in(ptx::load(text)), of(ptx::find_kernel(*in, "tested"))
    {
        REQUIRE(of != nullptr);
    }
    const ptx::instruction& first() const { return of->code.front(); }

    std::shared_ptr<ptx::module> in;
    const ptx::kernel* of;
};
std::string refusal_of(const std::string& text)
{
    try {
        decoded{text};
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "accepted";
}
/// What the kernel stores into the first words of `to`.
std::vector<unsigned> run(const std::string& text, unsigned n = 0)
{
    std::vector<unsigned> result(8);
    const decoded kernel(text);
    unsigned char arguments[12];
    const auto to = reinterpret_cast<std::uint64_t>(result.data());
    std::memcpy(arguments, &to, sizeof to);
    std::memcpy(arguments + 8, &n, sizeof n);
    ptx::run(*kernel.of, {1}, {1}, 0, arguments, {});
    return result;
}
bool has(const std::vector<ptx::slot>& all, ptx::slot wanted)
{
    return std::find(all.begin(), all.end(), wanted) != all.end();
}

} // namespace

TEST_CASE("what the engine does not know is refused with its text and line and kernel")
{
    const std::string refusal = refusal_of(kernel_of("\nadd.ftz.f32 %f0, %f1, %f2;"));
    CHECK(refusal == "ptx: unsupported instruction: `add.ftz.f32 %f0, %f1, %f2`, line 4, in tested");
    for (const std::string statement : {"mma.sync.aligned.m8n8k4 %f0, %f1, %f2;", "add.s33 %r0, %r1, %r2;",
             "tex.1d %f0;", "cvt.rn.relu.f16.f32 %h0, %f0;",
             "setp.lt.ftz.f32 %p0, %f0, %f1;", "ld.global.v8.u32 %r0, [%d0];",
             "atom.global.add.noftz.f16 %h0, [%d0], %h1;", "fence.proxy.async;", "bar.red.popc.u32 %r0, 0, %p0;",
             "ld.acquire.gpu.global.u32 %r0, [%d0];", "st.release.gpu.global.u32 [%d0], %r0;",
             "atom.acq_rel.gpu.global.add.u32 %r0, [%d0], 1;", "setp.lt.and.s32 %p0, %r0, %r1, %p2;", "mov.u32 %r0, %tid.y;",
             "shfl.down.b32 %r0, %r1, 1, 31;", "cvt.s32.f32 %r0, %f0;", "brx.idx %r0, targets;",
             "mov.u32 %r0, %pm0;"}) {
        CAPTURE(statement);
        CHECK(refusal_of(kernel_of(statement)) != "accepted");
    }
}

TEST_CASE("wrong operands are refused")
{
    CHECK(refusal_of(kernel_of("add.s32 %r0, %r1, %r2;")) == "accepted");
    for (const std::string statement : {"add.s32 %r0, %r1;", "add.s32 %r0, %r1, %r2, %r3;", "add.s32 %r0, %r1, %d0;",
             "add.s32 %r0, %r1, %r8;", "add.s32 5, %r1, %r2;", "add.s32 _, %r1, %r2;", "add.s32 %r0, , %r2;",
             "add.s32 %r0, %r1, nothing;", "bra nowhere;", "@%r0 ret;", "ld.global.u32 %r0, %d0;",
             "ld.global.u64 %r0, [%d0];", "ld.global.v2.u32 {%r0, %d0}, [%d1];", "ld.global.u32 %r0, [%h0];",
             "call missing, ();", "again: again: ret;"}) {
        CAPTURE(statement);
        CHECK(refusal_of(kernel_of(statement)).find(", in tested") != std::string::npos);
    }
    const std::string recursion = ".func f() { call f, (); ret; }\n" + kernel_of("call f, ();");
    CHECK(refusal_of(recursion).find("recursion") != std::string::npos);
    CHECK_THROWS_WITH(ptx::load(".visible .entry tested() {\nret;\n"), "ptx: the text ends in a function in line 3");
}

TEST_CASE("loads and stores and atomics know how they are ordered and cached")
{
    using ptx::order;
    const std::pair<std::string, order> all[] = {{"ld.global.u32 %r0, [%d0];", order::cached},
        {"ld.global.ca.u32 %r0, [%d0];", order::cached}, {"ld.global.cg.u32 %r0, [%d0];", order::fresh},
        {"ld.global.nc.L1::no_allocate.v2.u32 {%r0, %r1}, [%d0];", order::read_only},
        {"ld.volatile.global.u32 %r0, [%d0];", order::fresh}, {"ld.relaxed.gpu.global.u32 %r0, [%d0];", order::fresh},
        {"st.global.u32 [%d0], %r0;", order::cached}, {"st.global.cg.u32 [%d0], %r0;", order::fresh},
        {"atom.global.add.u32 %r0, [%d0], 1;", order::fresh}};
    for (const auto& each : all) {
        CAPTURE(each.first);
        CHECK(static_cast<int>(decoded(kernel_of(each.first)).first().how) == static_cast<int>(each.second));
    }
}

TEST_CASE("an instruction names the registers that it reads and writes without numbers and its predicate")
{
    const auto use_of = [](const std::string& statement) { return decoded(kernel_of(statement)).of->uses.front(); };
    const auto count_of = [&](const std::string& statement) {
        const ptx::register_use use = use_of(statement);
        return std::to_string(use.reads.size()) + " " + std::to_string(use.writes.size());
    };
    CHECK(count_of("mad.lo.s32 %r0, %r1, %r2, %r3;") == "3 1");
    CHECK(count_of("@%p0 add.s32 %r0, %r1, 5;") == "1 1");
    CHECK(count_of("mov.u32 %r0, %tid.x;") == "0 1");
    CHECK(count_of("mov.u64 %d0, to;") == "0 1");
    CHECK(count_of("mov.b64 {%r0, _}, %d0;") == "1 1");
    CHECK(count_of("mov.b64 %d0, {%r0, %r1};") == "2 1");
    CHECK(count_of("setp.lt.s32 %p0, %r0, %r1;") == "2 1");
    CHECK(count_of("ld.global.v4.u32 {%r0, %r1, _, %r3}, [%d0+16];") == "1 3");
    CHECK(count_of("st.global.v2.u32 [%d0], {%r0, 7};") == "2 0");
    CHECK(count_of("atom.global.cas.b32 %r0, [%d0], %r1, %r2;") == "3 1");
    CHECK(count_of("red.global.add.u32 [%d0], %r1;") == "2 0");
    CHECK(count_of("shfl.sync.down.b32 %r0|%p0, %r1, 16, 31, -1;") == "1 2");
    CHECK(count_of("vote.sync.ballot.b32 %r0, !%p0, %r1;") == "2 1");
    CHECK(count_of("bar.sync 0, %r0;") == "1 0");
    CHECK(count_of("add.cc.u32 %r0, %r1, %r2;") == "2 2");
    CHECK(count_of("addc.u32 %r0, %r1, %r2;") == "3 1");
    const decoded kernel(kernel_of("add.cc.u32 %r0, %r1, %r2; addc.u32 %r3, %r1, 0;"));
    CHECK(has(kernel.of->uses[0].writes, kernel.of->code[0].d[0]));
    CHECK(has(kernel.of->uses[0].reads, kernel.of->code[0].a));
    CHECK(has(kernel.of->uses[0].writes, kernel.of->code[1].c)); // the carry
    CHECK(has(kernel.of->uses[1].reads, kernel.of->code[0].c));
}

TEST_CASE("lines are those of the text with comments and statements of several lines")
{
    const decoded kernel(kernel_of("mov.u32 %r0, 1; // one\n/* a comment\nof two lines */ mov.u32 %r1,\n  2;\n"
                                   ".loc 1 2 3\n$label: mov.u32 %r2, 3; bra.uni $label;"));
    const std::vector<unsigned> lines = {3, 5, 8, 8};
    for (std::size_t k = 0; k < lines.size(); ++k) CHECK(kernel.of->code[k].line == lines[k]);
    CHECK(kernel.of->code[3].target == 2);
    CHECK(kernel.of->texts[kernel.of->code[0].text] == "mov.u32 %r0, 1");
}

TEST_CASE("registers of an inner scope hide those of the outer one")
{
    const std::string text = kernel_of("ld.param.u64 %d0, [to]; mov.u32 %r0, 1;\n"
                                       "{ .reg .b32 %r<2>; mov.u32 %r0, 2; st.global.u32 [%d0], %r0; }\n"
                                       "st.global.u32 [%d0+4], %r0;");
    const std::vector<unsigned> result = run(text);
    CHECK(result[0] == 2);
    CHECK(result[1] == 1);
}

TEST_CASE("calls are inlined with their parameters and results and early returns")
{
    const std::string callee = ".func (.param .b32 back) square_or_one(.param .b32 x, .param .align 4 .b8 more[8])\n"
                               "{ .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<2>;\n"
                               "ld.param.u32 %r0, [x]; mov.b64 %d0, more; ld.param.u32 %r2, [%d0+4];\n"
                               "mul.lo.s32 %r1, %r0, %r0; add.s32 %r1, %r1, %r2; st.param.b32 [back], %r1;\n"
                               "setp.ne.s32 %p0, %r0, 0; @%p0 ret; st.param.b32 [back], 1; }\n";
    const std::string call = "{ .param .b32 a; .param .align 4 .b8 b[8]; .param .b32 c; st.param.b32 [a+0], %r0;\n"
                             "st.param.b32 [b+4], 100; call.uni (c), square_or_one, (a,\n b);\n"
                             "ld.param.b32 %r1, [c]; }\n";
    const std::string text = callee + kernel_of("ld.param.u64 %d0, [to]; ld.param.u32 %r0, [n];\n" + call
        + "st.global.u32 [%d0], %r1; mov.u32 %r0, 0;\n" + call + "st.global.u32 [%d0+4], %r1;\n");
    CHECK(run(text, 7)[0] == 149);
    CHECK(run(text, 7)[1] == 1);

    const std::string guarded = ".func f(.param .b64 at) { .reg .b64 %d<1>; ld.param.u64 %d0, [at];\n"
                                "st.global.u32 [%d0], 5; ret; }\n"
        + kernel_of("ld.param.u64 %d0, [to]; ld.param.u32 %r0, [n]; setp.eq.s32 %p0, %r0, 3;\n"
                    "{ .param .b64 a; st.param.b64 [a], %d0; @%p0 call f, (a); }\n"
                    "{ .param .b64 a; add.s64 %d0, %d0, 4; st.param.b64 [a], %d0; @!%p0 call f, (a); }");
    CHECK(run(guarded, 3) == std::vector<unsigned>{5, 0, 0, 0, 0, 0, 0, 0});
    CHECK(run(guarded, 4) == std::vector<unsigned>{0, 5, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("static shared variables lie at their alignment and dynamic ones apart")
{
    const std::string text = ".extern .shared .align 16 .b8 dynamic[];\n.shared .align 8 .b8 of_module[24];\n"
        + kernel_of(".shared .b8 small[3]; .shared .align 16 .b8 big[32];\n"
                    "mov.u32 %r0, small; mov.u32 %r1, big; mov.u32 %r2, of_module; mov.u32 %r3, dynamic;");
    const decoded kernel(text);
    CHECK(ptx::static_shared_bytes(*kernel.of) == 48 + 24);
    CHECK(kernel.of->has_dynamic);
    CHECK_FALSE(decoded(kernel_of("")).of->has_dynamic);
}

TEST_CASE("a kernel tells its parameters and threads")
{
    const auto in = ptx::load(".visible .entry tested(\n.param .u8 a,\n.param .align 8 .b8 b[12],\n.param .u32 c, "
                              ".param .u64 d\n)\n.maxntid 32, 4, 1\n.minnctapersm 2\n{ .reg .b32 %r<2>;\n"
                              ".reg .b64 %d<2>; mov.b64 %d0, {%r0, %r1}; add.s32 %r0, %r1, %r1;\n"
                              "add.s32 %r0, %r1, 1; ret; }\n"
                              ".func helper() { ret; }\n.entry other() { ret; }\n"
                              ".extern .func vprintf(.param .b64 a);\n");
    CHECK(ptx::kernel_names(*in) == std::vector<std::string>{"other", "tested"});
    CHECK(ptx::find_kernel(*in, "helper") == nullptr);
    CHECK(ptx::find_kernel(*in, "missing") == nullptr);
    const ptx::kernel* const kernel = ptx::find_kernel(*in, "tested");
    REQUIRE(kernel != nullptr);
    CHECK(ptx::find_kernel(*in, "tested") == kernel);
    std::string places;
    for (const auto& [offset, bytes] : ptx::parameters(*kernel))
        places += std::to_string(offset) + "+" + std::to_string(bytes) + " ";
    CHECK(places == "0+1 8+12 20+4 24+8 ");
    CHECK(ptx::parameter_bytes(*kernel) == 32);
    CHECK(ptx::most_threads(*kernel) == 128);
    CHECK(ptx::most_threads(*ptx::find_kernel(*in, "other")) == 1024);
}

TEST_CASE("an instruction can be taken out or replaced by its text and number")
{
    const auto stored_by = [](const decoded& kernel) {
        std::vector<unsigned> result(4);
        std::vector<unsigned char> arguments(12);
        const auto to = reinterpret_cast<std::uint64_t>(result.data());
        std::memcpy(arguments.data(), &to, sizeof to);
        ptx::run(*kernel.of, {1}, {1}, 0, arguments, {});
        return result;
    };
    const decoded kernel(kernel_of("ld.param.u64 %d0, [to];\nsetp.ne.s32 %p0, 0, 0;\nst.global.u32 [%d0], 1;\n"
                                   "st.global.u32 [%d0+4], 2;\n@%p0 st.global.u32 [%d0+8], 3;\n"
                                   "@%p0 bra last;\nst.global.u32 [%d0+12], 4;\nlast:"));
    CHECK(stored_by(kernel) == std::vector<unsigned>{1, 2, 0, 4});
    CHECK(ptx::replace(*kernel.in, "tested", "st.global", 1));
    CHECK(stored_by(kernel) == std::vector<unsigned>{1, 0, 0, 4});
    CHECK_FALSE(ptx::replace(*kernel.in, "tested", "st.global", 3));
    CHECK_FALSE(ptx::replace(*kernel.in, "missing", "st.global", 0));
    SUBCASE("without its guard")
    {
        CHECK(ptx::replace(*kernel.in, "tested", "st.global", 1, "st.global.u32 [%d0+8], 3"));
        CHECK(stored_by(kernel) == std::vector<unsigned>{1, 0, 3, 4});
        CHECK(ptx::replace(*kernel.in, "tested", "@%p0 bra", 0, "bra last"));
        CHECK(stored_by(kernel) == std::vector<unsigned>{1, 0, 3, 0});
    }
    SUBCASE("by what is no instruction")
    {
        CHECK_THROWS_AS(ptx::replace(*kernel.in, "tested", "st.global", 1, "st.globe 3"), std::runtime_error);
    }
}

} // namespace collprobe::testing::decoder_test

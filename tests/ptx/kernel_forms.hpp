// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The forms of instructions in the kernels of the library and its examples, as `ptx::forms` names them: nvcc 13's PTX
/// for `compute_80` and `compute_90` of tests/cuda/all_kernels.cu, all parts, and of examples/**/*.cu.
inline constexpr const char* kernel_forms = R"(
abs.f32 abs.f64 abs.s64 add.cc.s64 add.f32 add.f64 add.rn.f32 add.rn.f64 add.s16 add.s32 add.s64 add.u64 addc.cc.s64
and.b16 and.b32 and.b64 and.pred atom.global.inc.u32 atom.shared.add.u32 atom.shared.min.u32 bar.sync bar.warp.sync
bfi.b64 bra bra.uni call.uni clz.b64 cvt.f32.f16 cvt.f64.f32 cvt.rn.f32.f64 cvt.rn.f32.s32 cvt.rn.f32.u32
cvt.rn.f64.s16 cvt.rn.f64.s32 cvt.rn.f64.s64 cvt.rn.f64.u16 cvt.rn.f64.u32 cvt.rn.f64.u64 cvt.rn.satfinite.e4m3x2.f32
cvt.rzi.s32.f64 cvt.rzi.s64.f64 cvt.rzi.u32.f64 cvt.rzi.u64.f64 cvt.s16.s8 cvt.s32.s16 cvt.s32.s8 cvt.s64.s32
cvt.s64.s8 cvt.sat.f32.f32 cvt.u16.u32 cvt.u16.u64 cvt.u32.u16 cvt.u32.u64 cvt.u64.u16 cvt.u64.u32 cvta.local.u64
cvta.to.global.u64 cvta.to.local.u64 div.approx.f32 div.rn.f32 div.rn.f64 div.s32 div.s64 div.u32 div.u64 dp4a.s32.s32
dp4a.u32.u32 ex2.approx.ftz.f32 fma.rm.f32 fma.rn.f32 fma.rn.f64 ld.global.cg.u64 ld.global.f32 ld.global.f64
ld.global.nc.L1::no_allocate.v4.u32 ld.global.nc.u32 ld.global.nc.v2.u32 ld.global.s32 ld.global.s8 ld.global.u16
ld.global.u32 ld.global.u64 ld.global.u8 ld.global.v2.f64 ld.global.v4.f32 ld.global.v4.u32 ld.local.f32 ld.local.f64
ld.local.s8 ld.local.u16 ld.local.u32 ld.local.u64 ld.local.u8 ld.local.v2.u8 ld.param.b32 ld.param.f32 ld.param.f64
ld.param.s8 ld.param.u16 ld.param.u32 ld.param.u64 ld.param.u8 ld.param.v2.f32 ld.param.v2.u32 ld.param.v2.u8
ld.param.v4.u16 ld.param.v4.u8 ld.shared.f32 ld.shared.f64 ld.shared.u32 ld.shared.u64 ld.shared.u8 ld.shared.v2.f32
ld.shared.v2.f64 ld.shared.v2.u32 ld.shared.v2.u64 ld.shared.v4.u32 ld.shared.v4.u8 ld.u16 ld.u32 ld.u64 mad.lo.s32
max.f64 max.s16 max.s32 max.s64 max.u16 max.u16x2 max.u32 max.u64 membar.gl min.f64 min.s16 min.s32 min.s64 min.u16
min.u32 min.u64 mov.b32 mov.b32.pack2 mov.b32.split2 mov.b64 mov.b64.pack2 mov.b64.split2 mov.f32 mov.f64 mov.pred
mov.u16 mov.u32 mov.u64 mul.f32 mul.f64 mul.lo.s16 mul.lo.s32 mul.lo.s64 mul.rn.f32 mul.rn.f64 mul.wide.s32
mul.wide.u32 neg.f32 neg.f64 neg.s16 neg.s32 neg.s64 not.b32 not.b64 not.pred or.b16 or.b32 or.b64 or.pred popc.b32
prmt.b32 rcp.approx.ftz.f64 rcp.rn.f64 rem.s32 rem.u32 rem.u64 ret rsqrt.approx.f32 selp.b16 selp.b32 selp.b64 selp.f32
selp.f64 selp.u16 selp.u32 selp.u64 setp.eq.b32 setp.eq.b64 setp.eq.f32 setp.eq.f64 setp.eq.s16 setp.eq.s32 setp.eq.s64
setp.ge.f64 setp.ge.s32 setp.ge.u32 setp.ge.u64 setp.geu.f32 setp.geu.f64 setp.gt.f32 setp.gt.f64 setp.gt.s16
setp.gt.s32 setp.gt.s64 setp.gt.u16 setp.gt.u32 setp.gt.u64 setp.gtu.f64 setp.le.f64 setp.le.s32 setp.le.u32
setp.le.u64 setp.leu.f32 setp.leu.f64 setp.lt.f32 setp.lt.f64 setp.lt.s16 setp.lt.s32 setp.lt.s64 setp.lt.u16
setp.lt.u32 setp.lt.u64 setp.ne.s16 setp.ne.s32 setp.ne.s64 setp.neu.f32 setp.neu.f64 shf.r.wrap.b32 shfl.sync.bfly.b32
shfl.sync.down.b32 shl.b16 shl.b32 shl.b64 shr.s16 shr.s32 shr.s64 shr.u16 shr.u32 shr.u64 sqrt.rn.f64 st.global.f32
st.global.f64 st.global.u16 st.global.u32 st.global.u64 st.global.u8 st.global.v2.u32 st.global.v2.u8 st.global.v4.u16
st.global.v4.u32 st.global.v4.u8 st.local.f32 st.local.f64 st.local.u16 st.local.u32 st.local.u64 st.local.u8
st.local.v2.u32 st.local.v2.u64 st.local.v4.u8 st.param.b32 st.param.b64 st.param.f32 st.param.f64 st.shared.f32
st.shared.f64 st.shared.u32 st.shared.u64 st.shared.u8 st.shared.v2.f32 st.shared.v2.f64 st.shared.v2.u32
st.shared.v2.u64 st.shared.v4.u32 st.shared.v4.u8 st.u16 st.u32 st.v2.u32 sub.cc.s64 sub.f32 sub.f64 sub.rn.f32
sub.rn.f64 sub.s32 sub.s64 subc.cc.s64 vote.sync.any.pred vote.sync.ballot.b32 xor.b16 xor.b32 xor.b64 xor.pred)";

/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The proxy's other functions: each asks collprobe_forwarded for the real one and jumps there with its arguments. */

#if defined(__x86_64__)

    .macro forwarder name, index
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
    movl $\index, %r11d
    jmp forward
    .cfi_endproc
    .size \name, . - \name
    .endm

    .text
    .type forward, %function
    .p2align 4
forward:
    .cfi_startproc
    subq $200, %rsp /* a multiple of 16 with the return address */
    .cfi_adjust_cfa_offset 200
    movaps %xmm0, (%rsp)
    movaps %xmm1, 16(%rsp)
    movaps %xmm2, 32(%rsp)
    movaps %xmm3, 48(%rsp)
    movaps %xmm4, 64(%rsp)
    movaps %xmm5, 80(%rsp)
    movaps %xmm6, 96(%rsp)
    movaps %xmm7, 112(%rsp)
    movq %rdi, 128(%rsp)
    movq %rsi, 136(%rsp)
    movq %rdx, 144(%rsp)
    movq %rcx, 152(%rsp)
    movq %r8, 160(%rsp)
    movq %r9, 168(%rsp)
    movq %rax, 176(%rsp)
    movq %r10, 184(%rsp)
    movl %r11d, %edi
    movq 200(%rsp), %rsi
    call collprobe_forwarded
    movq %rax, %r11
    movaps (%rsp), %xmm0
    movaps 16(%rsp), %xmm1
    movaps 32(%rsp), %xmm2
    movaps 48(%rsp), %xmm3
    movaps 64(%rsp), %xmm4
    movaps 80(%rsp), %xmm5
    movaps 96(%rsp), %xmm6
    movaps 112(%rsp), %xmm7
    movq 128(%rsp), %rdi
    movq 136(%rsp), %rsi
    movq 144(%rsp), %rdx
    movq 152(%rsp), %rcx
    movq 160(%rsp), %r8
    movq 168(%rsp), %r9
    movq 176(%rsp), %rax
    movq 184(%rsp), %r10
    addq $200, %rsp
    .cfi_adjust_cfa_offset -200
    jmp *%r11
    .cfi_endproc
    .size forward, . - forward

#elif defined(__aarch64__)

    .macro forwarder name, index
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    hint #34 /* bti c */
    mov w16, #\index
    b forward
    .cfi_endproc
    .size \name, . - \name
    .endm

    .text
    .type forward, %function
    .p2align 4
forward:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset x29, -224
    .cfi_offset x30, -216
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80] /* where a struct is returned */
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w16
    mov x1, x30
    bl collprobe_forwarded
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    br x16
    .cfi_endproc
    .size forward, . - forward

#endif

    .set symbol, 0
#define STRONG(name) forwarder pnccl##name, (symbol + 0x8000); .set symbol, symbol + 1
#define COLLPROBE_DATA(name, ...) STRONG(name)
#define COLLPROBE_COUNT(name, ...) STRONG(name)
#define COLLPROBE_STATE(name, ...) STRONG(name)
#define COLLPROBE_FORWARD(name, ...) forwarder nccl##name, symbol; STRONG(name)
#include "symbols.def"

    .section .note.GNU-stack, "", %progbits

/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 * The numbers, sizes and offsets that programs which were compiled against collprobe.h rely on. New ones are added. */
#include <stdio.h>

#include <collprobe/c/collprobe.h>

static int wrong;

static void promised(const char* what, unsigned long found, unsigned long number)
{
    if (found == number) return;
    fprintf(stderr, "%s is %lu, but %lu was promised\n", what, found, number);
    wrong = 1;
}

#define VALUE(name, number) promised(#name, (unsigned long)(name), number)
#define SIZE(type, number) promised("sizeof " #type, (unsigned long)sizeof(type), number)
#define MEMBER(type, member, number) promised(#type "." #member, (unsigned long)offsetof(type, member), number)

int main(void)
{
    VALUE(collprobeSuccess, 0);
    VALUE(collprobeNotReady, 1);
    VALUE(collprobeInvalidArgument, 2);
    VALUE(collprobeMismatch, 3);
    VALUE(collprobeTimeout, 4);
    VALUE(collprobePeerFailure, 5);
    VALUE(collprobeDeviceFailure, 6);
    VALUE(collprobeUnsupported, 7);
    VALUE(collprobeInternalError, 8);
    VALUE(collprobeInt8, 0);
    VALUE(collprobeUint8, 1);
    VALUE(collprobeInt32, 2);
    VALUE(collprobeUint32, 3);
    VALUE(collprobeInt64, 4);
    VALUE(collprobeUint64, 5);
    VALUE(collprobeFloat16, 6);
    VALUE(collprobeFloat32, 7);
    VALUE(collprobeFloat64, 8);
    VALUE(collprobeBfloat16, 9);
    VALUE(collprobeFloat8e4m3, 10);
    VALUE(collprobeFloat8e5m2, 11);
    VALUE(collprobeSum, 0);
    VALUE(collprobeProd, 1);
    VALUE(collprobeMax, 2);
    VALUE(collprobeMin, 3);
    VALUE(collprobeAvg, 4);
    VALUE(collprobeAllReduceCall, 0);
    VALUE(collprobeReduceScatterCall, 1);
    VALUE(collprobeAllGatherCall, 2);
    VALUE(collprobeAllToAllCall, 3);
    VALUE(collprobeEqual, 0);
    VALUE(collprobeDistinct, 1);
    VALUE(collprobeHost, 0);
    VALUE(collprobeCuda, 1);
    VALUE(collprobeTable, 0);
    VALUE(collprobeJson, 1);
    SIZE(collprobeResult_t, 4);
    SIZE(collprobeOptions_t, 56);
    MEMBER(collprobeOptions_t, size, 0);
    MEMBER(collprobeOptions_t, allGather, 8);
    MEMBER(collprobeOptions_t, context, 16);
    MEMBER(collprobeOptions_t, device, 24);
    MEMBER(collprobeOptions_t, every, 28);
    MEMBER(collprobeOptions_t, calls, 32);
    MEMBER(collprobeOptions_t, expectations, 36);
    MEMBER(collprobeOptions_t, falseAlarms, 40);
    MEMBER(collprobeOptions_t, name, 48);
    SIZE(collprobeStep_t, 40);
    MEMBER(collprobeStep_t, size, 0);
    MEMBER(collprobeStep_t, loss, 8);
    MEMBER(collprobeStep_t, weight, 16);
    MEMBER(collprobeStep_t, gradientNorm, 24);
    MEMBER(collprobeStep_t, deviceLoss, 32);
    SIZE(collprobeFinding_t, 80);
    MEMBER(collprobeFinding_t, size, 0);
    MEMBER(collprobeFinding_t, step, 8);
    MEMBER(collprobeFinding_t, kind, 16);
    MEMBER(collprobeFinding_t, text, 24);
    MEMBER(collprobeFinding_t, call, 32);
    MEMBER(collprobeFinding_t, rank, 40);
    MEMBER(collprobeFinding_t, callIndex, 44);
    MEMBER(collprobeFinding_t, exact, 48);
    MEMBER(collprobeFinding_t, element, 56);
    MEMBER(collprobeFinding_t, statistic, 64);
    MEMBER(collprobeFinding_t, threshold, 72);
    return wrong;
}

/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 * Prints what programs that were compiled against collprobe.h rely on: abi.txt, but for the functions. */
#include <stdio.h>

#include <collprobe/c/collprobe.h>

#define SIZE(type) printf("%s %u\n", #type, (unsigned)sizeof(type))
#define MEMBER(type, member) printf("%s.%s %u\n", #type, #member, (unsigned)offsetof(type, member))
#define VALUE(name) printf("%s %d\n", #name, (int)name)

int main(void)
{
    VALUE(collprobeSuccess);
    VALUE(collprobeNotReady);
    VALUE(collprobeInvalidArgument);
    VALUE(collprobeMismatch);
    VALUE(collprobeTimeout);
    VALUE(collprobePeerFailure);
    VALUE(collprobeDeviceFailure);
    VALUE(collprobeUnsupported);
    VALUE(collprobeInternalError);
    VALUE(collprobeInt8);
    VALUE(collprobeUint8);
    VALUE(collprobeInt32);
    VALUE(collprobeUint32);
    VALUE(collprobeInt64);
    VALUE(collprobeUint64);
    VALUE(collprobeFloat16);
    VALUE(collprobeFloat32);
    VALUE(collprobeFloat64);
    VALUE(collprobeBfloat16);
    VALUE(collprobeFloat8e4m3);
    VALUE(collprobeFloat8e5m2);
    VALUE(collprobeSum);
    VALUE(collprobeProd);
    VALUE(collprobeMax);
    VALUE(collprobeMin);
    VALUE(collprobeAvg);
    VALUE(collprobeAllReduceCall);
    VALUE(collprobeReduceScatterCall);
    VALUE(collprobeAllGatherCall);
    VALUE(collprobeAllToAllCall);
    VALUE(collprobeEqual);
    VALUE(collprobeDistinct);
    VALUE(collprobeHost);
    VALUE(collprobeCuda);
    VALUE(collprobeTable);
    VALUE(collprobeJson);
    SIZE(collprobeResult_t);
    SIZE(collprobeOptions_t);
    MEMBER(collprobeOptions_t, size);
    MEMBER(collprobeOptions_t, allGather);
    MEMBER(collprobeOptions_t, context);
    MEMBER(collprobeOptions_t, device);
    MEMBER(collprobeOptions_t, every);
    MEMBER(collprobeOptions_t, calls);
    MEMBER(collprobeOptions_t, expectations);
    MEMBER(collprobeOptions_t, falseAlarms);
    MEMBER(collprobeOptions_t, name);
    SIZE(collprobeStep_t);
    MEMBER(collprobeStep_t, size);
    MEMBER(collprobeStep_t, loss);
    MEMBER(collprobeStep_t, weight);
    MEMBER(collprobeStep_t, gradientNorm);
    MEMBER(collprobeStep_t, deviceLoss);
    SIZE(collprobeFinding_t);
    MEMBER(collprobeFinding_t, size);
    MEMBER(collprobeFinding_t, step);
    MEMBER(collprobeFinding_t, kind);
    MEMBER(collprobeFinding_t, text);
    MEMBER(collprobeFinding_t, call);
    MEMBER(collprobeFinding_t, rank);
    MEMBER(collprobeFinding_t, callIndex);
    MEMBER(collprobeFinding_t, exact);
    MEMBER(collprobeFinding_t, element);
    MEMBER(collprobeFinding_t, statistic);
    MEMBER(collprobeFinding_t, threshold);
    return 0;
}

/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 * Twice, and its macros used. */
#include <collprobe/c/collprobe.h>
#include <collprobe/c/collprobe.h>

collprobeResult_t use_all(collprobeProbe_t* probe);
collprobeResult_t use_all(collprobeProbe_t* probe)
{
    collprobeOptions_t options = COLLPROBE_OPTIONS_INIT;
    collprobeStep_t step = COLLPROBE_STEP_INIT;
    collprobeFinding_t finding = COLLPROBE_FINDING_INIT;
    uint64_t token = 0;
    if (collprobeCreate(probe, 0, 1, &options) != collprobeSuccess) return collprobeInternalError;
    (void)collprobeObserveInput(*probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum, COLLPROBE_NO_BUFFER, 1,
        "", NULL, &token);
    (void)collprobeEndStep(*probe, 0, &step, NULL);
    return collprobeGetFinding(*probe, 0, &finding);
}

// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "../../report_files.hpp"
#include "../digits/progress.hpp"
#include "conclusion.hpp"
#include "job.hpp"
#include "options.hpp"

/// What `--device cuda` does: defined in cuda_run.cu, and here for a build without it.
namespace trainer {

#ifdef COLLPROBE_EXAMPLE_CUDA

/// How many GPUs there are, and of what kind.
/// \throws collprobe::error that names CUDA's error if there is none.
std::string describe_gpus();

/// `train` with the ranks' models on the GPUs, round robin.
run_result train_on_cuda(const job& work, run_reports& reports, progress& shown);

#else

inline std::string describe_gpus()
{
    throw usage_error("--device cuda: this program was built without CUDA; with nvcc installed,\n"
                      "`cmake --preset cuda && cmake --build --preset cuda` builds one with it: "
                      "build/cuda/examples/silent_inconsistency");
}
inline run_result train_on_cuda(const job&, run_reports&, progress&)
{
    throw usage_error("built without CUDA");
}

#endif

} // namespace trainer

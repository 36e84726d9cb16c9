// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// MPI's communicators: ranks as CPU processes.

#include <collprobe/comm/mpi/communicator.hpp>

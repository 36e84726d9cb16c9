// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace collprobe::inline COLLPROBE_ABI {
}

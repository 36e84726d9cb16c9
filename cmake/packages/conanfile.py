# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Conan 2: the headers, and the program collprobe. conan create cmake/packages -s compiler.cppstd=20"""
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load
from conan.tools.layout import basic_layout


class Collprobe(ConanFile):
    name = "collprobe"
    description = "Diagnostics at the boundary between a data-parallel trainer and its collectives"
    license = "Apache-2.0"
    topics = ("nccl", "mpi", "collectives", "diagnostics", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    def _project(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        text = load(self, os.path.join(self._project(), "include/collprobe/core/version.hpp"))
        self.version = ".".join(re.search(rf"VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))

    def export_sources(self):
        program = "examples/programs/collprobe" # looks at runs, and is installed too
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "examples/programs/launcher.py",
                        f"{program}/__init__.py", f"{program}/view/*"):
            copy(self, pattern, self._project(), self.export_sources_folder)

    def layout(self):
        basic_layout(self, src_folder=".")

    def package_id(self):
        self.info.clear()

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["COLLPROBE_BUILD_EXAMPLES"] = False
        toolchain.cache_variables["COLLPROBE_COMPILED"] = False
        toolchain.generate()

    def build(self):
        CMake(self).configure()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # The project's own package configuration, which has the components nccl and mpi.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["share/cmake/collprobe"]
        self.cpp_info.bindirs, self.cpp_info.libdirs = ["bin"], []
        self.cpp_info.system_libs = ["pthread"]

# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""What `conan create` tries the package with: the project of tests/consumer that calls find_package."""
import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class Consumer(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeToolchain", "CMakeDeps"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self, src_folder=".")

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder="../../consumer/find_package")
        cmake.build()

    def test(self):
        if can_run(self):
            version = self.tested_reference_str.split("/")[1].split("#")[0]
            self.run(os.path.join(self.cpp.build.bindir, f"consumer {version}"), env="conanrun")

"""Where CMake finds libtorch and fastops: in the packages of this Python."""

import os

import torch

import fastops

print(torch.utils.cmake_prefix_path, os.path.dirname(fastops.library_path()), sep=";")

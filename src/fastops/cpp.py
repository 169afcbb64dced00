"""What C++ programs need of this package: a library to open, a header, a CMake config file."""

from __future__ import annotations

from pathlib import Path

from . import _C, _load


def library_path() -> str:
    """The file ``libfastops.so``: the operators and their kernels, without Python.

    A C++ program that is linked to libtorch opens it (``dlopen``, ``torch::jit``'s and AOTInductor's own ways). Then
    torch's dispatcher has the operators of ``torch.ops.fastops``, forward and backward apart, with the kernels that are
    compiled. Without Python there are no kernels for:

    - ``linear_cross_entropy`` and ``linear_log_prob``, which Python composes of torch's products and our kernels;
    - dtypes and devices that run the plain composition.

    ``linear`` and ``lltm`` are Python functions of torch's products and of ``fastops::linear_epilogue`` and
    ``lltm_cell``, which are there. An input that requires a gradient is an error. After ``fastops_enable(NULL)``,
    declared in ``fastops/fastops.h``, torch's own layer_norm, rms_norm and softmax run our kernels, gradients included.

    Beside it in the package lie ``include/fastops/fastops.h`` and, for ``find_package(fastops)`` with this file's
    folder in ``CMAKE_PREFIX_PATH``, ``fastops-config.cmake``. ``find_package(fastops 0.1)`` takes any 0.1.x.

    Example::

        >>> torch._inductor.aoti_compile_and_package(exported)  # a program of our operators, for C++
        >>> print(fastops.library_path())
    """
    return str(Path(_C.__file__).with_name(_load.LIBRARY))

"""Which command gives a GPU kernels that fit it, when those of this build do not."""

from __future__ import annotations

# CUDA major version of the released wheels to the archs that they hold machine code for; PTX is of the newest.
RELEASES = {13: (75, 80, 86, 89, 90, 100, 120), 12: (70, 75, 80, 86, 89, 90, 100, 120)}


def remedy(distribution: str, capability: str, driver_cuda: str) -> str:
    """What mends that a GPU of ``capability`` ("9.0"), under a driver for ``driver_cuda`` ("12.4"), has no kernels."""
    card, driver = int(capability.replace(".", "")), int(driver_cuda.partition(".")[0])
    fitting = [major for major, archs in RELEASES.items() if _fits(card, archs)]
    for major in fitting:
        if major <= driver and distribution != f"fastops-cu{major}":
            return f"pip uninstall -y {distribution} && pip install fastops-cu{major}"
    if fitting and driver < max(fitting):
        wanted = next((major for major in fitting if distribution == f"fastops-cu{major}"), min(fitting))
        return f"Update the NVIDIA driver to one for CUDA {wanted}: https://www.nvidia.com/drivers"
    return (
        f"Build for it with an nvcc that knows it: pip uninstall -y {distribution} && "
        f"FASTOPS_CUDA_ARCHS={card} pip install --no-binary fastops fastops"
    )


def _fits(card: int, archs: tuple[int, ...]) -> bool:
    return card >= archs[-1] or any(arch // 10 == card // 10 and arch <= card for arch in archs)

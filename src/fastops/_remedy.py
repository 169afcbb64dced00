"""Which command gives a GPU kernels that fit it, when those of this build do not."""

from __future__ import annotations

# CUDA major version of the released wheels to the archs that they hold machine code for; PTX is of the newest.
RELEASES = {13: (75, 80, 86, 89, 90, 100, 120), 12: (70, 75, 80, 86, 89, 90, 100, 120)}

# Tegra chips: neither their machine code nor a desktop card's runs on the other kind.
TEGRA = (53, 62, 72, 87, 101, 110)


def remedy(distribution: str, version: str, capability: str, driver_cuda: str, conda: bool = False) -> str:
    """What mends that a GPU of ``capability`` ("9.0"), under a driver for ``driver_cuda`` ("12.4"), has no kernels.

    Of ``version``, which this build has: the names alone may have other owners.
    """
    card, driver = int(capability.replace(".", "")), major_of(driver_cuda)
    fitting = [major for major, archs in RELEASES.items() if _has_code(card, archs)]
    others = [major for major in fitting if distribution != f"fastops-cu{major}"]
    for major in others:
        if major <= driver:
            return _switch(distribution, version, major, conda)
    later = [major for major in fitting if major > driver]
    if later:
        wanted = next((major for major in later if major not in others), min(later))
        update = f"Update the NVIDIA driver to one for CUDA {wanted}: https://www.nvidia.com/drivers"
        return f"{update}, then {_switch(distribution, version, wanted, conda)}" if wanted in others else update
    remove = "conda remove fastops" if conda else f"pip uninstall -y {distribution}"
    return (
        f"Build for it with an nvcc that knows it: {remove} && "
        f"FASTOPS_CUDA= FASTOPS_CUDA_ARCHS={card} pip install --no-cache-dir --no-binary fastops fastops=={version}"
    )


def major_of(version: str) -> int:
    return int(version.partition(".")[0])


def _switch(distribution: str, version: str, major: int, conda: bool) -> str:
    if conda:
        return f'conda install "fastops=*=cuda{major}*"'
    return f"pip uninstall -y {distribution} && pip install fastops-cu{major}=={version}"


def _has_code(card: int, archs: tuple[int, ...]) -> bool:
    if card in TEGRA:
        return card in archs
    return card >= archs[-1] or any(arch // 10 == card // 10 and arch <= card for arch in archs)

"""The norms of transformers: how many are swapped, and that none computes anything else. All of them with --all."""

from __future__ import annotations

import pytest
from norm_classes import census, classes, packages, row

transformers = pytest.importorskip("transformers")

# Of all packages, from this version on: at least so many are swapped.
LEAST = {(4, 57): 120, (5, 22): 228, (5, 24): 239}
# They look like a norm of fastops and are none.
REFUSED = {
    "hy_v4": "HYV4UnweightedRMSNorm",
    "muse_spark": "MuseSparkTextInputScaledRMSNorm",
    "vitdet": "VitDetLayerNorm",
    "dory": "DoryL2Norm",
}


def test_census(request: pytest.FixtureRequest) -> None:
    every = request.config.getoption("all")
    rows = census(packages() if every else packages()[::40])
    swapped = [row for row in rows if row.swapped]
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    least = max((count for since, count in LEAST.items() if since <= version), default=0)
    assert len(swapped) >= (least if every else 3)
    assert {row.name: row.error for row in swapped if row.error > 2e-6} == {}
    assert {row.name: row.ulp for row in swapped if row.ulp > 4} == {}


@pytest.mark.parametrize("package", REFUSED)
def test_refused(package: str) -> None:
    rows = {cls.__name__: row(cls) for cls in classes(package)}
    if REFUSED[package] not in rows:
        pytest.skip(f"this transformers has no {REFUSED[package]}")
    found = rows[REFUSED[package]]
    assert found is not None
    assert found.left == "it computes neither rms_norm nor layer_norm"

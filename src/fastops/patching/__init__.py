"""``fastops.patch``: modules of an existing model that compute what an operator of fastops does are swapped for it.

``swap.py`` says how to write a finder, ``finders.py`` has the table of them.
"""

from .report import Report
from .walk import patch, patched

__all__ = ["Report", "patch", "patched"]

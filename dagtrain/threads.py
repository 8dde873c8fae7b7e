"""One BLAS thread for the command line: its matrices are small, and idle threads that spin cost more than they bring.

Imported before NumPy; who sets the variable keeps their setting."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

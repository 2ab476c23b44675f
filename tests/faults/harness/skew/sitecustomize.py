"""Shifts the wall clock of a process; Python imports this module at its start if this directory is on its path.
`HARNESS_CLOCK_S`: seconds; negative for a clock that is behind. Monotonic clocks are not changed.
"""

import os
import time

_wall = time.time
_off_s = float(os.environ.get("HARNESS_CLOCK_S", "0"))

vars(time)["time"] = lambda: _wall() + _off_s

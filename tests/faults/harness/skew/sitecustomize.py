"""Python runs this at its start where this directory is on its path: it sets the wall clock of the process off.

`HARNESS_CLOCK_S`: by so many seconds, negative for a clock that is behind. Monotonic clocks stay as they are.
"""

import os
import time

_wall = time.time
_off_s = float(os.environ.get("HARNESS_CLOCK_S", "0"))

vars(time)["time"] = lambda: _wall() + _off_s

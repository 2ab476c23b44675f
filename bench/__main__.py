"""`python -m bench ...` is `relay bench ...`."""

import sys

from relay.cli.main import main

if __name__ == "__main__":
    sys.argv.insert(1, "bench")
    main()

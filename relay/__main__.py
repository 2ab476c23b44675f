"""`python -m relay`."""

from relay.cli.main import main

if __name__ == "__main__":
    main()

"""``python -m nxcore`` is ``nxcore``."""

from nxcore.cli import main

if __name__ == "__main__":
    main()

"""python -m ocra"""

import sys

from ocra.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

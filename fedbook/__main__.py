import sys

from fedbook.kit.command import main

sys.exit(main())

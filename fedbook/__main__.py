import sys

from fedbook.command import main

sys.exit(main())

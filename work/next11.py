"""next11.py NOTEBOOK: terms of FedProx and FedSTO that act (about 6 to 9 % of the gradient), with as many seeds; tick labels; three label seeds."""
import sys, os; sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from nbedit import NB
nb = NB(sys.argv[1])
nb.sub("e6c97fd8", 'penalty="proximal"', 'penalty="proximal", mu=0.3')
nb.sub("e6c97fd8", 'penalty="orthogonal", own_teacher=True', 'penalty="orthogonal", mu=0.05, own_teacher=True')
nb.sub("de873965", 'for s in few_seeds if sizes.sweeps else ():\n    for what in ("FedProx", "FedSTO"): row(what, s)', 'for s in fed_seeds if sizes.sweeps else ():\n    for what in ("FedProx", "FedSTO"): row(what, s)')
nb.sub("af604847", 'axes[1].set_xlabel(', 'axes[1].xaxis.set_major_locator(plt.MaxNLocator(5))\naxes[1].set_xlabel(')
nb.save()

"""Few large steps or many small ones, at the same privacy?

Steps of noise add up like the root of their number, steps of signal like the number; but more rounds cost more
noise for the same epsilon. Here is what the accountant says, before anything is trained.

    python teaching/projects/smaller_steps.py [smoke | quick | full]

Needs the extra `dp`. From here: train with the best three (`fedbook.privacy.dp.dp_experiment`), since the clip
decides how much signal a step has; and say where the forecast fails.
"""
import sys
from functools import partial

from fedbook.privacy.dp import Epsilon, least_noise, poisson_event

RATE, DELTA, CLIENTS = 0.1, 1e-5, 1000


def main(profile="smoke"):
    for target in (1.0, 4.0):
        for rounds in (10, 100) if profile == "smoke" else (5, 10, 20, 50, 100, 200, 500):
            event = partial(poisson_event, rate=RATE, rounds=rounds)
            noise = least_noise(event, Epsilon(target, DELTA, "client"))
            ratio = RATE * CLIENTS * rounds ** 0.5 / noise
            print(f"epsilon {target:g}, {rounds} rounds: noise {noise:.2f}, signal over noise {ratio:.1f}")


if __name__ == "__main__": main(*sys.argv[1:])

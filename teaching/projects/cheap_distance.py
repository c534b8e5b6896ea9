"""When is a cheaper distance between tasks good enough?

FedGTEA keeps tasks apart by the Wasserstein distance of their Gaussians, which costs a root of a matrix for
each pair. Forgetting covariances, or keeping a few directions, is cheaper. How wrong is it, as tasks come
closer?

    python teaching/projects/cheap_distance.py [smoke | quick | full]

From here: covariances of a trained server (chapter 14); the time of each; whether the gradient, which is what a
server walks by, is as wrong as the value.
"""
import sys

import torch

from fedbook.methods.wasserstein import (low_rank_factors, pairwise_wasserstein2,
                                         pairwise_wasserstein2_diagonal, pairwise_wasserstein2_factors)


def tasks(seed, apart, count=5, d=24):
    "Means (T, d) and covariances (T, d, d) of `count` tasks whose means lie about `apart` from each other."
    g = torch.Generator().manual_seed(seed)
    roots = torch.randn(count, d, d, generator=g, dtype=torch.float64) * torch.logspace(0, -1.5, d).double()
    return apart * torch.randn(count, d, generator=g, dtype=torch.float64) / d ** 0.5, roots @ roots.mT / d


def main(profile="smoke"):
    forms = {"diagonal": lambda m, c: pairwise_wasserstein2_diagonal(m, c.diagonal(dim1=1, dim2=2)),
             "four directions": lambda m, c: pairwise_wasserstein2_factors(m, low_rank_factors(c, 4))}
    for apart in (0.1, 1.0, 10.0):
        for name, form in forms.items():
            errors = []
            for seed in range({"smoke": 2, "quick": 10}.get(profile, 50)):
                moments = tasks(seed, apart)
                exact = pairwise_wasserstein2(*moments)
                errors.append(float((form(*moments) - exact).abs().sum() / exact.sum()))
            print(f"means {apart:g} apart, {name}: error {sum(errors) / len(errors):.1%}")


if __name__ == "__main__": main(*sys.argv[1:])

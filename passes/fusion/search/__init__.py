"""The search for the best plan: the space, candidates, moves, and the exact optimum of small graphs."""

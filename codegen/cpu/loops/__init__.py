"""Element-wise work and rows on CPUs."""

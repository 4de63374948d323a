"""GEMMs on CPUs: with panels, and those with few rows."""

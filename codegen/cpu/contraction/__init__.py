"""GEMMs on CPUs: by panels, and of few rows."""

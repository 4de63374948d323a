"""Independent launches side by side: their order, branches and priorities. docs/parallel_launches.md says how."""

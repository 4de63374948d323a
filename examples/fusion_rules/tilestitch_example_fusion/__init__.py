"""An example of plug-ins that decide what becomes one kernel, and write one themselves."""

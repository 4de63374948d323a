"""Lists the sub-packages: pyproject.toml, where all the rest is, cannot find packages below a renamed folder."""

from setuptools import find_packages, setup

FOLDERS = ("runtime", "compiler", "cost_model", "passes", "codegen")
DEVELOPERS_ONLY = ["conformance", "measure", "pages", "training"]
"""Packages that are run from a checkout, which has what they read or write: tests, pages of docs, measurements."""

packages = ["tilestitch"]
for folder in FOLDERS:
    packages.append(f"tilestitch.{folder}")
    packages.extend(f"tilestitch.{folder}.{name}" for name in find_packages(folder, exclude=DEVELOPERS_ONLY))

setup(packages=packages)

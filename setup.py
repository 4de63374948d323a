"""Lists the sub-packages; everything else is in pyproject.toml, which has no way to find packages below a renamed folder."""

from setuptools import find_packages, setup

FOLDERS = ("runtime", "compiler", "cost_model", "passes", "codegen")

packages = ["tilestitch"]
for folder in FOLDERS:
    packages.append(f"tilestitch.{folder}")
    packages.extend(f"tilestitch.{folder}.{name}" for name in find_packages(folder))

setup(packages=packages)

"""Runs ONNX's backend tests through tilestitch (or another engine) and records what passes and what fails, and why.

python -m tilestitch.compiler.conformance [--filter REGEX] [--engine tilestitch|graph|onnxruntime|reference] ...
"""

"""The learned model of generated CPU kernels: the analytical prediction, corrected by trees."""

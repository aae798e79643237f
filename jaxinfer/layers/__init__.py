"""The mathematics that models are made of: what a layer is, and how its parts are computed."""

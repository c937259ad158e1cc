"""The goal of a search as algebra: terms in a normal form, and what can contribute to them."""

"""Estimators of ∇E f(b) for discrete b, from exact enumeration to learned control variates."""
